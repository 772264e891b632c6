"""The history of objects that are made of tensors."""

from __future__ import annotations

from typing import Any, TypeVar

from .._core import Tensor

__all__ = ["HistoryOfData"]

H = TypeVar("H", bound="HistoryOfData")


class HistoryOfData:
    """Has the history of its elements, the dense tensor `_data`."""

    _data: Tensor

    @property
    def requires_grad(self) -> bool:
        """Do operations on it record history?"""
        return self._data.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._data.requires_grad = value

    def requires_grad_(self: H, requires_grad: bool = True) -> H:
        """Sets requires_grad; returns the tensor."""
        self._data.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Was it made by the program rather than by an operation?"""
        return self._data.is_leaf

    @property
    def grad_fn(self) -> Any:
        """The node of the tape that made the elements."""
        return self._data.grad_fn
