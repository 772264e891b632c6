"""Ready-made parametrizations: orthogonal, spectral_norm, weight_norm."""

from __future__ import annotations

from typing import Any

from ... import _api as tt, linalg
from ..._tensors.tensor import Tensor
from .. import functional as F
from ..module import Module
from . import parametrize

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


def _norm_except(v: Tensor, dim: int) -> Tensor:
    """The norm over all dimensions but one, or over all dimensions if dim is -1."""
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
    """Parametrizes weight = g * v / |v|, with the norm (original0) and the direction (original1) as
    separate parameters; there is one norm for each index of `dim`, or a single one if it is None. A state
    of the older `nn.utils.weight_norm` (weight_g, weight_v) can be loaded, too. Source: Salimans, Kingma
    2016."""
    parametrized = parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def take_older_names(state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        older = f"{prefix}{name}_g", f"{prefix}{name}_v"
        if all(key in state_dict for key in older):
            for i, key in enumerate(older):
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(take_older_names)
    return parametrized


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
    """Parametrizes weight as the original divided by its largest singular value, whose estimate power
    iteration improves at each use in training. `dim` is the dimension of the outputs. Source: Miyato et al.
    2018."""
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    built = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return parametrize.register_parametrization(module, name, built)


def _orthogonalized(matrix: Tensor) -> Tensor:
    """The Q of a QR decomposition whose R has a positive diagonal."""
    q, r = linalg.qr(matrix)
    diagonal = r.diagonal(dim1=-2, dim2=-1).sgn()
    signs: Tensor = tt.where(diagonal == 0, tt.ones_like(diagonal), diagonal).unsqueeze(-2)
    return q * signs


class _Orthogonal(Module):
    base: Tensor

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        if weight.is_complex() and orthogonal_map == "householder":
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        self.trivialized = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        transposed = x.size(-2) < x.size(-1)
        if transposed:
            x = x.mT
        n, k = x.size(-2), x.size(-1)
        if self.orthogonal_map == "householder":
            below = x.tril(-1)
            q = linalg.householder_product(below, 2.0 / (1.0 + (below * below).sum(-2)))
            # The signs are on the diagonal; they are not learned.
            q = q * x.detach().diagonal(dim1=-2, dim2=-1).trunc().unsqueeze(-2)
        else:
            below = F.pad(x.tril(), (0, n - k))
            skew = below - below.mH
            if self.orthogonal_map == "matrix_exp":
                q = linalg.matrix_exp(skew)
            else:
                one = tt.eye(n, dtype=skew.dtype, device=skew.device)
                q = linalg.solve(one - skew / 2, one + skew / 2)
            q = q[..., :k]
        if self.trivialized:
            q = self.base @ q
        return q.mT if transposed else q

    def right_inverse(self, value: Tensor) -> Tensor:
        if value.shape != self.shape:
            raise ValueError(f"Expected a matrix or batch of matrices of shape {self.shape}. "
                             f"Got a tensor of shape {value.shape}.")
        transposed = value.size(-2) < value.size(-1)
        q = value.mT if transposed else value
        with tt.no_grad():
            if self.trivialized:
                return self._rebase(value, q)
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "It is not possible to assign to the matrix exponential or the Cayley "
                    "parametrizations when use_trivialization=False.")
            reflectors, tau = tt.geqrf(q)
            diagonal = reflectors.diagonal(dim1=-2, dim2=-1)
            signs = diagonal.sign()
            diagonal.copy_(tt.where(tau == 0, -signs, signs))
            return reflectors.mT if transposed else reflectors

    def _rebase(self, value: Tensor, q: Tensor) -> Tensor:
        """Sets the base to the orthogonal matrix closest to q (completed to a square matrix). The original
        is the difference from the base, so the returned original stands for no difference."""
        n, k = q.size(-2), q.size(-1)
        if n != k:
            rest = tt.randn(*q.shape[:-2], n, n - k, dtype=q.dtype, device=q.device)
            q = _orthogonalized(tt.cat([q, rest], -1))
        else:
            one = tt.eye(n, dtype=q.dtype, device=q.device)
            near = 10 * n * tt.finfo(q.dtype).eps
            exact = tt.isclose(q.mH @ q, one, atol=near).flatten(-2).all(-1)
            q = tt.where(exact.all(), q, _orthogonalized(q))
        self.base = q.detach()
        start = tt.zeros_like(value)
        start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
        return start


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Parametrizes a matrix (or a batch of matrices) so that its columns, or its rows if it is wide, are
    always orthonormal.

    orthogonal_map: "matrix_exp" or "cayley" of a skew matrix, or a "householder" product; None chooses
    matrix_exp for square and complex matrices, and householder for all other ones. use_trivialization
    multiplies the result by a fixed orthogonal matrix ("base"), which an assignment to the parameter
    changes. Source: Lezcano-Casado 2019.
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.dim() < 2:
        raise ValueError("Expected a matrix or batch of matrices. "
                         f"Got a tensor of {weight.dim()} dimensions.")
    if orthogonal_map is None:
        square = weight.size(-2) == weight.size(-1)
        orthogonal_map = "matrix_exp" if square or weight.is_complex() else "householder"
    if orthogonal_map not in ("matrix_exp", "cayley", "householder"):
        raise ValueError('orthogonal_map has to be one of "matrix_exp", "cayley", "householder". '
                         f"Got: {orthogonal_map}")
    built = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return parametrize.register_parametrization(module, name, built, unsafe=True)
