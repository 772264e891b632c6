"""Functions that make tensors, join and rearrange them, read or write parts of them, or describe them."""
