"""Invertible functions together with the logarithms of their Jacobian determinants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _api as tt, linalg
from .._tensors.tensor import Tensor
from ..nn import functional as F
from . import constraints

__all__ = [
    "AbsTransform", "AffineTransform", "CatTransform", "ComposeTransform", "CorrCholeskyTransform",
    "CumulativeDistributionTransform", "ExpTransform", "IndependentTransform", "LowerCholeskyTransform",
    "PositiveDefiniteTransform", "PowerTransform", "ReshapeTransform", "SigmoidTransform",
    "SoftmaxTransform", "SoftplusTransform", "StackTransform", "StickBreakingTransform",
    "TanhTransform", "Transform", "identity_transform",
]  # fmt: skip


def _summed(x: Tensor, dims: int) -> Tensor:
    return x.flatten(-dims).sum(-1) if dims else x


class Transform:
    """An invertible function: y = self(x), x = self.inv(y), and log |dy / dx|.

    `domain` and `codomain` are the constraints of x and y, `event_dim` is the number of dimensions of x
    that belong together, and `sign` says whether the function is increasing (1) or decreasing (-1).
    """

    bijective = True
    domain: Any = constraints.real
    codomain: Any = constraints.real
    _inv: Transform | None = None

    @property
    def event_dim(self) -> int:
        """The number of dimensions of x that belong together."""
        return int(max(self.domain.event_dim, self.codomain.event_dim))

    @property
    def sign(self) -> Any:
        """1 if the function is increasing, and -1 if it is decreasing."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Returns the transform itself: nothing is cached."""
        return self

    def __init__(self, cache_size: int = 0) -> None:
        self._cache_size = cache_size

    @property
    def inv(self) -> Transform:
        """The inverse transform."""
        if self._inv is None:
            self._inv = _Inverse(self)
        return self._inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy / dx|, summed over the last event_dim dimensions."""
        raise NotImplementedError

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of y for an x of this shape."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of x for a y of this shape."""
        return tuple(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._inv = transform
        self.domain, self.codomain = transform.codomain, transform.domain
        self.bijective = transform.bijective

    @property
    def sign(self) -> Any:
        return self.inv.sign

    @property
    def inv(self) -> Transform:
        assert self._inv is not None
        return self._inv

    def _call(self, x: Tensor) -> Tensor:
        return self.inv._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.inv._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.inv.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.inv.forward_shape(shape)


class ComposeTransform(Transform):
    """Several transforms, one after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.bijective = all(part.bijective for part in self.parts)

    @property
    def domain(self) -> Any:
        """The constraint of x."""
        if not self.parts:
            return constraints.real
        dims = 0
        for part in reversed(self.parts):
            dims += part.domain.event_dim - part.codomain.event_dim
            dims = max(dims, part.domain.event_dim)
        first = self.parts[0].domain
        return constraints.independent(first, dims - first.event_dim) if dims > first.event_dim else first

    @property
    def codomain(self) -> Any:
        """The constraint of y."""
        if not self.parts:
            return constraints.real
        dims = 0
        for part in self.parts:
            dims += part.codomain.event_dim - part.domain.event_dim
            dims = max(dims, part.codomain.event_dim)
        last = self.parts[-1].codomain
        return constraints.independent(last, dims - last.event_dim) if dims > last.event_dim else last

    @property
    def sign(self) -> Any:
        return math.prod(part.sign for part in self.parts)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return tt.zeros_like(x)
        total: Tensor | None = None
        dims = self.domain.event_dim
        for part in self.parts:
            after = part(x)
            term = part.log_abs_det_jacobian(x, after)
            term = _summed(term, dims - part.domain.event_dim)
            total, x = term if total is None else total + term, after
            dims += part.codomain.event_dim - part.domain.event_dim
        assert total is not None
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


identity_transform = ComposeTransform([])


class AffineTransform(Transform):
    """loc + scale * x."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    @property
    def event_dim(self) -> int:
        return self._event_dim

    @property
    def domain(self) -> Any:
        """The constraint of x."""
        if self._event_dim == 0:
            return constraints.real
        return constraints.independent(constraints.real, self._event_dim)

    codomain = domain

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        result: Tensor = self.loc + self.scale * x
        return result

    def _inverse(self, y: Tensor) -> Tensor:
        result: Tensor = (y - self.loc) / self.scale
        return result

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            found = self.scale.abs().log()
        else:
            found = tt.full_like(x, math.log(abs(self.scale)))
        return _summed(found.expand(x.shape), self.event_dim)


class ExpTransform(Transform):
    """exp(x)."""

    codomain = constraints.positive
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """x ** exponent, for positive numbers."""

    domain = constraints.positive
    codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent if isinstance(exponent, Tensor) else tt.tensor(float(exponent))

    @property
    def sign(self) -> Any:
        return self.exponent.sign()

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()


def _clipped_sigmoid(x: Tensor) -> Tensor:
    """sigmoid(x), limited so that its logarithm and that of 1 - sigmoid(x) are finite."""
    limits = tt.finfo(x.dtype)
    return tt.sigmoid(x).clamp(limits.tiny, 1.0 - limits.eps)


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    codomain = constraints.unit_interval
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return _clipped_sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        limits = tt.finfo(y.dtype)
        y = y.clamp(limits.tiny, 1.0 - limits.eps)
        return y.log() - tt.log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    codomain = constraints.positive
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return tt.expm1(-y).neg().log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x)


