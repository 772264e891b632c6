"""Pickles of tensors, which a program has to allow: their values travel in them."""

from __future__ import annotations

import os
from typing import Any

from . import _core
from ._core import Tensor

__all__ = ["allow_pickle", "by_value", "reduced"]

_ALLOWED = "TELETENSOR_ALLOW_PICKLE"  # in the environment, which processes of this one inherit
_HOW = ("tensors are pickled only after teletensor.allow_pickle(), which puts their values into the "
        "pickle; teletensor.save writes safetensors, and t.numpy() is an array")


def allow_pickle(allowed: bool = True) -> None:
    """Lets pickle, joblib, cloudpickle and multiprocessing take tensors and what holds them, as modules.

    A pickle holds a tensor's values (which are downloaded), dtype, device, requires_grad and attributes,
    and not its history, gradient and hooks; each view holds its own elements. Reading it makes the tensor
    in the current session of the process that reads. Processes that are started afterwards allow it, too,
    since the switch is the variable TELETENSOR_ALLOW_PICKLE (0 or 1) of the environment.

    Whoever can change a pickle can run code in the process that reads it: `save` and `load` have no such
    danger.

    >>> import pickle
    >>> tt.allow_pickle()
    >>> pickle.loads(pickle.dumps(tt.ones(2))).tolist()
    [1.0, 1.0]
    >>> tt.allow_pickle(False)
    """
    os.environ[_ALLOWED] = "1" if allowed else "0"


def reduced(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """What `Tensor.__reduce_ex__` gives."""
    if os.environ.get(_ALLOWED) != "1":
        raise TypeError(_HOW)
    return by_value(tensor, tensor.requires_grad)


def by_value(tensor: Tensor, requires_grad: bool) -> tuple[Any, ...]:
    """What a pickle holds of a tensor. Waits for its values."""
    from ._arrays import array_of

    state = tensor.__dict__ if _core.has_attributes(tensor) else None
    return _made, (type(tensor), *array_of(tensor), tensor.device, requires_grad), state


def _made(kind: type[Tensor], dtype: str, values: Any, device: _core.device, requires_grad: bool) -> Tensor:
    from ._arrays import tensor_of
    from ._tensor import of_type

    return of_type(kind, tensor_of(dtype, values, device), requires_grad)
