"""Utilities beside the tensor library: `utils.data`, `utils.checkpoint`, `utils.dlpack`."""

from . import checkpoint, data, dlpack

__all__ = ["checkpoint", "data", "dlpack"]
