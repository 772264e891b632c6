"""PyTorch's names: the catalog's ops, aliases, names that are elsewhere, names without an effect."""
