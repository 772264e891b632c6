"""What was built, in the names of PyTorch's module."""

from __future__ import annotations

import importlib.metadata as _metadata

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "rocm", "xpu"]

try:
    __version__ = _metadata.version("teletensor")
except _metadata.PackageNotFoundError:  # run from a source tree
    __version__ = "0"
debug: bool = False
git_version: str = "Unknown"
# This package computes nothing itself: what daemons were built with is theirs to say.
cuda: str | None = None
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
