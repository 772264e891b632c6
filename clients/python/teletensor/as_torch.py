"""This package under PyTorch's name: `import teletensor.as_torch as torch`, for programs that check
PyTorch's version.

Its names are those of `teletensor`, and `teletensor.as_torch.nn` is `teletensor.nn`; `__version__` is the
version of PyTorch with which names and results were compared. Importing it changes texts in the whole
process: "torch.float32" for a dtype, "torch.Size([2])" for a shape, "torch.FloatTensor" for a type.
"""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

import teletensor as _teletensor

from . import _core, version as _version
from ._names import paths as _paths
from .torch_version import TorchVersion as _TorchVersion

__all__ = list(_teletensor.__all__)
__path__: list[str] = []  # the modules below this one are those of the package (see _names/paths.py)
__version__ = _TorchVersion("2.15.0")

version = _ModuleType(f"{__name__}.version", _version.__doc__)
version.__dict__.update({name: getattr(_version, name) for name in _version.__all__},
                        __all__=_version.__all__, __version__=__version__)
_sys.modules[version.__name__] = version
globals().update({name: getattr(_teletensor, name) for name in _teletensor.__all__ if name != "version"})
torch = _sys.modules[__name__]  # PyTorch has this name too


def __getattr__(name: str) -> _Any:
    return getattr(_teletensor, name)


def __dir__() -> _Any:
    return sorted({*globals(), *dir(_teletensor)})


_paths.register_as_torch()
_core.set_text_prefix("torch")
