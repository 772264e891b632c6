"""teletensor: PyTorch-like tensors that live and compute in a teletensord daemon.

    import teletensor as tt
    x = tt.randn(3, requires_grad=True)
    (x * x).sum().backward()
    print(x.grad)

Calling an op only appends an instruction to the session's queue; only reading a value waits for the daemon.
See `connect` for sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _absent, _api, _checked, _einops, _functions, _once, _paths
from ._api import *  # noqa: F403
from .version import __version__ as __version__

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

<<<<<<< HEAD
from . import (
=======
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
>>>>>>> deb2a9412d94641b450e805ff18f15a0a8a96b73
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
from ._interop import from_torch, to_torch
from ._notebook import load_ipython_extension, unload_ipython_extension  # noqa: F401
from ._serialize import load, save
from .amp import autocast
from .func import vmap
from .jit import compile

# isort: split
from . import special
from ._extras import *  # noqa: F403
from ._extras import __all__ as _extra_names

# Names with an underscore that programs for PyTorch use; a star import leaves them out.
globals().update({_name: getattr(_api, _name) for _name in _api._NAMES if _name.startswith("_")})

__all__ = [
    "accelerator", "amp", "array_api", "autocast", "autograd", "backends", "compile", "cuda",
    "distributions", "fft", "from_torch", "func", "jit", "linalg", "load", "nn", "optim", "random",
    "return_types", "save", "special", "testing", "to_torch", "utils", "version", "vmap", *_api._NAMES,
    *_extra_names,
]  # fmt: skip

_functions.neural.document(nn.functional)
_checked.attach(globals(), ("spmm", *_extra_names))
for _space in (nn, nn.functional, nn.init, nn.utils, optim, optim.lr_scheduler, autograd, func, fft, linalg,
               special, distributions, utils, utils.data, cuda, amp, jit, backends, backends.cuda,
               backends.cudnn, backends.mkldnn, backends.mps):
    _absent.attach(vars(_space))
del _space
_absent.attach(globals())
_einops.register()
_paths.register()
_once.keep()
