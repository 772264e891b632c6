"""Utilities beside the tensor library: data, checkpoints of activations, DLPack, a table of a model."""

from . import checkpoint, data, dlpack
from ._summary import summary

__all__ = ["checkpoint", "data", "dlpack", "summary"]