class TanhTransform(Transform):
    """tanh(x)."""

    codomain = constraints.interval(-1.0, 1.0)
    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class AbsTransform(Transform):
    """|x|; its inverse returns one of the two possible values."""

    bijective = False
    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class SoftmaxTransform(Transform):
    """exp(x) divided by its sum along the last dimension; the inverse is the logarithm."""

    bijective = False
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """Maps n numbers to n + 1 positive numbers whose sum is 1."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _offset(self, n: int, like: Tensor) -> Tensor:
        counts = tt.arange(n, 0, -1, dtype=like.dtype, device=like.device)
        return counts.log()

    def _call(self, x: Tensor) -> Tensor:
        z = _clipped_sigmoid(x - self._offset(x.shape[-1], x))
        left = (1 - z).cumprod(-1)
        return F.pad(z, (0, 1), value=1.0) * F.pad(left, (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        front = y[..., :-1]
        left = (1 - front.cumsum(-1)).clamp(min=tt.finfo(y.dtype).tiny)
        return front.log() - left.log() + self._offset(front.shape[-1], y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        moved = x - self._offset(x.shape[-1], x)
        return (-moved + F.logsigmoid(moved) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


class ReshapeTransform(Transform):
    """Reshapes the last dimensions from in_shape to out_shape."""

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError("in_shape, out_shape have different numbers of elements")
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:x.dim() - len(self.in_shape)])

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _other_end(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _other_end(shape, self.out_shape, self.in_shape)


def _other_end(shape: Sequence[int], end: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    cut = len(shape) - len(end)
    if cut < 0:
        raise ValueError("Too few dimensions on input")
    if tuple(shape[cut:]) != end:
        raise ValueError(f"Shape mismatch: expected {tuple(shape[cut:])} but got {end}")
    return (*shape[:cut], *other)


class IndependentTransform(Transform):
    """A transform for which additional last dimensions belong together."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int,
                 cache_size: int = 0) -> None:  # fmt: skip
        super().__init__(cache_size)
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.bijective = base_transform.bijective
        more = reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, more)
        self.codomain = constraints.independent(base_transform.codomain, more)

    @property
    def sign(self) -> Any:
        return self.base_transform.sign

    def _check_rank(self, x: Tensor, constraint: constraints.Constraint) -> None:
        if x.dim() < constraint.event_dim:
            raise ValueError("Too few dimensions on input")

    def _call(self, x: Tensor) -> Tensor:
        self._check_rank(x, self.domain)
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        self._check_rank(y, self.codomain)
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return _summed(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"


class CumulativeDistributionTransform(Transform):
    """The cumulative distribution function of a distribution."""

    codomain = constraints.unit_interval
    sign = 1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:
        """The constraint of x."""
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        result: Tensor = self.distribution.cdf(x)
        return result

    def _inverse(self, y: Tensor) -> Tensor:
        result: Tensor = self.distribution.icdf(y)
        return result

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.distribution.log_prob(x)
        return result


class LowerCholeskyTransform(Transform):
    """Maps a matrix to a lower triangular one with a positive diagonal, which is exp of the diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """Maps a matrix to a positive-definite one: the result of LowerCholeskyTransform times its
    transpose."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(linalg.cholesky(y))


def _strictly_lower(x: Tensor, n: int) -> Tensor:
    """Places the elements of a vector row by row below the diagonal of an n x n matrix."""
    row, column = tt.tril_indices(n, n, -1, device=x.device)
    out = x.new_zeros((*x.shape[:-1], n * n))
    places = (row * n + column).expand(x.shape)
    return out.scatter(-1, places, x).reshape((*x.shape[:-1], n, n))


class CorrCholeskyTransform(Transform):
    """Maps n (n - 1) / 2 numbers to the lower Cholesky factor of an n x n correlation matrix: the tanh of
    each number is a partial correlation. Source: the Stan reference manual, "Cholesky LKJ correlation
    distribution"."""

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky

    def _size(self, shape: Sequence[int]) -> int:
        n: int = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != shape[-1]:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return n

    def _call(self, x: Tensor) -> Tensor:
        near = tt.finfo(x.dtype).eps
        n = self._size(x.shape)
        partial = _strictly_lower(x.tanh().clamp(-1 + near, 1 - near), n)
        left = (1 - partial**2).sqrt().cumprod(-1)
        whole = partial + tt.eye(n, dtype=x.dtype, device=x.device)
        return whole * F.pad(left[..., :-1], (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        n = y.shape[-1]
        left = 1 - (y * y).cumsum(-1)
        row, column = tt.tril_indices(n, n, -1, device=y.device)
        places = row * n + column
        below = y.flatten(-2)[..., places]
        rest = F.pad(left[..., :-1], (1, 0), value=1.0).flatten(-2)[..., places]
        partial = below / rest.sqrt()
        return (tt.log1p(partial) - tt.log1p(-partial)) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        n = y.shape[-1]
        row, column = tt.tril_indices(n, n, -1, device=y.device)
        left = (1 - (y * y).cumsum(-1)).flatten(-2)
        inner = (column < row - 1).to(y.dtype)
        size = 0.5 * (left[..., row * n + column].clamp(min=tt.finfo(y.dtype).tiny).log() * inner).sum(-1)
        slope = -2 * (x + F.softplus(-2 * x) - math.log(2.0)).sum(-1)
        result: Tensor = size + slope
        return result

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        if len(shape) < 1:
            raise ValueError("Too few dimensions on input")
        n = self._size(shape)
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        if len(shape) < 2:
            raise ValueError("Too few dimensions on input")
        if shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)


class _Several(Transform):
    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        super().__init__(cache_size)
        if not all(isinstance(each, Transform) for each in tseq):
            raise AssertionError("All elements of tseq must be Transform instances")
        self.transforms = list(tseq)
        self.dim = dim
        self.bijective = all(each.bijective for each in self.transforms)


class CatTransform(_Several):
    """Applies each transform to its own piece along `dim`, whose lengths are `lengths`."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None,
                 cache_size: int = 0) -> None:  # fmt: skip
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    @property
    def domain(self) -> Any:
        """The constraint of x."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Any:
        """The constraint of y."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    @property
    def length(self) -> int:
        """The total length of the pieces."""
        return sum(self.lengths)

    def _pieces(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[self.dim] != self.length:
            raise AssertionError(
                f"Input size {x.shape[self.dim]} at dim {self.dim} does not match length {self.length}")
        return x.split(self.lengths, self.dim)

    def _call(self, x: Tensor) -> Tensor:
        return tt.cat([t(p) for t, p in zip(self.transforms, self._pieces(x), strict=True)], self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        return tt.cat([t.inv(p) for t, p in zip(self.transforms, self._pieces(y), strict=True)], self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        terms = [_summed(t.log_abs_det_jacobian(a, b), self.event_dim - t.event_dim)
                 for t, a, b in zip(self.transforms, self._pieces(x), self._pieces(y), strict=True)]
        dim = (self.dim if self.dim < 0 else self.dim - x.dim()) + self.event_dim
        return tt.cat(terms, dim) if dim < 0 else sum(terms[1:], terms[0])


class StackTransform(_Several):
    """Applies each transform to its own slice along `dim`."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    @property
    def domain(self) -> Any:
        """The constraint of x."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @property
    def codomain(self) -> Any:
        """The constraint of y."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def _slices(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[self.dim] != len(self.transforms):
            raise AssertionError(
                f"Input size {x.shape[self.dim]} at dim {self.dim} does not match number of transforms "
                f"{len(self.transforms)}")
        return x.unbind(self.dim)

    def _call(self, x: Tensor) -> Tensor:
        return tt.stack([t(p) for t, p in zip(self.transforms, self._slices(x), strict=True)], self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        return tt.stack([t.inv(p) for t, p in zip(self.transforms, self._slices(y), strict=True)],
                        self.dim)  # fmt: skip

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        terms = [t.log_abs_det_jacobian(a, b)
                 for t, a, b in zip(self.transforms, self._slices(x), self._slices(y), strict=True)]
        return tt.stack(terms, self.dim)
