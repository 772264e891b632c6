"""Exchange of tensors through DLPack, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from .._names.extras import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Any) -> Any:
    """Returns a capsule with the tensor's values, which are downloaded to this machine."""
    return tensor.__dlpack__()
