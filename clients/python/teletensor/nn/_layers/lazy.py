"""Layers that determine their input size from their first input."""

from __future__ import annotations

from typing import Any, ClassVar

from ... import _api as tt
from ..._tensors.tensor import Tensor
from ..module import Module
from ..parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin
from .batchnorm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from .conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    _ConvTranspose,
)
from .linear import Linear

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
    "LazyModuleMixin",
    "UninitializedBuffer",
    "UninitializedParameter",
]

class LazyModuleMixin:
    """Base class, together with Module, of modules whose parameters get their shapes from the first input:
    the first call begins with initialize_parameters(*args, **kwargs), after which the module becomes a
    `cls_to_become` (or keeps its class if that is None). If a state_dict is loaded earlier, it determines
    the shapes."""

    cls_to_become: type[Module] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own: Any = self
        self._load_hook = own.register_load_state_dict_pre_hook(_materialize)
        self._initialize_hook = own.register_forward_pre_hook(_first_call, with_kwargs=True)

    def has_uninitialized_params(self) -> bool:
        """Returns whether a parameter has an unknown shape."""
        own: Any = self
        names = (*own._parameter_names, *own._buffer_names)
        return any(isinstance(own.__dict__[name], UninitializedTensorMixin) for name in names)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Gives the parameters their shapes and initial values; subclasses define it."""
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}"
        )


def _materialize(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    for name in (*module._parameter_names, *module._buffer_names):
        own, given = module.__dict__[name], state.get(prefix + name)
        if isinstance(own, UninitializedTensorMixin) and isinstance(given, Tensor) and not (
            isinstance(given, UninitializedTensorMixin)
        ):
            own.materialize(given.shape)


def _first_call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    module.initialize_parameters(*args, **kwargs)
    if module.has_uninitialized_params():
        raise RuntimeError(f"module {type(module).__name__} has not been fully initialized")
    for hook in ("_initialize_hook", "_load_hook"):
        getattr(module, hook).remove()
        delattr(module, hook)
    if module.cls_to_become is not None:
        module.__class__ = module.cls_to_become


class _Lazy(LazyModuleMixin, Module):
    """A lazy module that becomes a `_becomes`, constructed with the given arguments and the size that
    `_size(input)` returns."""

    _becomes: ClassVar[type[Module]]
    _tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")
    # parameters from whose shapes in a loaded state_dict the input size is determined
    _telling: ClassVar[tuple[str, ...]] = ("weight",)

    def _prepare(self, arguments: dict[str, Any], absent: tuple[str, ...] = ()) -> None:
        Module.__init__(self)
        self.__dict__["_arguments"] = arguments
        options = {"device": arguments.get("device"), "dtype": arguments.get("dtype")}
        for name in self._tensors:
            kind: Any = (
                UninitializedBuffer if name.startswith("running") else UninitializedParameter
            )
            made = None if name in absent else kind(**options)
            if name.startswith("running"):
                self.register_buffer(name, made)
            else:
                self.register_parameter(name, made)

    def _size(self, input: Tensor) -> int:
        return int(input.size(self._dim))

    _dim = 1

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Gives the parameters their shapes and initial values."""
        self._become(self._size(input))

    def _become(self, size: int) -> None:
        kind: Any = self._becomes
        arguments = self.__dict__.pop("_arguments")
        for name in self._tensors:
            if self.__dict__[name] is not None:  # the module may have moved
                arguments = {**arguments, "device": self.__dict__[name].device}
        made: Module = kind(size, **arguments)
        made.train(self.training)
        with tt.no_grad():
            for name in self._tensors:
                old, new = self.__dict__[name], made.__dict__[name]
                if isinstance(old, UninitializedTensorMixin):
                    old.materialize(new.shape)
                    own: Any = old
                    own.copy_(new)
        known = {*self._tensors, *(k for k in self.__dict__ if k.startswith("_"))}
        self.__dict__.update({k: v for k, v in made.__dict__.items() if k not in known})
        for name, persistent in made._buffer_names.items():
            if name not in self._buffer_names:
                self._buffer_names[name] = persistent
        own_kind: Any = self._becomes
        self.__class__ = own_kind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.has_uninitialized_params():
            self.initialize_parameters(*args, **kwargs)
        else:  # the module does not have such a parameter
            self._become(self._size(args[0]))
        return self(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes the shapes from a state_dict that is loaded, unless it is that of a lazy module, whose
        shapes are unknown."""
        for name in self._telling:
            given = state_dict.get(prefix + name)
            if isinstance(given, Tensor) and not isinstance(given, UninitializedTensorMixin):
                self._become(self._size_of_weight(tuple(given.shape)))
                own: Any = self  # which is an ordinary module now, whose class may load in its own way
                own._load_from_state_dict(state_dict, prefix, *rest)
                return
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Sets new random initial values if the parameters have their shapes."""


class LazyLinear(_Lazy):
    """Linear whose in_features is that of the first input."""

    _becomes = Linear
    _dim = -1
    in_features = 0

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        arguments = {"out_features": out_features, "bias": bias, "device": device, "dtype": dtype}
        self._prepare(arguments, () if bias else ("bias",))
        self.out_features = out_features

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        return shape[1]

    def extra_repr(self) -> str:
        bias = self.__dict__["_arguments"]["bias"]
        return f"in_features=0, out_features={self.out_features}, bias={bias}"


class _LazyConv(_Lazy):
    in_channels = 0

    def __init__(self, out_channels: int, kernel_size: Any, *args: Any, **kwargs: Any) -> None:
        names = self._becomes.__init__.__code__.co_varnames[4:]
        arguments = dict(zip(names, args, strict=False)) | kwargs
        arguments |= {"out_channels": out_channels, "kernel_size": kernel_size}
        self._prepare(arguments, () if arguments.get("bias", True) else ("bias",))
        self.out_channels = out_channels

    def _size(self, input: Tensor) -> int:
        spatial: int = self._becomes._spatial  # type: ignore[attr-defined]
        return int(input.size(-1 - spatial))

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        arguments = self.__dict__["_arguments"]
        if issubclass(self._becomes, _ConvTranspose):
            return shape[0]
        groups: int = arguments.get("groups", 1)
        return shape[1] * groups

    def extra_repr(self) -> str:
        return f"0, {self.out_channels}"


class _LazyNorm(_Lazy):
    num_features = 0
    _tensors = _telling = ("weight", "bias", "running_mean", "running_var")

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        track = track_running_stats
        arguments = {
            "eps": eps,
            "momentum": momentum,
            "affine": affine,
            "track_running_stats": track,
            "device": device,
            "dtype": dtype,
        }
        absent = (() if affine else ("weight", "bias")) + (
            () if track else ("running_mean", "running_var")
        )
        self._prepare(arguments, absent)

    def _size(self, input: Tensor) -> int:
        ranks = self._becomes._ranks  # type: ignore[attr-defined]
        instance = self._becomes.__name__.startswith("Instance")
        return int(input.size(0 if instance and input.dim() < ranks[-1] else 1))

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        return shape[0]


def _made(base: type[_Lazy], kind: type[Module], what: str) -> Any:
    text = f"{kind.__name__} with {what} from the first input."
    space = {"_becomes": kind, "_version": kind._version, "__module__": __name__, "__doc__": text}
    return type(f"Lazy{kind.__name__}", (base,), space)


LazyConv1d = _made(_LazyConv, Conv1d, "in_channels")
LazyConv2d = _made(_LazyConv, Conv2d, "in_channels")
LazyConv3d = _made(_LazyConv, Conv3d, "in_channels")
LazyConvTranspose1d = _made(_LazyConv, ConvTranspose1d, "in_channels")
LazyConvTranspose2d = _made(_LazyConv, ConvTranspose2d, "in_channels")
LazyConvTranspose3d = _made(_LazyConv, ConvTranspose3d, "in_channels")
LazyBatchNorm1d = _made(_LazyNorm, BatchNorm1d, "num_features")
LazyBatchNorm2d = _made(_LazyNorm, BatchNorm2d, "num_features")
LazyBatchNorm3d = _made(_LazyNorm, BatchNorm3d, "num_features")
LazyInstanceNorm1d = _made(_LazyNorm, InstanceNorm1d, "num_features")
LazyInstanceNorm2d = _made(_LazyNorm, InstanceNorm2d, "num_features")
LazyInstanceNorm3d = _made(_LazyNorm, InstanceNorm3d, "num_features")
