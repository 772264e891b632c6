"""Functions that create random tensors. `generator=` takes a `Generator`; without it the default generator
of the process is used."""

from __future__ import annotations

import math
import warnings
from typing import Any

from ... import _core
from ..._core import Tensor, ops
from ..._tensors.convert import resolve_device
from ..._tensors.generator import Generator, draw
from ..._tensors.memory_format import made_like
from ..common import factory, function_only, made, options, sizes_of, tied

__all__ = [
    "bernoulli", "binomial", "dropout", "multinomial", "normal", "poisson", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm",
]


def _drawn(op: str, size: Any, dtype: Any, device: Any, generator: Generator | None) -> Tensor:
    if not dtype.is_complex:
        return draw(op, size, dtype, device, generator=generator)
    parts = draw(op, (*size, 2), dtype.to_real(), device, generator=generator)
    return ops["view_as_complex"](parts if op == "rand" else ops["mul"](parts, 0.5**0.5))


def _drawn_like(op: str, input: Tensor, dtype: Any, device: Any, generator: Generator | None,
                memory_format: Any) -> Tensor:
    dtype, device = dtype or input.dtype, device or input.device
    return made_like(input, lambda size: _drawn(op, size, dtype, device, generator), memory_format)


@factory
def rand(*size: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """Uniform random numbers in [0, 1); for complex dtypes in both parts."""
    dtype, device = options(dtype, device)
    return made(_drawn("rand", sizes_of(size), dtype, device, generator), requires_grad)


@factory
def randn(*size: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None,
          requires_grad: bool = False) -> Tensor:
    """Standard normal random numbers; for complex dtypes each part has variance 1/2."""
    dtype, device = options(dtype, device)
    return made(_drawn("randn", sizes_of(size), dtype, device, generator), requires_grad)


# The largest range of consecutive integers that each floating-point dtype represents exactly.
WHOLE = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53, "bool": 2}


def _warn_of_rounding(low: int, high: int, dtype: Any, stacklevel: int = 4) -> None:
    """Warns if the dtype rounds some of the integers in [low, high). The caller's caller is a `factory`,
    unless another stacklevel is given."""
    most = WHOLE[dtype.name] if dtype.is_floating_point else 0
    for name, value in (("from", low), ("to - 1", high - 1)):
        if most and not -most <= value <= most:
            warnings.warn(f"{name} is out of bounds [-{most}, {most}]: {dtype.name} represents only the "
                          "integers in this range exactly, so the distribution is not uniform",
                          stacklevel=stacklevel)


@factory
def randint(low: int = 0, high: Any = None, size: Any = None, *, generator: Generator | None = None,
            dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform random integers in [low, high); `randint(high, size)` means low = 0."""
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    dtype = dtype or _core.int64
    _warn_of_rounding(low, high, dtype)
    return made(draw("randint", low, high, sizes_of((size,)), dtype, resolve_device(device),
                     generator=generator), requires_grad)


@factory
def randperm(n: int, *, generator: Generator | None = None, dtype: Any = None,
             device: Any = None) -> Tensor:
    """A random permutation of 0 ... n-1."""
    return draw("randperm", n, dtype or _core.int64, resolve_device(device),
                generator=generator)


@function_only
@factory
def rand_like(input: Tensor, *, generator: Generator | None = None, dtype: Any = None,
              device: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Tensor:
    """Uniform random numbers in [0, 1) with input's shape."""
    return made(_drawn_like("rand", input, dtype, device, generator, memory_format), requires_grad)


@function_only
@factory
def randn_like(input: Tensor, *, generator: Generator | None = None, dtype: Any = None,
               device: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Tensor:
    """Standard normal random numbers with input's shape."""
    return made(_drawn_like("randn", input, dtype, device, generator, memory_format), requires_grad)


@function_only
@factory
def randint_like(input: Tensor, low: Any = None, high: Any = None, *, generator: Generator | None = None,
                 dtype: Any = None, device: Any = None, requires_grad: bool = False,
                 memory_format: Any = None) -> Tensor:
    """Uniform random integers in [low, high) with input's shape; `randint_like(x, high)` means low = 0."""
    if high is None:
        low, high = 0, low
    dtype, device = dtype or input.dtype, device or input.device
    low, high = int(low or 0), int(high)
    _warn_of_rounding(low, high, dtype)
    return made(made_like(input, lambda size: draw("randint", low, high, size, dtype, device,
                                                   generator=generator), memory_format), requires_grad)


@factory
def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Generator | None = None,
           dtype: Any = None, device: Any = None,
           requires_grad: bool = False) -> Tensor:
    """Normal random numbers; mean and std may be tensors whose shapes broadcast. For complex results, a
    number as mean is the mean of both parts. Their derivatives are zero."""
    if isinstance(std, (int, float)) and not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if isinstance(std, Tensor):
        positive = ops["all"](ops["ge"](std, 0))
        std = ops["require"](std, positive, "normal expects all elements of std >= 0.0")
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        like: Any = mean + std if isinstance(mean, Tensor) and isinstance(std, Tensor) else (
            mean if isinstance(mean, Tensor) else std)
        drawn = randn_like(like, generator=generator)
    else:
        drawn = randn(sizes_of((size,)), generator=generator, dtype=dtype, device=device)
        if drawn.dtype.is_complex:
            mean = complex(mean, mean)  # normal_ adds the mean to both parts
    with _core.GradScope(False):
        result: Tensor = drawn * std + mean
    for each in (mean, std):
        if isinstance(each, Tensor):
            result = tied(result, each)
    return made(result, requires_grad)


def bernoulli(input: Tensor, p: Any = None, *, generator: Generator | None = None) -> Tensor:
    """1 with probability input, and 0 otherwise; if p is given, 1 with probability p, in input's shape."""
    if p is None:
        return draw("bernoulli", input, generator=generator)
    return draw("bernoulli_p", input, p, generator=generator)


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *,
                generator: Generator | None = None) -> Tensor:
    """Indices drawn from each row of input with probabilities proportional to its elements."""
    return draw("multinomial", input, num_samples, replacement, generator=generator)


