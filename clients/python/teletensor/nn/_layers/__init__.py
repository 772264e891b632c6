"""The layers and losses of `nn`, one module per family. Their public names are those of `nn`."""
