"""Utilities: data loading, checkpoints of activations, DLPack, a summary table of a model."""

from . import checkpoint, data, dlpack
from ._summary import summary

__all__ = ["checkpoint", "data", "dlpack", "summary"]
