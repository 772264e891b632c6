"""Parameter: a tensor that a Module lists among its parameters."""

from __future__ import annotations

from typing import Any

import teletensor as tt

from .._tensor import Tensor

__all__ = ["Buffer", "Parameter"]


class Parameter(Tensor):
    """A leaf tensor on the memory of `data`, which modules register when it is assigned to them.

    `data` defaults to an empty tensor. The history of `data` is left behind (as by `detach()`).
    Raises TypeError if `data` is no tensor, RuntimeError when requires_grad is True and its dtype is
    not a floating-point one.
    """

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        super().__init__(tt.empty(0) if data is None else data)
        if requires_grad:
            self.requires_grad = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        known = memo.get(id(self))
        if known is not None:
            return known  # type: ignore[no-any-return]
        copy = type(self)(self.detach().clone(), self.requires_grad)
        memo[id(self)] = copy
        return copy


class Buffer(Tensor):
    """A tensor that a module registers as a buffer when it is assigned to it; with persistent=False
    it is left out of `state_dict()`."""

    persistent: bool

    def __init__(
        self,
        data: Tensor | None = None,
        *,
        requires_grad: bool = False,
        persistent: bool = True,
    ) -> None:
        super().__init__(tt.empty(0) if data is None else data)
        self.persistent = persistent
        if requires_grad:
            self.requires_grad = True
