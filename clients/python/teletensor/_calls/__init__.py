"""What all functions share: checks of arguments, the parameter out=, nested containers of tensors."""
