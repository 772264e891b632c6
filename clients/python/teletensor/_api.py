"""The names of the root package that its other packages build on: tensors, dtypes, sessions and functions.

The root package takes all of them and adds `nn`, `optim` and the other packages. No module of the
client imports the root package, so that the imports form no circle (tests/policy/test_layers.py).
"""

from __future__ import annotations

from math import (
    e as e,
    inf as inf,
    nan as nan,
    pi as pi,
)
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from . import _core
from ._core import (
    Tensor as Tensor,
    bfloat16 as bfloat16,
    bool as bool,
    complex64 as complex64,
    complex128 as complex128,
    device as device,
    dtype as dtype,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from ._sessions.errors import (
    DeviceLostError as DeviceLostError,
    InterruptedOpError as InterruptedOpError,
    OutOfMemoryError as OutOfMemoryError,
    RankLostError as RankLostError,
    RefusedError as RefusedError,
    SessionLostError as SessionLostError,
    TeletensorError as TeletensorError,
)

# isort: split
from . import _functions
from ._calls import checked as _checked, out as _out
from ._functions import *  # noqa: F403
from ._names.aliases import (
    ALIASES as _ALIASES,
    INPLACE as _INPLACE,
)
from ._names.foreach import *  # noqa: F403
from ._names.foreach import __all__ as _foreach_names
from ._names.legacy import *  # noqa: F403
from ._names.legacy import (
    __all__ as _legacy_names,
)
from ._sessions.kept import (
    keep as keep,
    kept as kept,
)
from ._sessions.kept_steps import (
    kept_steps as kept_steps,
)
from ._sessions.published import (
    publish as publish,
    published as published,
)
from ._sessions.session import (
    Session as Session,
    checked as checked,
    connect as connect,
    current_session as current_session,
    interrupt as interrupt,
    set_strict as set_strict,
    synchronize as synchronize,
)
from ._tensors import tensor as _tensor
from ._tensors.convert import (
    as_tensor as as_tensor,
    tensor as tensor,
)
from ._tensors.follow import (
    from_numpy as from_numpy,
    shared_empty as shared_empty,
)
from ._tensors.generator import (
    Generator as Generator,
    default_generator as default_generator,
)
from ._tensors.gpu_memory import (
    SharedCuda as SharedCuda,
    shared_cuda as shared_cuda,
)
from ._tensors.memory_format import (
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format,
    jagged as jagged,
    layout as layout,
    memory_format as memory_format,
    preserve_format as preserve_format,
    sparse_bsc as sparse_bsc,
    sparse_bsr as sparse_bsr,
    sparse_coo as sparse_coo,
    sparse_csc as sparse_csc,
    sparse_csr as sparse_csr,
    strided as strided,
)
from ._tensors.pickling import (
    allow_pickle as allow_pickle,
)
from ._tensors.size import (
    Size as Size,
)
from ._tensors.tensor_types import *  # noqa: F403
from ._tensors.tensor_types import (
    __all__ as _type_names,
)

if _TYPE_CHECKING:
    from ._catalog import *  # noqa: F403
from ._tools.track import (
    track as track,
)
from .autograd import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    is_inference_mode_enabled as is_inference_mode_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from .random import (
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    seed as seed,
    set_rng_state as set_rng_state,
)

_tensor.attach()

float, double, half, long, int, short = float32, float64, float16, int64, int32, int16
cfloat, cdouble = complex64, complex128
newaxis = None


def get_default_dtype() -> dtype:
    """Returns the dtype that new floating-point tensors have by default."""
    return _core.default_dtype()


def set_default_dtype(d: dtype) -> None:
    """Sets the dtype that new floating-point tensors have by default."""
    _core.set_default_dtype(d)


def set_default_device(place: _Any) -> None:
    """Sets the device of new tensors; None resets it to the CPU."""
    from ._tensors import convert as _convert

    _convert._default_device[0] = _convert.resolve_device("cpu" if place is None else place)


def is_autocast_enabled(device_type: str | None = None) -> _Any:
    """Returns whether autocast is enabled in this thread: for `device_type`, or for any device type without
    it."""
    on = [_core.autocast_state(place == "cuda")[0] for place in ("cpu", "cuda")]
    return True in on if device_type is None else on[device_type == "cuda"]


def get_autocast_dtype(device_type: str) -> dtype:
    """Returns the dtype to which autocast casts the operands of matrix products on this type of device."""
    chosen: dtype = _core.autocast_state(device_type == "cuda")[1]
    return chosen


def _fill_namespace() -> list[str]:
    """Exports the ops of the catalog as functions, except those whose name a Python function has
    already."""
    names = []
    space = globals()
    for entry in _core.catalog():
        name = entry["name"]
        if not entry["internal"] and name not in space and not entry["mutates"] and (
                not name.startswith("special_")):  # these are in tt.special
            space[name] = _core.ops[name]
            names.append(name)
    for alias, name in {"concat": "cat", "concatenate": "cat", "multiply": "mul",
                        "subtract": "sub", "divide": "div", "true_divide": "div",
                        "negative": "neg", "absolute": "abs", "clip": "clamp",
                        "swapaxes": "transpose", "moveaxis": "movedim"}.items():
        space[alias] = space[name]
        names.append(alias)
    for alias, name in _ALIASES.items():
        if alias not in space:
            space[alias] = space[name]
            names.append(alias)
    for name in _INPLACE:
        if name + "_" not in space:
            space[name + "_"] = getattr(Tensor, name + "_").__func__
            names.append(name + "_")
    return names


_op_names = _fill_namespace()
_out.attach(globals(), _out.FUNCTIONS)
_checked.attach(globals(), (
    "as_tensor", "from_numpy", "get_autocast_dtype", "get_default_dtype", "is_autocast_enabled",
    "is_grad_enabled", "is_inference_mode_enabled", "tensor"))

# The public names of this module, in place of __all__, of which type checkers read constants alone.
_NAMES = [
    "DeviceLostError", "Generator", "InterruptedOpError", "OutOfMemoryError", "RankLostError",
    "RefusedError", "Session", "SessionLostError", "SharedCuda", "Size", "TeletensorError", "Tensor",
    "allow_pickle", "as_tensor", "bfloat16", "bool", "cdouble", "cfloat", "channels_last",
    "channels_last_3d", "checked", "complex128", "complex64", "connect", "contiguous_format",
    "current_session", "default_generator", "device", "double", "dtype", "e", "enable_grad", "float",
    "float16", "float32", "float64", "from_numpy", "get_autocast_dtype", "get_default_dtype",
    "get_rng_state", "half", "inf", "inference_mode", "initial_seed", "int", "int16", "int32", "int64",
    "int8", "interrupt", "is_autocast_enabled", "is_grad_enabled", "is_inference_mode_enabled", "jagged",
    "keep",
    "kept", "kept_steps", "layout", "long", "manual_seed", "memory_format", "nan", "newaxis", "no_grad",
    "pi", "preserve_format", "publish", "published", "seed", "set_default_device", "set_default_dtype",
    "set_grad_enabled", "set_rng_state", "set_strict", "shared_cuda", "shared_empty", "short",
    "sparse_bsc", "sparse_bsr", "sparse_coo", "sparse_csc", "sparse_csr", "strided", "synchronize",
    "tensor", "track", "uint16", "uint32", "uint64", "uint8", *_functions.NAMES, *_op_names,
    *_legacy_names, *_type_names, *_foreach_names,
]  # fmt: skip