@function_only
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Random numbers of Poisson distributions whose means are input."""
    return draw("poisson", input, generator=generator)


@function_only
def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """The numbers of successes among count trials, each of which succeeds with probability prob."""
    shape = (count + prob)._shape
    return draw("binomial", ops["expand"](count, shape), ops["expand"](prob, shape), generator=generator)


@function_only
def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Sets elements to zero with probability p and divides the remaining ones by 1 - p."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    if input.dtype.is_complex:
        ones = ops["full"](1.0, input._shape, input.dtype.to_real(), input.device)
        kept = ops["dropout"](ones, p)[0]
        return ops["mul"](input, kept)
    return ops["dropout"](input, p)[0]


# ---------------------------------------------------------------- methods that fill

def _open_uniform(x: Tensor, generator: Generator | None) -> Any:
    """Uniform random numbers in (0, 1] with x's shape, in a floating-point dtype that converts to x's."""
    wide = x.dtype if x.dtype == _core.float64 else _core.float32
    return 1 - draw("rand", x._shape, wide, x.device, generator=generator)


def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with uniform random numbers in [a, b), both parts of a complex one."""
    if isinstance(self, Tensor) and self.dtype.is_complex:
        draw("uniform_", ops["view_as_real"](self), a, b, generator=generator)
        return self
    return draw("uniform_", self, a, b, generator=generator)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *,
            generator: Generator | None = None) -> Tensor:
    """Fills the tensor with normal random numbers; in a complex tensor each part has half of the
    variance."""
    if isinstance(self, Tensor) and self.dtype.is_complex:
        draw("normal_", ops["view_as_real"](self), mean, std * 0.5**0.5, generator=generator)
        return self
    return draw("normal_", self, mean, std, generator=generator)


def random_(self: Tensor, from_: int | None = None, to: Any = ..., *,
            generator: Generator | None = None) -> Tensor:
    """Fills the tensor with uniform random integers in [from_, to); `random_(to)` means from_ = 0. If `to`
    is None, the range ends with the largest integer up to which the dtype represents all integers."""
    if to is ... and from_ is not None:
        from_, to = 0, from_
    from_ = from_ or 0
    if to is None or to is ...:
        if self.dtype.name in WHOLE:
            to = WHOLE[self.dtype.name]
        else:
            to = 2 ** (8 * self.element_size() - (0 if self.dtype.name.startswith("u") else 1))
            to = min(to, 2**63 - 1)
    _warn_of_rounding(from_, to, self.dtype, stacklevel=3)
    return draw("random_from_", self, from_, to, generator=generator)


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with 1 with probability p (a number or a tensor), and with 0 otherwise."""
    if isinstance(p, Tensor):
        chances = ops["expand"](ops["cast"](p, _core.float64), self._shape)
        return ops["copy_"](self, draw("bernoulli", chances, generator=generator))
    return draw("bernoulli_p_", self, p, generator=generator)


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with random numbers of the exponential distribution with rate lambd."""
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    if not self.dtype.is_floating_point:
        raise NotImplementedError(f"exponential_ is not implemented for {self.dtype.name}")
    return ops["copy_"](self, ops["log"](_open_uniform(self, generator)) / -lambd)


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with random numbers of trials up to the first success, which has probability p."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    trials = ops["ceil"](ops["log"](_open_uniform(self, generator)) / math.log1p(-p))
    return ops["copy_"](self, ops["clamp"](trials, 1, None))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *,
                generator: Generator | None = None) -> Tensor:
    """Fills the tensor with exp of normal random numbers with this mean and standard deviation."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    if not self.dtype.is_floating_point:
        raise NotImplementedError(f"log_normal_ is not implemented for {self.dtype.name}")
    wide = self.dtype if self.dtype == _core.float64 else _core.float32
    drawn: Any = draw("randn", self._shape, wide, self.device, generator=generator)
    return ops["copy_"](self, ops["exp"](drawn * std + mean))


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *,
            generator: Generator | None = None) -> Tensor:
    """Fills the tensor with random numbers of the Cauchy distribution."""
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    if not self.dtype.is_floating_point:
        raise NotImplementedError(f"cauchy_ is not implemented for {self.dtype.name}")
    angle = (_open_uniform(self, generator) - 0.5) * math.pi
    return ops["copy_"](self, ops["tan"](angle) * sigma + median)


FILLS = {f.__name__: f for f in (uniform_, normal_, random_, bernoulli_, exponential_, geometric_,
                                 log_normal_, cauchy_)}
