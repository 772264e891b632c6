"""MaskedTensor: a tensor of which the elements where a mask is false do not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from .. import _api as tt
from .._core import Tensor
from .._tensors.history import HistoryOfData

__all__ = ["FORMS", "MaskedTensor", "as_masked_tensor", "is_masked_tensor", "masked_tensor"]

# The forms for masked arguments of functions and methods, by name (`masked/__init__.py` fills it).
FORMS: dict[str, Callable[..., Any]] = {}

_DTYPES = (tt.float16, tt.float32, tt.float64, tt.bool, tt.int8, tt.int16, tt.int32, tt.int64)


def _checked(data: Any, mask: Any) -> None:
    if not isinstance(data, Tensor):
        raise TypeError("data must be a Tensor")
    if not isinstance(mask, Tensor):
        raise TypeError("mask must be a Tensor")
    if mask.dtype != tt.bool:
        raise TypeError("mask must have dtype bool.")
    if data.dtype not in _DTYPES:
        raise TypeError(f"{data.dtype} is not supported in MaskedTensor.")
    if data.dim() != mask.dim():
        raise ValueError("data.dim() must equal mask.dim()")
    if data.shape != mask.shape:
        raise ValueError("data.size() must equal mask.size()")


class MaskedTensor(HistoryOfData):
    """A tensor with a mask [same shape] of bool: reductions leave out the elements at which it is false,
    and other functions compute them without meaning. `masked_tensor` makes one.

    The gradient of a masked tensor is one, with the same mask. Functions that have no form for masked
    tensors raise NotImplementedError.
    """

    def __init__(self, data: Tensor, mask: Tensor, requires_grad: bool = False) -> None:
        _checked(data, mask)
        self._data, self._mask = data.detach().clone(), mask.detach().clone()
        if requires_grad:
            self._data.requires_grad = True

    @classmethod
    def _of(cls, data: Tensor, mask: Tensor) -> MaskedTensor:
        """A masked tensor that has the history of data."""
        made = cls.__new__(cls)
        made._data, made._mask = data, mask
        return made

    # ------------------------------------------------------------ parts

    def get_data(self) -> Tensor:
        """The elements, with and without meaning, as a tensor through which gradients flow."""
        return self._data

    def get_mask(self) -> Tensor:
        """The mask."""
        return self._mask

    def to_tensor(self, value: Any) -> Tensor:
        """The elements, with `value` where the mask is false."""
        filled: Tensor = self._data.masked_fill(~self._mask, value)
        return filled

    # ------------------------------------------------------------ facts

    @property
    def shape(self) -> tt.Size:
        """The size of each dimension."""
        return tt.Size(self._data.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self._data.dtype

    @property
    def device(self) -> Any:
        """The device of the elements."""
        return self._data.device

    @property
    def layout(self) -> Any:
        """teletensor.strided."""
        return self._data.layout

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._data.dim()

    is_sparse = False

    def is_sparse_coo(self) -> bool:
        """Returns False."""
        return False

    def is_sparse_csr(self) -> bool:
        """Returns False."""
        return False

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one size of it."""
        return self._data.size(dim)

    def dim(self) -> int:
        """The number of dimensions."""
        return self._data.dim()

    def numel(self) -> int:
        """The number of elements."""
        return self._data.numel()

    def __len__(self) -> int:
        return len(self._data)

    __hash__ = object.__hash__

    def item(self) -> Any:
        """The only element as a number. ValueError if its mask is false."""
        if not bool(self._mask):
            raise ValueError("item(): the element is masked out")
        return self._data.item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def numpy(self) -> NoReturn:
        """TypeError: use to_tensor(value)."""
        raise TypeError("a masked tensor cannot be converted to an array; call to_tensor(value)")

    tolist = __array__ = numpy

    # ------------------------------------------------------------ history

    def _gradient(self, found: Tensor) -> MaskedTensor:
        """The gradient of the tensor for that of its elements."""
        return MaskedTensor._of(found, self._mask)

    @property
    def grad(self) -> MaskedTensor | None:
        """The gradient, with the mask of this tensor; None if there is none."""
        found = self._data.grad
        return None if found is None else self._gradient(found)

    @grad.setter
    def grad(self, value: MaskedTensor | None) -> None:
        self._data.grad = None if value is None else value._data

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Adds the gradients of this tensor to .grad of the leaves on which it depends."""
        seed = gradient.to_tensor(0) if isinstance(gradient, MaskedTensor) else gradient
        self._data.backward(seed, retain_graph, create_graph, inputs)

    def detach(self) -> MaskedTensor:
        """The same memory without history."""
        return MaskedTensor._of(self._data.detach(), self._mask)

    def clone(self) -> MaskedTensor:
        """A copy, through which gradients flow."""
        return MaskedTensor._of(self._data.clone(), self._mask.clone())

    def to(self, *args: Any, **kwargs: Any) -> MaskedTensor:
        """The tensor in another dtype, or on another device."""
        data = self._data.to(*args, **kwargs)
        return self if data is self._data else MaskedTensor._of(data, self._mask.to(data.device))

    def to_dense(self) -> MaskedTensor:
        """The tensor itself: there are no sparse masked tensors."""
        return self

    # ------------------------------------------------------------ printing

    def __repr__(self) -> str:
        data, mask = self._data.detach(), self._mask
        numbers, given = (data.float() if data.dtype == tt.float16 else data).tolist(), mask.tolist()
        if not self.ndim:
            text = _number(numbers) if given else "--"
            return f"MaskedTensor({text}, {given})"
        body = _rows(numbers, given, self.ndim)
        return "MaskedTensor(\n" + "\n".join("  " + line for line in body.split("\n")) + "\n)"

    # ------------------------------------------------------------ forms of functions

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the form of a function of the package for masked arguments."""
        name = func.__name__
        if (kwargs or {}).get("out") is not None:
            raise NotImplementedError(f"{name}(): out= is not supported with masked tensors")
        given = {key: value for key, value in (kwargs or {}).items() if key != "out"}
        if name in FORMS:
            return FORMS[name](*args, **given)
        if args and isinstance(args[0], MaskedTensor) and name in MaskedTensor.__dict__:
            return getattr(args[0], name)(*args[1:], **given)
        _unsupported(name)

    def __getattr__(self, name: str) -> Any:
        """The methods that have a form; the other methods of Tensor raise an error when they are called."""
        if name in FORMS:
            return lambda *args, **kwargs: FORMS[name](self, *args, **kwargs)
        if callable(getattr(Tensor, name, None)) and not name.startswith("__"):
            return lambda *args, **kwargs: _unsupported(name)
        raise AttributeError(f"masked tensors have no attribute {name!r}")


