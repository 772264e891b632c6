"""Parameter: a tensor that a Module registers as one of its parameters."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import _api as tt
from .._tensors.tensor import Tensor, copied_for

__all__ = [
    "Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "UninitializedTensorMixin",
]  # fmt: skip

_UNKNOWN = (
    "Attempted to use an uninitialized parameter in {}. This error happens when you are using a lazy "
    "module or explicitly manipulating uninitialized tensors; call forward with a dummy batch first."
)


class Parameter(Tensor):
    """A leaf tensor that shares the memory of `data`; modules register it when it is assigned to them.

    `data` defaults to an empty tensor. The parameter is detached from the graph of `data`, as by
    `detach()`. TypeError if `data` is not a tensor, RuntimeError if requires_grad is True and its dtype is
    not a floating-point dtype. If `data` is a DTensor, the parameter is this rank's part of it (see
    `distribute_module`).
    """

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        convert = getattr(type(data), "_for_parameter", None)
        if convert is not None:
            data = convert(data, self)
        super().__init__(tt.empty(0) if data is None else data)
        if requires_grad:
            self.requires_grad = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        known = memo.get(id(self))
        if known is not None:
            return known  # type: ignore[no-any-return]
        copy = type(self)(copied_for(self, memo), self.requires_grad)
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


class UninitializedTensorMixin:
    """Base class of tensors whose shape is not known yet."""

    _becomes: ClassVar[type]

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Allocates memory of this shape and makes the tensor an ordinary one."""
        own: Any = self
        old = own.detach()
        own.data = tt.empty(shape, dtype=dtype or old.dtype, device=device or old.device)
        own.__class__ = self._becomes

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def shape(self) -> Any:
        """RuntimeError: the shape is not known yet."""
        raise RuntimeError(_UNKNOWN.format("shape"))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        own: Any = self
        if id(self) not in memo:
            memo[id(self)] = type(self)(own.requires_grad, own.device, own.dtype)  # type: ignore[call-arg]
        return memo[id(self)]


class UninitializedParameter(UninitializedTensorMixin, Parameter):
    """A parameter whose shape is not known yet."""

    _becomes = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        Parameter.__init__(self, tt.empty(0, device=device, dtype=dtype), requires_grad)


class UninitializedBuffer(UninitializedTensorMixin, Buffer):
    """A buffer whose shape is not known yet."""

    _becomes = Buffer

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None) -> None:
        Buffer.__init__(self, tt.empty(0, device=device, dtype=dtype))
