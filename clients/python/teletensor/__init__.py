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

from . import _api, _functions
from ._api import *  # noqa: F403
from ._calls import checked as _checked
from ._names import absent as _absent, paths as _paths
from ._sessions import once as _once
from ._tensors import einops as _einops
from .version import __version__ as __version__

if _TYPE_CHECKING:
    # Modules that are imported at their first use (see _names/paths.py).
    from . import (  # noqa: F401
        compiler,
        distributed,
        futures,
        hub,
        masked,
        multiprocessing,
        nested,
        onnx,
        overrides,
        profiler,
        signal,
        types,
    )

from . import (
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
    sparse,
    testing,
    utils,
    version,
)
from ._files.serialize import load, save
from ._tensors.interop import from_torch, to_torch
from ._tools.notebook import load_ipython_extension, unload_ipython_extension  # noqa: F401
from .amp import GradScaler, autocast
from .func import vmap
from .jit import compile

# isort: split
from . import special
from ._names.extras import *  # noqa: F403
from ._names.extras import __all__ as _extra_names
from .sparse._root import *  # noqa: F403
from .sparse._root import __all__ as _sparse_names

# Names with an underscore that programs for PyTorch use; a star import leaves them out.
globals().update({_name: getattr(_api, _name) for _name in _api._NAMES if _name.startswith("_")})

__all__ = [
    "GradScaler", "accelerator", "amp", "array_api", "autocast", "autograd", "backends", "compile", "cuda",
    "distributions", "fft", "from_torch", "func", "jit", "linalg", "load", "nn", "optim", "random",
    "return_types", "save", "sparse", "special", "testing", "to_torch", "utils", "version", "vmap",
    *_api._NAMES, *_extra_names, *_sparse_names,
]  # fmt: skip

_functions.neural.document(nn.functional)
_checked.attach(globals(), ("spmm", *_extra_names, *_sparse_names))
for _space in (nn, nn.functional, nn.init, nn.utils, sparse, optim, optim.lr_scheduler, autograd, func, fft,
               linalg, special, distributions, utils, utils.data, cuda, amp, jit, backends, backends.cuda,
               backends.cudnn, backends.mkldnn, backends.mps):
    _absent.attach(vars(_space))
del _space
_absent.attach(globals())
_einops.register()
_paths.register()
_once.keep()
