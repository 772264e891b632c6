"""Functions that PyTorch has at the top level as well as elsewhere, and functions that exist so that
programs written for PyTorch run. Functions of nn.functional are exported as the same objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from .._functions.common import factory
from .._tensors import convert as _convert
from .._tensors.repr import set_printoptions
from ..autograd import is_anomaly_enabled
from ..backends._products import float32_precision, set_float32_precision
from ..linalg._lobpcg import lobpcg
from ..linalg._lowrank import pca_lowrank, svd_lowrank
from ..nn.functional import (
    affine_grid,
    alpha_dropout,
    conv_tbc,
    cosine_embedding_loss,
    dropout,
    embedding_bag,
    feature_alpha_dropout,
    grid_sample,
    hardshrink,
    hinge_embedding_loss,
    margin_ranking_loss,
    poisson_nll_loss,
    prelu,
    triplet_margin_loss,
)

__all__ = [
    "affine_grid_generator", "alpha_dropout_", "are_deterministic_algorithms_enabled", "asarray",
    "clear_autocast_cache", "cond", "conv_tbc", "cosine_embedding_loss", "dropout_", "embedding_bag",
    "feature_alpha_dropout_", "frobenius_norm", "from_dlpack", "frombuffer",
    "get_default_device", "get_deterministic_debug_mode", "get_device",
    "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads", "grid_sampler",
    "gru_cell", "hardshrink", "hinge_embedding_loss",
    "is_anomaly_enabled", "is_autocast_cache_enabled",
    "is_deterministic_algorithms_warn_only_enabled", "is_distributed", "is_inference", "is_storage",
    "is_warn_always_enabled", "lobpcg",
    "lstm_cell",
    "margin_ranking_loss", "nuclear_norm", "pca_lowrank", "poisson_nll_loss", "prelu", "range",
    "rnn_relu_cell",
    "rnn_tanh_cell", "set_deterministic_debug_mode", "set_float32_matmul_precision",
    "set_flush_denormal", "set_num_interop_threads", "set_num_threads", "set_printoptions",
    "set_warn_always", "svd_lowrank",
    "triplet_margin_loss", "typename", "use_deterministic_algorithms", "view_as_complex_copy",
    "view_as_real_copy",
]  # fmt: skip

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


# ---------------------------------------------------------------- making tensors


def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None,
            requires_grad: bool = False) -> Tensor:
    """obj (a tensor, an array or numbers) as a tensor; copied if `copy` is True or if it cannot be
    shared."""
    if copy is False and not isinstance(obj, Tensor):
        raise ValueError("asarray: data of this process must be copied to the daemon, so copy=False is not "
                         "possible")
    out = _convert.as_tensor(obj, dtype=dtype, device=device)
    if copy is False and out is not obj:
        raise ValueError("asarray: another dtype or device needs a copy, and copy is False")
    if copy and out is obj:
        out = ops["clone"](out)
    if requires_grad:
        out.requires_grad = True
    return out


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor with a copy of the data that another library exports through DLPack."""
    if isinstance(ext_tensor, Tensor):
        return ext_tensor
    return _convert.tensor(np.from_dlpack(ext_tensor))


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0,
               requires_grad: bool = False) -> Tensor:
    """A vector with a copy of the elements in a buffer (bytes, an array)."""
    name = "uint16" if dtype == _core.bfloat16 else dtype.name
    try:
        length = memoryview(buffer).nbytes
    except TypeError:
        raise ValueError("frombuffer: the object does not implement Python's buffer protocol") from None
    if not length or not count:
        raise ValueError(f"both buffer length ({length}) and count ({count}) must not be 0")
    array = np.frombuffer(buffer, np.dtype(name), count, offset)
    out = _convert.tensor(array)
    if dtype == _core.bfloat16:
        out = ops["bitcast"](out, dtype)
    if requires_grad:
        out.requires_grad = True
    return out


