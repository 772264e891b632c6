"""Utilities beside the tensor library: `utils.data`."""

from . import data

__all__ = ["data"]
