"""PyTorch's import paths of the layers: `from teletensor.nn.modules.conv import _ConvNd`.

Each name in `__all__` is a module that contains what PyTorch's module of that name does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .._tensors.tensor import Tensor
from . import _hooks, _state, attention, module, parameter_containers
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


def _reverse_repeat_tuple(t: Sequence[Any], n: int) -> tuple[Any, ...]:
    return tuple(x for x in reversed(t) for _ in range(n))


def _list_with_default(out_size: int | Sequence[int | None], defaults: Sequence[int]) -> list[int]:
    """The sizes of the result, in which None stands for the size of the input's dimension in `defaults`."""
    if isinstance(out_size, int):
        return out_size  # type: ignore[return-value]
    if len(defaults) <= len(out_size):
        raise ValueError(f"Input dimension should be at least {len(out_size) + 1}")
    own = defaults[-len(out_size) :]
    return [size if wanted is None else wanted for wanted, size in zip(out_size, own, strict=True)]


def _seq_len(src: Tensor, batch_first: bool) -> int | None:
    """The length of the sequences of [length, batch, features], of [batch, length, features], or of
    [length, features]."""
    return src.shape[0 if src.dim() == 2 or not batch_first else 1]


# Names of PyTorch's modules that have another name in teletensor's, or that these lack.
_MORE: dict[str, dict[str, Any]] = {
    "conv": {"_ConvTransposeNd": conv._ConvTranspose},
    "dropout": {"_DropoutNd": dropout.Dropout},
    "linear": {"NonDynamicallyQuantizableLinear": linear.Linear},
    "module": {"_IncompatibleKeys": _state.IncompatibleKeys, "_addindent": module._indent},
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
    "transformer": {
        "_generate_square_subsequent_mask": attention.Transformer.generate_square_subsequent_mask,
        "_get_activation_fn": attention._activation,
        "_get_clones": attention._clones,
        "_get_seq_len": _seq_len,
    },
    "utils": {
        "_list_with_default": _list_with_default,
        "_reverse_repeat_tuple": _reverse_repeat_tuple,
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
__path__: list[str] = []  # makes this module a package, whose modules are in sys.modules


def _made(name: str, parts: tuple[ModuleType, ...]) -> ModuleType:
    out = ModuleType(f"{__name__}.{name}", f"What PyTorch has in torch.nn.modules.{name}.")
    for part in reversed(parts):
        out.__dict__.update({k: v for k, v in vars(part).items() if not k.startswith("__")})
    out.__dict__.update(_MORE.get(name, {}))
    out.__spec__ = ModuleSpec(out.__name__, None)  # importlib.util.find_spec() reads it for as_torch
    sys.modules[out.__name__] = out
    return out


globals().update({name: _made(name, parts) for name, parts in _PARTS.items()})


def __getattr__(name: str) -> Any:
    from .. import nn

    if name in nn.__all__:
        return getattr(nn, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
