"""Distributions of matrices, and of vectors by means of matrices: LKJCholesky, LowRankMultivariateNormal,
Wishart; and also VonMises and GeneralizedPareto."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _api as tt, linalg, special
from .._tensors.tensor import Tensor
from . import constraints
from .continuous import _factor_of_inverse
from .distribution import Distribution, ExponentialFamily, as_value, broadcast
from .gammas import Beta, Chi2

__all__ = ["GeneralizedPareto", "LKJCholesky", "LowRankMultivariateNormal", "VonMises", "Wishart"]

_ROUNDS = 32  # a candidate of VonMises is rejected with a probability below 0.35


def _diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1)


class LKJCholesky(Distribution):
    """Lower Cholesky factors L of dim x dim correlation matrices, with a density proportional to det(L
    L^T)^(concentration - 1) over the matrices (Lewandowski, Kurowicka, Joe 2009)."""

    arg_constraints: Any = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args=validate_args)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws a sample row by row, by the onion method."""
        like, n = self.concentration, self.dim
        with tt.no_grad():
            row = tt.arange(n, dtype=like.dtype, device=like.device).sub(1).clamp(min=0)
            other = like.unsqueeze(-1) + 0.5 * (n - 2) - 0.5 * row
            first = (0.5 * row + 0.5).expand(other.shape)
            length = Beta(first, other, False).sample(sample_shape).unsqueeze(-1)
            u = tt.randn(self._extended_shape(sample_shape), dtype=like.dtype, device=like.device).tril(-1)
            size = u.norm(dim=-1, keepdim=True)
            w = length.sqrt() * tt.where(size > 0, u / size, 0.0)
            left = (1 - (w * w).sum(-1)).clamp(min=tt.finfo(like.dtype).tiny)
            result: Tensor = w + left.sqrt().diag_embed()
            return result

    def log_prob(self, value: Any) -> Tensor:
        value, c = self._at(value, self.concentration), self.concentration
        less = self.dim - 1
        order = tt.arange(2, self.dim + 1, dtype=c.dtype, device=c.device)
        powers = 2 * (c - 1).unsqueeze(-1) + self.dim - order
        alpha = c + 0.5 * less
        norm = 0.5 * less * math.log(math.pi) + tt.mvlgamma(alpha - 0.5, less) - tt.lgamma(alpha) * less
        return (powers * _diagonal(value)[..., 1:].log()).sum(-1) - norm


