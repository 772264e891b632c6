"""The parts of Tensor that are written in Python: methods, indexing, text, other libraries."""
