"""Parametrizations in use: weight_norm, spectral_norm."""

from __future__ import annotations

from typing import Any

import teletensor as tt

from ..._tensor import Tensor
from .. import functional as F
from ..module import Module
from . import parametrize

__all__ = ["spectral_norm", "weight_norm"]


def _norm_except(v: Tensor, dim: int) -> Tensor:
    """The norm over all dimensions but one; over all of them for dim -1."""
    if dim == -1:
        return v.norm()
    dims = [d for d in range(v.dim()) if d != dim % v.dim()]
    squares: Tensor = (v * v).sum(dims, keepdim=True) if dims else v * v
    return squares.sqrt()


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / _norm_except(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _norm_except(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """weight = g * v / |v|: length and direction as parameters of their own (original0 and
    original1), the length for each index of `dim` (None: one for all). Source: Salimans, Kingma
    2016."""
    return parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(
                "Dimension out of range (expected to be in range of "
                f"[-{weight.dim()}, {weight.dim() - 1}] but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                "Expected n_power_iterations to be positive, but got "
                f"n_power_iterations={n_power_iterations}"
            )
        self.dim = dim % weight.dim()
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.dim() > 1:
            with tt.no_grad():
                matrix = self._matrix(weight)
                rows, columns = matrix.shape
                for name, size in (("_u", rows), ("_v", columns)):
                    start = tt.randn(size, dtype=weight.dtype, device=weight.device)
                    self.register_buffer(name, F.normalize(start, dim=0, eps=eps))
                self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.dim, 0).flatten(1)

    def _iterate(self, matrix: Tensor, count: int) -> None:
        with tt.no_grad():
            for _ in range(count):
                self._u = F.normalize(matrix @ self._v, dim=0, eps=self.eps)
                self._v = F.normalize(matrix.t() @ self._u, dim=0, eps=self.eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        sigma = (self._u * (matrix @ self._v)).sum()
        return weight / sigma

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """weight divided by its largest singular value, which power iteration follows from use to use in
    training. `dim` is that of the outputs. Source: Miyato et al. 2018."""
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    built = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return parametrize.register_parametrization(module, name, built)
