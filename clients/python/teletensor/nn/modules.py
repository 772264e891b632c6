"""PyTorch's import paths of the layers: `from teletensor.nn.modules.conv import _ConvNd`.

Each name in `__all__` is a module that contains what PyTorch's module of that name does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from . import _hooks, attention, module, parameter_containers
from ._layers import (
    activation,
    adaptive,
    batchnorm,
    containers,
    conv,
    distance,
    dropout,
    lazy,
    linear,
    loss,
    normalization,
    pooling,
    rnn,
    sparse,
    vision,
)


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = name
    return parse


def _consume_prefix(state_dict: dict[str, Any], prefix: str) -> None:
    """Removes the prefix ("module." of a DistributedDataParallel) from the keys of a state_dict and from
    the names in its metadata, in place. Keys without it stay, and stand first."""
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[key.removeprefix(prefix)] = state_dict.pop(key)
    versions: dict[str, Any] = getattr(state_dict, "_metadata", {})
    for key in list(versions):
        if key and (key == prefix.replace(".", "") or key.startswith(prefix)):
            versions[key[len(prefix) :]] = versions.pop(key)


# Names of PyTorch's modules that have another name in teletensor's, or that these lack.
_MORE: dict[str, dict[str, Any]] = {
    "conv": {"_ConvTransposeNd": conv._ConvTranspose},
    "padding": {
        "_CircularPadNd": vision._CircularPad,
        "_ConstantPadNd": vision._ConstantPad,
        "_ReflectionPadNd": vision._ReflectionPad,
        "_ReplicationPadNd": vision._ReplicationPad,
    },
    "pooling": {
        "_AdaptiveAvgPoolNd": pooling._AdaptiveAvgPool,
        "_AdaptiveMaxPoolNd": pooling._AdaptiveMaxPool,
        "_LPPoolNd": pooling._LPPool,
        "_MaxPoolNd": pooling._MaxPool,
        "_MaxUnpoolNd": pooling._MaxUnpool,
    },
    "utils": {
        "consume_prefix_in_state_dict_if_present": _consume_prefix,
        "_ntuple": _ntuple,
        "_single": _ntuple(1, "_single"),
        "_pair": _ntuple(2, "_pair"),
        "_triple": _ntuple(3, "_triple"),
        "_quadruple": _ntuple(4, "_quadruple"),
    },
}

_PARTS: dict[str, tuple[ModuleType, ...]] = {
    "activation": (activation, attention),
    "adaptive": (adaptive,),
    "batchnorm": (batchnorm, lazy),
    "channelshuffle": (vision,),
    "container": (containers, parameter_containers),
    "conv": (conv, lazy),
    "distance": (distance,),
    "dropout": (dropout,),
    "flatten": (linear,),
    "fold": (vision,),
    "instancenorm": (batchnorm, lazy),
    "lazy": (lazy,),
    "linear": (linear, lazy),
    "loss": (loss,),
    "module": (module, _hooks),
    "normalization": (normalization, batchnorm),
    "padding": (vision,),
    "pixelshuffle": (vision,),
    "pooling": (pooling,),
    "rnn": (rnn,),
    "sparse": (sparse,),
    "transformer": (attention,),
    "upsampling": (vision,),
    "utils": (),
}

__all__ = list(_PARTS)


def _made(name: str, parts: tuple[ModuleType, ...]) -> ModuleType:
    out = ModuleType(f"{__name__}.{name}", f"What PyTorch has in torch.nn.modules.{name}.")
    for part in reversed(parts):
        out.__dict__.update({k: v for k, v in vars(part).items() if not k.startswith("__")})
    out.__dict__.update(_MORE.get(name, {}))
    sys.modules[out.__name__] = out
    return out


globals().update({name: _made(name, parts) for name, parts in _PARTS.items()})


def __getattr__(name: str) -> Any:
    from .. import nn

    if name in nn.__all__:
        return getattr(nn, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
