"""weight_norm and spectral_norm implemented by forward pre-hooks: the older forms, which programs and saved
states still use. The newer ones are in `parametrizations`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

from ... import _api as tt
from ..._tensors.tensor import Tensor
from .. import functional as F
from .._layers.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ..module import Module
from ..parameter import Parameter, UninitializedParameter
from .parametrizations import _norm_except

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]

M = TypeVar("M", bound=Module)


class _Hook(ABC):
    """A hook that computes the parameter `name` from other parameters before each forward."""

    title = ""
    suffixes: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def weight(self, module: Module, training: bool) -> Tensor:
        """Returns the present value of the parameter; in training this may update the buffers from which it
        is computed."""

    def __call__(self, module: Module, args: Any) -> None:
        setattr(module, self.name, self.weight(module, module.training))

    def add(self, module: Module) -> None:
        """Registers the hook; RuntimeError if the module has such a hook for the same parameter already."""
        if _find(module, type(self), self.name) is not None:
            raise RuntimeError(
                f"Cannot register two {self.title} hooks on the same parameter {self.name}"
            )
        module.register_forward_pre_hook(self)

    def remove(self, module: Module) -> None:
        """Replaces the computed weight by a parameter with its present value."""
        with tt.no_grad():
            weight = self.weight(module, False)
        for name in (self.name, *(f"{self.name}_{suffix}" for suffix in self.suffixes)):
            delattr(module, name)
        module.register_parameter(self.name, Parameter(weight.detach()))


def _own_parameter(module: Module, name: str, title: str) -> Parameter:
    weight: Parameter | None = module._parameters[name]
    if weight is None:
        raise ValueError(f"`{title}` cannot be applied as parameter `{name}` is None")
    if isinstance(weight, UninitializedParameter):
        raise ValueError(
            f"The module passed to `{title}` can't have uninitialized parameters. Make sure to "
            "run the dummy forward before applying it"
        )
    return weight


def _find(module: Module, kind: type[_Hook], name: str) -> tuple[int, _Hook] | None:
    """The hook of this type among the module's forward pre-hooks, and its key."""
    for key, hook in module._own_hooks().before.items():
        if isinstance(hook, kind) and hook.name == name:
            return key, hook
    return None


def _remove(module: M, kind: type[_Hook], name: str) -> M:
    found = _find(module, kind, name)
    if found is None:
        raise ValueError(f"{kind.title} of '{name}' not found in {module}")
    key, hook = found
    del module._own_hooks().before[key]
    hook.remove(module)
    return module


class WeightNorm(_Hook):
    """weight = weight_g * weight_v / |weight_v|."""

    title = "weight_norm"
    suffixes = ("g", "v")

    def __init__(self, name: str, dim: int | None) -> None:
        super().__init__(name)
        self.dim = -1 if dim is None else dim

    def weight(self, module: Module, training: bool) -> Tensor:
        g: Tensor = getattr(module, f"{self.name}_g")
        v: Tensor = getattr(module, f"{self.name}_v")
        return v * (g / _norm_except(v, self.dim))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Replaces the parameter `name` of the module by two parameters from which it is computed before each
    forward: name_g, the norm (for each index of `dim`, or a single one if it is None), and name_v, the
    direction. RuntimeError if weight_norm was already applied. Source: Salimans, Kingma 2016."""
    hook = WeightNorm(name, dim)
    hook.add(module)
    weight = _own_parameter(module, name, "WeightNorm")
    delattr(module, name)
    module.register_parameter(f"{name}_g", Parameter(_norm_except(weight, hook.dim).detach()))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, hook.weight(module, False))
    return module


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Makes `name` a parameter again. ValueError if weight_norm() was not applied to it."""
    return _remove(module, WeightNorm, name)


class SpectralNorm(_Hook):
    """weight = weight_orig / sigma, where sigma is its largest singular value as estimated by power
    iteration."""

    title = "spectral_norm"
    suffixes = ("u", "v", "orig")

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__(name)
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.dim, 0).flatten(1)

    def weight(self, module: Module, training: bool) -> Tensor:
        weight: Tensor = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = self.matrix(weight)
        if training:
            with tt.no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(tt.mv(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(tt.mv(matrix, v), dim=0, eps=self.eps))
                u, v = u.clone(), v.clone()  # copies, because the next forward overwrites the buffers
        return weight / tt.dot(u, tt.mv(matrix, v))


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Divides the parameter `name` by its largest singular value before each forward; in training mode
    after `n_power_iterations` steps of power iteration. The module gets name_orig (a parameter), name_u and
    name_v (buffers). dim is the dimension of the outputs (0 by default; 1 for transposed convolutions).
    RuntimeError if spectral_norm was already applied. Source: Miyato et al. 2018."""
    if dim is None:
        transposed = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
        dim = 1 if isinstance(module, transposed) else 0
    hook = SpectralNorm(name, n_power_iterations, dim, eps)
    weight = _own_parameter(module, name, "SpectralNorm")
    hook.add(module)
    with tt.no_grad():
        for buffer, size in zip("uv", hook.matrix(weight).shape, strict=True):
            start = F.normalize(weight.new_empty(size).normal_(0, 1), dim=0, eps=eps)
            module.register_buffer(f"{name}_{buffer}", start)
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.data)
    return module


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Makes `name` a parameter again. ValueError if spectral_norm() was not applied to it."""
    return _remove(module, SpectralNorm, name)
