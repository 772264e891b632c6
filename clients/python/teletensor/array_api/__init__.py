"""The Python array API standard, version 2025.12, implemented for tensors of the daemon.

    import teletensor.array_api as xp
    x = xp.linspace(0, 1, 5)
    xp.sum(x * x)

Arrays are `Array` objects that wrap tensors (`x.tensor`); `asarray` accepts tensors.
"""

from __future__ import annotations

import math as _math

from . import fft, linalg
from ._array import Array
from ._creation import *  # noqa: F403
from ._creation import __all__ as _creation_names
from ._dtypes import BY_NAME as _BY_NAME, can_cast, finfo, iinfo, isdtype
from ._elementwise import *  # noqa: F403
from ._elementwise import __all__ as _elementwise_names
from ._info import Info as _Info
from ._linear import *  # noqa: F403
from ._linear import __all__ as _linear_names
from ._manipulation import *  # noqa: F403
from ._manipulation import __all__ as _manipulation_names
from ._reductions import *  # noqa: F403
from ._reductions import __all__ as _reduction_names

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
__array_api_version__ = "2025.12"

e, inf, nan, pi, newaxis = _math.e, _math.inf, _math.nan, _math.pi, None


def __array_namespace_info__() -> _Info:
    """Returns an object that describes the capabilities of the namespace."""
    return _Info()


globals().update(_BY_NAME)

__all__ = [
    "Array", "__array_api_version__", "__array_namespace_info__", "can_cast", "e", "fft",
    "finfo", "iinfo", "inf", "isdtype", "linalg", "nan", "newaxis", "pi", *_BY_NAME,
    *_creation_names, *_elementwise_names, *_linear_names, *_manipulation_names,
    *_reduction_names,
]  # fmt: skip
