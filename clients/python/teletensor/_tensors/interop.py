"""Conversion of tensors from and to PyTorch, which is imported only when one of these functions is
called."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from .arrays import DTYPES, array_of, tensor_of, without_data
from .tensor import Tensor

__all__ = ["array_of_torch", "from_torch", "to_torch"]


def from_torch(obj: Any, device: Any = None) -> Any:
    """Returns a copy, on `device`, of a PyTorch tensor, with the same dtype, shape and requires_grad.

    A tensor on the device meta stays there. Dicts, lists and tuples (such as a state_dict) are converted
    element by element; an object that is not a tensor is returned unchanged. TypeError for dtypes and
    layouts that teletensor does not have.
    """
    import torch

    from ..sparse._interop import of_torch

    def convert(tensor: Any) -> Any:
        if tensor.layout != torch.strided:
            return of_torch(tensor, convert)
        if tensor.device.type == "meta":
            result = without_data(_name_of(tensor), tensor.shape, tensor.stride())
        else:
            result = tensor_of(*array_of_torch(tensor), device)
        return result.requires_grad_() if tensor.requires_grad else result

    return _map(obj, torch.Tensor, convert)


def array_of_torch(tensor: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """The result of `array_of` for a PyTorch tensor; if that is on a CPU, the array may share its
    memory."""
    import torch

    name = _name_of(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if name == "bfloat16":
        return name, plain.view(torch.int16).numpy().view("uint16")
    return name, plain.numpy()


def _name_of(tensor: Any) -> str:
    name = str(tensor.dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise TypeError(f"from_torch: dtype {tensor.dtype} is not supported; convert the tensor first")
    return name


def to_torch(obj: Any) -> Any:
    """Returns a copy, in the memory of this process, as a PyTorch tensor with the same dtype, shape and
    requires_grad; waits for the values. A tensor on the device meta stays there. Dicts, lists and tuples
    are converted as in `from_torch`."""
    import torch

    from ..sparse import SparseTensor
    from ..sparse._interop import to_torch as sparse_to_torch

    def convert(tensor: Any) -> Any:
        if isinstance(tensor, SparseTensor):
            return sparse_to_torch(tensor, convert)
        if tensor.is_meta:
            dtype = getattr(torch, tensor.dtype.name)
            result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
            return result.requires_grad_() if tensor.requires_grad else result
        name, array = array_of(tensor)
        if name == "bfloat16":
            result = torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
        else:
            result = torch.from_numpy(array.copy())
        return result.requires_grad_() if tensor.requires_grad else result

    return _map(obj, (Tensor, SparseTensor), convert)


def _map(obj: Any, kind: Any, convert: Any) -> Any:
    if isinstance(obj, kind):
        return convert(obj)
    if isinstance(obj, OrderedDict):  # a state_dict has the versions of the modules in an attribute
        made = OrderedDict((key, _map(value, kind, convert)) for key, value in obj.items())
        vars(made).update(vars(obj))
        return made
    if isinstance(obj, Mapping):
        return {key: _map(value, kind, convert) for key, value in obj.items()}
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return type(obj)(*(_map(value, kind, convert) for value in obj))
    if isinstance(obj, (list, tuple)):
        return type(obj)(_map(value, kind, convert) for value in obj)
    return obj