@factory
def range(start: Any, end: Any = None, step: Any = 1, **options: Any) -> Tensor:
    """start, start + step, ... up to and including end (unlike arange, which excludes end)."""
    from .._functions import arange

    if end is None:
        start, end = 0, start
    whole = all(isinstance(v, int) for v in (start, end, step))
    dtype = options.pop("dtype", None) or _core.default_dtype()
    count = int((end - start) / step) + 1
    steps = arange(count, dtype=_core.int64 if whole else _core.float64, **options)
    return ops["cast"](steps * step + start, dtype)


def get_default_device() -> _core.device:
    """The device of new tensors."""
    return _convert._default_device[0] or _core.device("cpu")


def get_device(input: Tensor) -> int:
    """The number of the tensor's device; -1 on a CPU."""
    index = input.device.index
    return -1 if index is None else int(index)


# ---------------------------------------------------------------- facts and switches


def is_inference(input: Tensor) -> bool:
    """Returns whether the tensor was created in inference mode."""
    return input.is_inference()


def is_distributed(input: Tensor) -> bool:
    """Returns False."""
    return False


def is_storage(obj: Any) -> bool:
    """Returns False: there are no storage objects, because the memory is the daemon's."""
    return False


def set_flush_denormal(mode: bool) -> bool:
    """Returns False: the daemon's kernels always compute with denormal numbers."""
    return False


_warns_always = [False]


def set_warn_always(b: bool, /) -> None:
    """Stores the flag, without any other effect: Python's filters decide which warnings are shown."""
    _warns_always[0] = bool(b)


def is_warn_always_enabled() -> bool:
    """Returns the flag that was given to set_warn_always last; at first, False."""
    return _warns_always[0]


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """true_fn(*operands) if pred, a bool or a tensor of one element, is true, and false_fn(*operands)
    otherwise. Waits for the value of a tensor; `jit.script` compiles `if` into the program instead."""
    if isinstance(pred, Tensor) and pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    return true_fn(*operands) if pred else false_fn(*operands)


def typename(obj: Any) -> str:
    """The name of a tensor's type, or of an object's class."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind: Any = obj if isinstance(obj, type) or callable(obj) else type(obj)
    module = getattr(kind, "__module__", None)
    name = getattr(kind, "__qualname__", type(obj).__name__)
    return name if module in (None, "builtins") else f"{module}.{name}"


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted without effect: every result depends only on the instruction and its operands."""


def are_deterministic_algorithms_enabled() -> bool:
    """Returns True: results are always deterministic."""
    return True


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Returns False."""
    return False


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Accepted without effect: every result is deterministic."""


def get_deterministic_debug_mode() -> int:
    """Returns 2: results are always deterministic."""
    return 2


def get_float32_matmul_precision() -> str:
    """Returns the precision that was set last; "highest", the default, means that products of float32
    tensors are computed in float32."""
    return float32_precision()


def set_float32_matmul_precision(precision: str) -> None:
    """Sets the precision of products of float32 tensors: with "high" and "medium", a GPU may round their
    factors to TF32."""
    set_float32_precision(precision)


_threads = {"num_threads": os.cpu_count() or 1, "num_interop_threads": os.cpu_count() or 1}


def _set_threads(name: str, count: Any) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise RuntimeError(f"set_{name} expects an int, but got {type(count).__name__}")
    if count <= 0:
        raise RuntimeError(f"set_{name} expects a positive integer")
    _threads[name] = count


def get_num_threads() -> int:
    """Returns the number given to set_num_threads last; before that, the number of cores of this
    machine."""
    return _threads["num_threads"]


# The parameter has no annotation to be checked before the call: PyTorch raises RuntimeError here for a
# wrong type.
def set_num_threads(num: Any) -> None:
    """Stores the number, without any other effect: the daemon computes, and divides its threads among all
    sessions."""
    _set_threads("num_threads", num)


def get_num_interop_threads() -> int:
    """Returns the number given to set_num_interop_threads last; before that, the number of cores of this
    machine."""
    return _threads["num_interop_threads"]


def set_num_interop_threads(num: Any) -> None:
    """Stores the number, without any other effect, as set_num_threads."""
    _set_threads("num_interop_threads", num)


