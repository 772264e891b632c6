"""Parameter: a tensor that a Module lists among its parameters."""

from __future__ import annotations

from typing import Any

import teletensor as tt

from .._tensor import Tensor

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A leaf tensor on the memory of `data`, which modules register when it is assigned to them.

    `data` defaults to an empty tensor. The history of `data` is left behind (as by `detach()`).
    Raises RuntimeError when requires_grad is True and the dtype is not a floating-point one.
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = tt.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(f"Parameter: data must be a Tensor, not {type(data).__name__}")
        parameter: Parameter = Tensor._make_subclass(cls, data, requires_grad)
        return parameter

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        known = memo.get(id(self))
        if known is not None:
            return known  # type: ignore[no-any-return]
        copy = type(self)(self.detach().clone(), self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()
