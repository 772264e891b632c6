"""What Python adds to the native Tensor: methods, indexing, text, exchange with other libraries."""