class Wishart(ExponentialFamily):
    """Positive-definite matrices: sums of `df` outer products of normal vectors, whose covariance is given
    by the covariance matrix, the precision matrix, or the lower Cholesky factor of the covariance."""

    has_rsample = True
    support = constraints.positive_definite
    scale_tril: Tensor

    def __init__(self, df: Any, covariance_matrix: Tensor | None = None,
                 precision_matrix: Tensor | None = None, scale_tril: Tensor | None = None,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        given = {"_covariance_matrix": covariance_matrix, "_precision_matrix": precision_matrix,
                 "scale_tril": scale_tril}  # fmt: skip
        chosen = {name: matrix for name, matrix in given.items() if matrix is not None}
        if len(chosen) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        ((name, matrix),) = chosen.items()
        if matrix.dim() < 2:
            raise ValueError("scale_tril must be at least two-dimensional, with optional leading batch "
                             "dimensions")
        df = as_value(df, matrix)
        size = matrix.shape[-1]
        batch = tt.broadcast_shapes(df.shape, matrix.shape[:-2])
        self.df: Tensor = df.expand(batch)
        setattr(self, name, matrix.expand((*batch, size, size)))
        super().__init__(batch, (size, size), validate_args=validate_args)
        if covariance_matrix is not None:
            self.scale_tril = linalg.cholesky(matrix).expand((*batch, size, size))
        elif precision_matrix is not None:
            self.scale_tril = _factor_of_inverse(matrix).expand((*batch, size, size))

    @property
    def arg_constraints(self) -> Any:
        """The constraint of each parameter."""
        return {
            "covariance_matrix": constraints.positive_definite,
            "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky,
            "df": constraints.greater_than(self.event_shape[-1] - 1),
        }

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix of the vectors."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance matrix."""
        result: Tensor = tt.cholesky_inverse(self.scale_tril)
        return result

    def _wide(self) -> Tensor:
        return self.df.reshape((*self.df.shape, 1, 1))

    @property
    def mean(self) -> Tensor:
        return self._wide() * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self._wide() - self.event_shape[-1] - 1
        result: Tensor = tt.where(factor <= 0, math.nan, factor) * self.covariance_matrix
        return result

    @property
    def variance(self) -> Tensor:
        v = self.covariance_matrix
        own = _diagonal(v)
        return self._wide() * (v * v + own.unsqueeze(-1) * own.unsqueeze(-2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws samples by Bartlett's decomposition."""
        size = self.event_shape[-1]
        less = tt.arange(size, dtype=self.df.dtype, device=self.df.device)
        roots = Chi2(self.df.unsqueeze(-1) - less, False).rsample(sample_shape).sqrt()
        noise = tt.randn(self._extended_shape(sample_shape), dtype=self.df.dtype, device=self.df.device)
        factor = self.scale_tril @ (noise.tril(-1) + roots.diag_embed())
        return factor @ factor.mT

    def _half_logs(self) -> Tensor:
        return _diagonal(self.scale_tril).log().sum(-1)

    def log_prob(self, value: Any) -> Tensor:
        value, nu, size = self._at(value, self.df), self.df, self.event_shape[-1]
        inside = _diagonal(tt.cholesky_solve(value, self.scale_tril)).sum(-1)
        norm = nu * (0.5 * size * math.log(2) + self._half_logs()) + tt.mvlgamma(nu / 2, size)
        own = linalg.slogdet(value)[1]
        result: Tensor = 0.5 * (nu - size - 1) * own - 0.5 * inside - norm
        return result

    def _slopes(self) -> Tensor:
        """The derivative of the logarithm of the multivariate gamma function at df / 2."""
        steps = tt.arange(self.event_shape[-1], dtype=self.df.dtype, device=self.df.device) / 2
        result: Tensor = tt.digamma(self.df.unsqueeze(-1) / 2 - steps).sum(-1)
        return result

    def entropy(self) -> Tensor:
        nu, size = self.df, self.event_shape[-1]
        result: Tensor = (
            (size + 1) * (self._half_logs() + 0.5 * size * math.log(2))
            + tt.mvlgamma(nu / 2, size)
            - 0.5 * (nu - size - 1) * self._slopes()
            + 0.5 * nu * size
        )
        return result


class LowRankMultivariateNormal(Distribution):
    """Normal vectors with covariance W W^T + diag(D), where W is `cov_factor` [..., n, m] and D is
    `cov_diag` [..., n]; only m x m systems are solved (Woodbury's identity)."""

    has_rsample = True
    arg_constraints: Any = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        size = loc.shape[-1]
        if cov_factor.dim() < 2:
            raise ValueError("cov_factor must be at least two-dimensional, with optional leading batch "
                             "dimensions")
        if cov_factor.shape[-2] != size:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {size} x m")
        if cov_diag.shape[-1:] != (size,):
            raise ValueError(f"cov_diag must be a batch of vectors with shape {(size,)}")
        batch = tt.broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc, self.cov_diag = loc.expand((*batch, size)), cov_diag.expand((*batch, size))
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        super().__init__(batch, (size,), validate_args=validate_args)

    def _scaled(self) -> Tensor:
        """W^T D^-1."""
        return (self.cov_factor / self.cov_diag.unsqueeze(-1)).mT

    def _capacitance(self) -> Tensor:
        """The lower Cholesky factor of I + W^T D^-1 W."""
        inner = self._scaled() @ self.cov_factor
        result: Tensor = linalg.cholesky(
            inner + tt.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device))
        return result

    def _log_determinant(self) -> Tensor:
        return 2 * _diagonal(self._capacitance()).log().sum(-1) + self.cov_diag.log().sum(-1)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.cov_factor.pow(2).sum(-1) + self.cov_diag

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix."""
        return self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed()

    @property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        result: Tensor = linalg.cholesky(self.covariance_matrix)
        return result

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance matrix."""
        half = linalg.solve_triangular(self._capacitance(), self._scaled(), upper=False)
        return self.cov_diag.reciprocal().diag_embed() - half.mT @ half

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        facts: Any = {"dtype": self.loc.dtype, "device": self.loc.device}
        few = tt.randn((*shape[:-1], self.cov_factor.shape[-1], 1), **facts)
        own = self.cov_diag.sqrt() * tt.randn(shape, **facts)
        return self.loc + (self.cov_factor @ few).squeeze(-1) + own

    def log_prob(self, value: Any) -> Tensor:
        off = self._at(value, self.loc) - self.loc
        solved = linalg.solve_triangular(self._capacitance(), self._scaled(), upper=False)
        square = (off * off / self.cov_diag).sum(-1) - (solved @ off.unsqueeze(-1)).pow(2).sum((-2, -1))
        return -0.5 * (self.loc.shape[-1] * math.log(2 * math.pi) + self._log_determinant() + square)

    def entropy(self) -> Tensor:
        return 0.5 * (self.loc.shape[-1] * (1 + math.log(2 * math.pi)) + self._log_determinant())


class VonMises(Distribution):
    """The von Mises distribution: angles between -pi and pi with a density proportional to
    exp(concentration cos(x - loc))."""

    arg_constraints: Any = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The circular mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance."""
        result: Tensor = 1 - special.i1e(self.concentration) / special.i0e(self.concentration)
        return result

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """The first accepted of 32 candidates (Best, Fisher 1979), in float64."""
        shape = self._extended_shape(sample_shape)
        with tt.no_grad():
            k = self.concentration.to(tt.float64)
            tau = 1 + (1 + 4 * k * k).sqrt()
            rho = (tau - (2 * tau).sqrt()) / (2 * k)
            r = tt.where(k < 1e-5, 1 / k + k, (1 + rho * rho) / (2 * rho))
            u = tt.rand((3, _ROUNDS, *shape), dtype=tt.float64, device=k.device)
            z = (math.pi * u[0]).cos()
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            accepted = (c * (2 - c) - u[1] > 0) | ((c / u[1]).log() + 1 - c >= 0)
            angle = (u[2] - 0.5).sign() * f.clamp(-1, 1).acos()
            first = accepted.to(tt.uint8).argmax(0, keepdim=True)
            drawn = angle.gather(0, first)[0] + self.loc
            result: Tensor = ((drawn + math.pi) % (2 * math.pi) - math.pi).to(self.loc.dtype)
            return result

    def log_prob(self, value: Any) -> Tensor:
        k = self.concentration
        norm = math.log(2 * math.pi) + special.i0e(k).log() + k
        result: Tensor = k * (self._at(value, self.loc) - self.loc).cos() - norm
        return result


class GeneralizedPareto(Distribution):
    """The distribution of values above a threshold `loc`: tails that decrease as a power (concentration
    above 0), decrease exponentially (0), or end (below 0)."""

    has_rsample = True
    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive,
                            "concentration": constraints.real}  # fmt: skip

    def __init__(self, loc: Any, scale: Any, concentration: Any,
                 validate_args: bool | None = None) -> None:  # fmt: skip
        self.loc, self.scale, self.concentration = broadcast(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """The values that can be drawn."""
        end = self.loc - self.scale / self.concentration
        return constraints.interval(self.loc, tt.where(self.concentration < 0, end, math.inf))

    def _parts(self) -> tuple[Tensor, Tensor]:
        """Whether the concentration is (almost) 0, and the concentration with 1 in these places."""
        flat = tt.isclose(self.concentration, tt.zeros_like(self.concentration))
        return flat, tt.where(flat, 1.0, self.concentration)

    @property
    def mean(self) -> Tensor:
        k = self.concentration
        result: Tensor = tt.where(k < 1, self.loc + self.scale / (1 - k), math.inf)
        return result

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        k = self.concentration
        found = self.scale.pow(2) / ((1 - k).pow(2) * (1 - 2 * k))
        result: Tensor = tt.where(k < 0.5, found, math.inf)
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.icdf(tt.rand(shape, dtype=self.loc.dtype, device=self.loc.device))

    def log_prob(self, value: Any) -> Tensor:
        z = (self._at(value, self.loc) - self.loc) / self.scale
        flat, k = self._parts()
        result: Tensor = -self.scale.log() - tt.where(flat, z, (1 + 1 / k) * tt.log1p(k * z))
        return result

    def cdf(self, value: Any) -> Tensor:
        """The probability that a sample is at most the value."""
        z = ((self._at(value, self.loc) - self.loc) / self.scale).clamp(min=0)
        flat, k = self._parts()
        above: Tensor = tt.where(flat, (-z).exp(), (-tt.log1p(k * z) / k).exp())
        return 1 - above

    def icdf(self, value: Any) -> Tensor:
        """The value at which cdf is the given probability."""
        less = tt.log1p(-as_value(value, self.loc))
        flat, k = self._parts()
        result: Tensor = self.loc + self.scale * tt.where(flat, -less, tt.expm1(-k * less) / k)
        return result

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1