def _unsupported(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}(): there is no form for masked tensors; call it with x.to_tensor(value)"
    )


def _number(value: Any) -> str:
    return f"{value:8.4f}" if isinstance(value, float) else str(value)


def _rows(numbers: Any, given: Any, rank: int) -> str:
    if rank == 1:
        texts = [_number(value) for value in numbers]
        width = max(
            (len(text) if known else 8 for text, known in zip(texts, given, strict=True)), default=0
        )
        shown = [text if known else "--".rjust(width) for text, known in zip(texts, given, strict=True)]
        return "[" + ", ".join(shown) + "]"
    inner = [_rows(a, b, rank - 1) for a, b in zip(numbers, given, strict=True)]
    return "[\n" + ",\n".join("\n".join("  " + line for line in text.split("\n")) for text in inner) + "\n]"


def masked_tensor(data: Tensor, mask: Tensor, requires_grad: bool = False) -> MaskedTensor:
    """A masked tensor with copies of data and mask (bool, of the same shape), without history.

    >>> x = tt.masked.masked_tensor(tt.tensor([1.0, 2.0, 4.0]), tt.tensor([True, False, True]))
    >>> x.sum()
    MaskedTensor(  5.0000, True)
    """
    return MaskedTensor(data, mask, requires_grad)


def as_masked_tensor(data: Tensor, mask: Tensor) -> MaskedTensor:
    """A masked tensor through which gradients flow to data; they are 0 where the mask is false."""
    _checked(data, mask)
    # The other branch keeps the elements, and stops their gradients, which may be NaN.
    return MaskedTensor._of(tt.where(mask, data, data.detach()) if data.requires_grad else data, mask)


def is_masked_tensor(obj: Any, /) -> bool:
    """Returns whether the object is a MaskedTensor."""
    return isinstance(obj, MaskedTensor)
