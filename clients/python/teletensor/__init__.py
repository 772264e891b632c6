"""teletensor: PyTorch-like tensors that live and compute in a teletensord daemon.

    import teletensor as tt
    x = tt.randn(3, requires_grad=True)
    (x * x).sum().backward()
    print(x.grad)

Calling an op only appends an instruction to the session's queue; only reading a value waits for the daemon.
See `connect` for sessions.
"""

from __future__ import annotations

from math import e, inf, nan, pi
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import _core
from ._core import (
    Tensor,
    bfloat16,
    bool,
    complex64,
    complex128,
    device,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._errors import (
    DeviceLostError,
    InterruptedOpError,
    OutOfMemoryError,
    RankLostError,
    RefusedError,
    SessionLostError,
    TeletensorError,
)
from .version import __version__ as __version__

# isort: split
from . import _absent, _checked, _einops, _functions, _once, _out, _paths, _tensor
from ._aliases import ALIASES as _ALIASES
from ._aliases import INPLACE as _INPLACE
from ._convert import as_tensor, tensor
from ._follow import from_numpy, shared_empty
from ._functions import *  # noqa: F403
from ._generator import Generator, default_generator
from ._gpu_memory import SharedCuda, shared_cuda
from ._kept import keep, kept
from ._kept_steps import kept_steps
from ._legacy import *  # noqa: F403
from ._legacy import __all__ as _legacy_names
from ._memory_format import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    strided,
)
from ._pickling import allow_pickle
from ._published import publish, published
from ._session import (
    Session,
    checked,
    connect,
    current_session,
    interrupt,
    set_strict,
    synchronize,
)
from ._size import Size
from ._tensor_types import *  # noqa: F403
from ._tensor_types import __all__ as _type_names

if _TYPE_CHECKING:
    # Modules that are imported at their first use (see _paths.py).
    from . import (  # noqa: F401
        compiler,
        distributed,
        futures,
        hub,
        multiprocessing,
        onnx,
        overrides,
        profiler,
        signal,
        types,
    )
    from ._catalog import *  # noqa: F403
from ._track import track

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
    from . import _convert

    place = device("cpu" if place is None else place)
    _convert._default_device[0] = current_session().check_device(place)


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

from . import (  # noqa: E402
    accelerator,
    amp,
    array_api,
    autograd,
    backends,
    cuda,
    distributions,
    fft,
    func,
    jit,
    linalg,
    nn,
    optim,
    random,
    return_types,
    testing,
    utils,
    version,
)
from ._interop import from_torch, to_torch  # noqa: E402
from ._notebook import load_ipython_extension, unload_ipython_extension  # noqa: E402, F401
from ._serialize import load, save  # noqa: E402
from .amp import autocast  # noqa: E402
from .autograd import (  # noqa: E402
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .func import vmap  # noqa: E402
from .jit import compile  # noqa: E402

# isort: split
from . import special  # noqa: E402
from ._extras import *  # noqa: E402, F403
from ._extras import __all__ as _extra_names  # noqa: E402
from .random import (  # noqa: E402
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)

__all__ = [
    "DeviceLostError", "Generator", "InterruptedOpError", "OutOfMemoryError", "RankLostError",
    "RefusedError", "Session", "SessionLostError", "Size", "TeletensorError", "Tensor", "accelerator",
    "allow_pickle", "amp", "array_api", "as_tensor",
    "autocast", "autograd", "backends", "bfloat16", "bool", "cdouble", "cfloat", "checked", "compile",
    "complex128", "complex64", "connect", "cuda", "current_session", "default_generator", "device",
    "distributions", "double", "dtype", "enable_grad", "fft", "float", "float16", "float32",
    "float64", "from_numpy", "from_torch", "func", "get_autocast_dtype", "get_default_dtype",
    "get_rng_state", "half", "inference_mode", "initial_seed", "int", "int16", "int32", "int64",
    "int8", "interrupt", "is_autocast_enabled", "is_grad_enabled", "is_inference_mode_enabled", "jit",
    "keep", "publish", "published",
    "kept", "kept_steps", "linalg", "random",
    "load", "long", "manual_seed", "nn", "no_grad", "optim", "save", "seed",
    "SharedCuda", "shared_cuda", "shared_empty",
    "set_default_device", "set_default_dtype", "set_grad_enabled", "set_rng_state", "set_strict",
    "short", "special", "synchronize", "tensor", "to_torch", "track", "uint16", "uint32", "uint64",
    "uint8", "utils", "version", "vmap",
    *_functions.NAMES, *_op_names, *_extra_names, *_legacy_names, *_type_names,
    "channels_last", "channels_last_3d", "contiguous_format", "e", "inf", "layout", "memory_format", "nan",
    "newaxis", "pi", "preserve_format", "return_types", "strided", "testing",
]  # fmt: skip

_functions.neural.document(nn.functional)
_checked.attach(globals(), (
    "as_tensor", "from_numpy", "get_autocast_dtype", "get_default_dtype", "is_autocast_enabled",
    "is_grad_enabled", "is_inference_mode_enabled", "tensor", "spmm", *_extra_names))
for _space in (nn, nn.functional, nn.init, nn.utils, optim, optim.lr_scheduler, autograd, func, fft, linalg,
               special, distributions, utils, utils.data, cuda, amp, jit, backends, backends.cuda,
               backends.cudnn, backends.mkldnn, backends.mps):
    _absent.attach(vars(_space))
del _space
_absent.attach(globals())
_einops.register()
_paths.register()
_once.keep()