def is_autocast_cache_enabled() -> bool:
    """Returns whether autocast keeps the casts of leaf tensors until the end of an autocast region."""
    return bool(_core.autocast_state(0)[2])


def clear_autocast_cache() -> None:
    """Deletes the casts that autocast keeps in this thread."""
    _core.clear_autocast_cache()


# ---------------------------------------------------------------- norms, copies, layers


def frobenius_norm(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The square root of the sum of squares, over all elements or over `dim`."""
    return ops["norm"](input, 2.0, None if dim in ((), []) else dim, keepdim)


def nuclear_norm(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The sum of the singular values."""
    from .. import linalg

    found: Tensor = linalg.matrix_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim)
    return found


def view_as_real_copy(input: Tensor) -> Tensor:
    """A copy with the real and imaginary parts in a new last dimension of size 2."""
    return ops["clone"](ops["view_as_real"](input))


def view_as_complex_copy(input: Tensor) -> Tensor:
    """A copy in which each pair of the last dimension is one complex number."""
    return ops["clone"](ops["view_as_complex"](input))


def affine_grid_generator(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """As nn.functional.affine_grid."""
    return affine_grid(theta, size, align_corners)


def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
                 align_corners: bool) -> Tensor:
    """As nn.functional.grid_sample, with the modes given as numbers."""
    return grid_sample(input, grid, _MODES[interpolation_mode], _PADDING[padding_mode], align_corners)


def dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.dropout in place."""
    return dropout(input, p, train, inplace=True)


def alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.alpha_dropout in place."""
    return alpha_dropout(input, p, train, inplace=True)


def feature_alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.feature_alpha_dropout in place."""
    return feature_alpha_dropout(input, p, train, inplace=True)


def _gates(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
           b_hh: Tensor | None) -> tuple[Tensor, Tensor]:
    return ops["linear"](input, w_ih, b_ih), ops["linear"](hx, w_hh, b_hh)


def lstm_cell(input: Tensor, hx: tuple[Tensor, Tensor], w_ih: Tensor, w_hh: Tensor,
              b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Computes one step of an LSTM; returns the next (h, c)."""
    a, b = _gates(input, hx[0], w_ih, w_hh, b_ih, b_hh)
    i, f, g, o = (a + b).chunk(4, 1)
    c = f.sigmoid() * hx[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
             b_hh: Tensor | None = None) -> Tensor:
    """Computes one step of a GRU; returns the next h."""
    a, b = _gates(input, hx, w_ih, w_hh, b_ih, b_hh)
    (ra, za, na), (rb, zb, nb) = a.chunk(3, 1), b.chunk(3, 1)
    z = (za + zb).sigmoid()
    fresh = (na + (ra + rb).sigmoid() * nb).tanh()
    return fresh + z * (hx - fresh)


def rnn_tanh_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
                  b_hh: Tensor | None = None) -> Tensor:
    """Computes one step of an RNN with tanh; returns the next h."""
    a, b = _gates(input, hx, w_ih, w_hh, b_ih, b_hh)
    return (a + b).tanh()


def rnn_relu_cell(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
                  b_hh: Tensor | None = None) -> Tensor:
    """Computes one step of an RNN with relu; returns the next h."""
    a, b = _gates(input, hx, w_ih, w_hh, b_ih, b_hh)
    return (a + b).relu()


# ---------------------------------------------------------------- methods


def _attach() -> None:
    from .. import _functions

    methods = {
        "float_power": _functions.float_power, "float_power_": _functions.float_power_,
        "ldexp": _functions.ldexp, "ldexp_": _functions.ldexp_, "hardshrink": hardshrink,
        "prelu": prelu, "is_distributed": is_distributed, "pin_memory": _itself("pin_memory"),
        "share_memory_": _itself("share_memory_"),
    }  # fmt: skip
    for name, method in methods.items():
        if not hasattr(Tensor, name):
            setattr(Tensor, name, _core.method(method))


def _itself(name: str) -> Any:
    def method(self: Tensor, device: Any = None) -> Tensor:
        """Returns the tensor itself: its memory belongs to the daemon."""
        return self

    method.__name__ = method.__qualname__ = name
    return method


_attach()
