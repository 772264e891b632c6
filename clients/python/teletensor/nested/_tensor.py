"""NestedTensor: a batch of tensors that differ in one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .. import _api as tt
from .._core import Tensor
from .._functions.common import wrap_dim
from .._tensors.history import HistoryOfData
from ..nn import functional
from ._ragged import Ragged

__all__ = ["FORMS", "OF_VALUES", "NestedTensor", "of_values", "to_padded_tensor", "unsupported"]

# The forms for nested arguments of functions and methods, by name (`nested/__init__.py` fills it).
FORMS: dict[str, Callable[..., Any]] = {}
# The names of functions that are called with the values, whatever their other arguments are.
OF_VALUES: set[str] = set()


def of_values(function: Callable[..., Any], input: NestedTensor, *args: Any, **kwargs: Any) -> NestedTensor:
    """The nested tensor of what a pointwise function returns for the values; the tensor itself if the
    function has changed them in place."""
    rest = [each._data if isinstance(each, NestedTensor) else each for each in args]
    values = function(input._data, *rest, **kwargs)
    return input if values is input._data else input._like(values)


def unsupported(name: str, why: str = "") -> NoReturn:
    raise NotImplementedError(
        f"{name}(): {why or 'there is no form for nested tensors'}; call it with x.values(), with each of "
        "x.unbind(), or with x.to_padded_tensor(padding)"
    )


class NestedTensor(HistoryOfData):
    """A batch of tensors that differ in one size: `nested_tensor`, `as_nested_tensor` and
    `nested_tensor_from_jagged` make nested tensors. Dimension 0 is that of the batch, and dimension
    `ragged_dim`, 1 unless dimensions were exchanged, is the ragged one, whose size in `shape` is an object
    instead of a number.

    The values [total, ...] have the rows of all tensors of the batch. Their history is that of the nested
    tensor. Functions that have no form for nested tensors raise NotImplementedError.
    """

    layout = tt.jagged
    is_nested = True
    is_sparse = is_quantized = False

    def __init__(self, values: Tensor, ragged: Ragged, ragged_dim: int = 1) -> None:
        self._data, self._ragged, self._dim = values, ragged, ragged_dim

    def _like(self, values: Tensor, ragged_dim: int | None = None) -> NestedTensor:
        """A nested tensor of the same lengths with other values."""
        return NestedTensor(values, self._ragged, self._dim if ragged_dim is None else ragged_dim)

    def _rows(self) -> Tensor:
        """The values [total, ...] with the ragged dimension first."""
        return self._data.movedim(self._dim - 1, 0) if self._dim > 1 else self._data

    def _of_rows(self, rows: Tensor) -> NestedTensor:
        """A nested tensor of the same lengths with these rows [total, ...]."""
        return self._like(rows.movedim(0, self._dim - 1) if self._dim > 1 else rows)

    # ------------------------------------------------------------ parts

    def values(self) -> Tensor:
        """The elements of all tensors of the batch, with their history."""
        return self._data

    def offsets(self) -> Tensor:
        """The first row [batch + 1] of each tensor of the batch in the values, and their number at the
        end (int64)."""
        return self._ragged.offsets()

    def lengths(self) -> None:
        """Returns None, as for all nested tensors of PyTorch that have no holes."""
        return None

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """The tensors of the batch, through which gradients flow."""
        if wrap_dim(dim, self.ndim) != 0:
            raise RuntimeError("unbind(): only supported for dim=0 of nested tensors")
        parts = self._data.split(list(self._ragged.lengths), self._dim - 1)
        return tuple(parts)

    def to_padded_tensor(self, padding: float, output_size: Any = None) -> Tensor:
        """As `nested.to_padded_tensor`."""
        return to_padded_tensor(self, padding, output_size)

    # ------------------------------------------------------------ facts

    @property
    def ragged_dim(self) -> int:
        """The number of the ragged dimension."""
        return self._dim

    @property
    def shape(self) -> tuple[Any, ...]:
        """The size of each dimension; that of the ragged one is an object."""
        sizes: list[Any] = list(self._data.shape)
        sizes[self._dim - 1] = self._ragged
        return (self._ragged.batch, *sizes)

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self._data.dtype

    @property
    def device(self) -> Any:
        """The device of the elements."""
        return self._data.device

    @property
    def ndim(self) -> int:
        """The number of dimensions, with that of the batch."""
        return self._data.dim() + 1

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one size of it."""
        return self.shape if dim is None else self.shape[wrap_dim(dim, self.ndim)]

    def dim(self) -> int:
        """The number of dimensions, with that of the batch."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements of all tensors of the batch."""
        return self._data.numel()

    def is_floating_point(self) -> bool:
        """Is its dtype a floating-point dtype?"""
        return self._data.is_floating_point()

    def __len__(self) -> int:
        return self._ragged.batch

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind())

    def __bool__(self) -> bool:
        raise RuntimeError("Boolean value of a nested tensor is ambiguous")

    __hash__ = object.__hash__

    # ------------------------------------------------------------ history

    @property
    def grad(self) -> NestedTensor | None:
        """The gradient, of the same lengths; None if there is none."""
        found = self._data.grad
        return None if found is None else self._like(found)

    @grad.setter
    def grad(self, value: NestedTensor | None) -> None:
        self._data.grad = None if value is None else value._data

    def backward(
        self,
        gradient: NestedTensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Adds the gradients of this tensor, weighted with a nested tensor of the same lengths, to .grad of
        the leaves on which it depends."""
        if not isinstance(gradient, NestedTensor):
            raise RuntimeError("backward: the gradient of a nested tensor must be a nested tensor")
        if gradient.shape != self.shape:
            raise RuntimeError(f"backward: the gradient has shape {gradient.shape}, expected {self.shape}")
        self._data.backward(gradient._data, retain_graph, create_graph, inputs)

    def detach(self) -> NestedTensor:
        """The same memory without history."""
        return self._like(self._data.detach())

    def to(self, *args: Any, **kwargs: Any) -> NestedTensor:
        """The tensor in another dtype, or on another device."""
        data = self._data.to(*args, **kwargs)
        if data is self._data:
            return self
        return NestedTensor(data, self._ragged.on(data.device), self._dim)

    def numpy(self) -> NoReturn:
        """TypeError: the tensors of the batch differ in shape."""
        raise TypeError("a nested tensor cannot be converted to an array; call unbind()")

    __array__ = numpy

    def tolist(self) -> list[Any]:
        """The elements of each tensor of the batch as nested lists."""
        return [part.tolist() for part in self.unbind()]

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"NestedTensor(size=({sizes}), lengths={list(self._ragged.lengths)}, dtype={self.dtype})"

    # ------------------------------------------------------------ forms of functions

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the form of a function of the package for nested arguments."""
        name = func.__name__
        given = {key: value for key, value in (kwargs or {}).items() if key != "out" or value is not None}
        if "out" in given:
            raise NotImplementedError(f"{name}(): out= is not supported with nested tensors")
        if name in OF_VALUES and args and isinstance(args[0], NestedTensor):
            # Functions of the same name in different modules differ in their arguments.
            return of_values(func, *args, **given)
        if name in FORMS:
            return FORMS[name](*args, **given)
        if args and isinstance(args[0], NestedTensor) and name in NestedTensor.__dict__:
            return getattr(args[0], name)(*args[1:], **given)
        unsupported(name)

    def __getattr__(self, name: str) -> Any:
        """The methods that have a form; the other methods of Tensor raise an error when they are called."""
        if name in FORMS:
            return lambda *args, **kwargs: FORMS[name](self, *args, **kwargs)
        if callable(getattr(Tensor, name, None)) and not name.startswith("__"):
            return lambda *args, **kwargs: unsupported(name)
        raise AttributeError(f"nested tensors have no attribute {name!r}")


def to_padded_tensor(input: NestedTensor, padding: float, output_size: Any = None) -> Tensor:
    """The tensors of the batch as one dense tensor: [batch, length, ...] with the length of the longest, or
    `output_size`. Elements that a tensor does not have are `padding`.

    >>> x = tt.nested.nested_tensor([tt.ones(1), tt.ones(3)])
    >>> tt.nested.to_padded_tensor(x, 0.0).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    if not isinstance(input, NestedTensor):
        raise TypeError("to_padded_tensor(): expected a nested tensor")
    ragged, dim, longest = input._ragged, input._dim, input._ragged.longest
    wanted = None if output_size is None else tuple(int(size) for size in output_size)
    if wanted is not None:
        own = (*(longest if size is ragged else size for size in input.shape),)
        if len(wanted) != len(own) or any(a < b for a, b in zip(wanted, own, strict=True)):
            raise RuntimeError(
                "Value in output_size is less than NestedTensor padded size. Truncation is not supported. "
                f"(output_size {list(wanted)}, padded size {list(own)})"
            )
        longest = wanted[dim]
    padded = ragged.pad(input._rows(), padding, longest).movedim(1, dim)
    if wanted is None or tuple(padded.shape) == wanted:
        return padded
    steps = [n for size, own in zip(wanted[::-1], padded.shape[::-1], strict=True) for n in (0, size - own)]
    filled: Tensor = functional.pad(padded, steps, value=padding)
    return filled


def _operator(name: str, reflected: bool = False) -> Any:
    def operate(self: NestedTensor, other: Any) -> Any:
        if not isinstance(other, (NestedTensor, Tensor, bool, int, float, complex)):
            return NotImplemented
        return FORMS[name](other, self) if reflected else FORMS[name](self, other)

    return operate


for _name, _form in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "pow": "pow",
    "matmul": "matmul", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}.items():  # fmt: skip
    setattr(NestedTensor, f"__{_name}__", _operator(_form))
    setattr(NestedTensor, f"__r{_name}__", _operator(_form, True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(NestedTensor, f"__{_name}__", _operator(_name))
for _name, _form in {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "getitem": "getitem"}.items():
    setattr(NestedTensor, f"__{_name}__", lambda self, *args, form=_form: FORMS[form](self, *args))
