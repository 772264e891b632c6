"""Forward mode: dual numbers, which are tensors with a tangent in addition to their value."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _core
from .._core import Tensor, ops

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual",
           "unpack_dual"]

_levels: list[int] = []


class UnpackedDualTensor(NamedTuple):
    """The result of unpack_dual; the tangent of a constant is None."""

    primal: Tensor
    tangent: Tensor | None


def enter_dual_level() -> int:
    """Opens a level and returns its number. Levels can be nested."""
    _core.push_forward(_levels)
    return len(_levels) - 1


def exit_dual_level(*, level: int | None = None) -> None:
    """Ends the innermost level, or the one with that number, and discards its tangents."""
    number = len(_levels) - 1 if level is None else level
    if number != len(_levels) - 1 or number < 0:
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is "
            "not supported.")
    _core.pop_level(_levels)


class dual_level(_core.Scope):
    """A level for the block of a `with` statement.

    >>> with tt.autograd.forward_ad.dual_level():
    ...     x = tt.autograd.forward_ad.make_dual(tt.tensor(2.0), tt.tensor(1.0))
    ...     print(tt.autograd.forward_ad.unpack_dual(x * x).tangent)
    tensor(4.)
    """
    def _save(self) -> int:
        return len(_levels)

    def _apply(self) -> int:
        return enter_dual_level()

    def _restore(self, state: int, kind: Any) -> None:
        while len(_levels) > state:
            exit_dual_level()


def _id(level: int | None, what: str) -> int:
    if not _levels:
        raise RuntimeError(f"Trying to {what} a dual Tensor for forward AD but no level exists, make "
                           "sure to enter_dual_level() first.")
    return _levels[-1 if level is None else level]


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """Returns a tensor with tensor's value and history whose `tangent` is propagated through later
    operations.

    It has memory of its own: a write to it does not change `tensor`.
    """
    number = _id(level, "create")
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ValueError(f"Expected primal to be floating point or complex, but got: {tensor.dtype}")
    if not (tangent.dtype.is_floating_point or tangent.dtype.is_complex):
        raise ValueError(f"Expected tangent to be floating point or complex, but got: {tangent.dtype}")
    if tensor.shape != tangent.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original "
            f"Tensor, this is not supported. Tensor is of size {list(tensor.shape)} while the given "
            f"forward gradient is of size {list(tangent.shape)}.")
    dual: Tensor = ops["clone"](tensor)
    _core.set_tangent(dual, tangent, number)
    return dual


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Returns the value alone and the tangent, which is None for a constant at this level."""
    if not _levels and level is None:
        return UnpackedDualTensor(tensor, None)
    number = _id(level, "unpack")
    tangent = _core.tangent_of(tensor, number)
    if tangent is None:
        return UnpackedDualTensor(tensor, None)
    with _core.DepthScope(_core.below(number)):
        primal = ops["clone"](tensor)
    return UnpackedDualTensor(primal, tangent)
