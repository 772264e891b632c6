"""The version of this package, under the names of torch.version."""

from __future__ import annotations

import importlib.metadata as _metadata

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "rocm", "xpu"]

try:
    __version__ = _metadata.version("teletensor")
except _metadata.PackageNotFoundError:  # the package runs from a source tree
    __version__ = "0"
debug: bool = False
git_version: str = "Unknown"
# This package itself computes nothing: only a daemon knows which CUDA it was built with.
cuda: str | None = None
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
