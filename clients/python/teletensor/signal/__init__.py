"""Signal processing: `signal.windows`."""

from . import windows

__all__ = ["windows"]
