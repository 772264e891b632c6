"""Pickles of tensors, which contain their values; a program has to allow them."""

from __future__ import annotations

import os
from typing import Any

from .. import _core
from .._core import Tensor

__all__ = ["allow_pickle", "by_value", "reduced"]

_ALLOWED = "TELETENSOR_ALLOW_PICKLE"  # an environment variable, which child processes inherit
_HOW = ("tensors are pickled only after teletensor.allow_pickle(), which puts their values into the "
        "pickle; teletensor.save writes safetensors, and t.numpy() is an array")


def allow_pickle(allowed: bool = True) -> None:
    """Allows pickle, joblib, cloudpickle and multiprocessing to pickle tensors, and objects such as modules
    that contain tensors.

    A pickle contains a tensor's values (which are downloaded), dtype, device, requires_grad and attributes,
    but not its history, gradient and hooks; each view is stored with its own elements. Unpickling creates
    the tensor in the current session of the process that unpickles. Processes that are started later allow
    pickles too, because the switch is the environment variable TELETENSOR_ALLOW_PICKLE (0 or 1).

    Anyone who can change a pickle can run code in the process that unpickles it; `save` and `load` do not
    have this danger.

    >>> import pickle
    >>> tt.allow_pickle()
    >>> pickle.loads(pickle.dumps(tt.ones(2))).tolist()
    [1.0, 1.0]
    >>> tt.allow_pickle(False)
    """
    os.environ[_ALLOWED] = "1" if allowed else "0"


def reduced(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """The result of `Tensor.__reduce_ex__`."""
    if os.environ.get(_ALLOWED) != "1":
        raise TypeError(_HOW)
    return by_value(tensor, tensor.requires_grad)


def by_value(tensor: Tensor, requires_grad: bool) -> tuple[Any, ...]:
    """The contents of the pickle of a tensor. Waits for its values."""
    from .arrays import array_of

    state = tensor.__dict__ if _core.has_attributes(tensor) else None
    if tensor.is_meta:
        layout = tensor.dtype.name, tuple(tensor.shape), tensor.stride()
        return _made_without_data, (type(tensor), *layout, requires_grad), state
    return _made, (type(tensor), *array_of(tensor), tensor.device, requires_grad), state


def _made_without_data(kind: type[Tensor], dtype: str, shape: tuple[int, ...], stride: tuple[int, ...],
                       requires_grad: bool) -> Tensor:
    from .arrays import without_data
    from .tensor import of_type

    return of_type(kind, without_data(dtype, shape, stride), requires_grad)


def _made(kind: type[Tensor], dtype: str, values: Any, device: _core.device, requires_grad: bool) -> Tensor:
    from .arrays import tensor_of
    from .tensor import of_type

    return of_type(kind, tensor_of(dtype, values, device), requires_grad)
