"""SparseTensor, the base class of the layouts, and how functions of the package reach their sparse
forms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from .. import _api as tt, _core
from .._core import Tensor
from .._files.stored import StoredSparse
from .._functions.common import wrap_dim
from .._tensors.history import HistoryOfData
from .._tensors.repr import body_of, text_with
from .._tensors.tensor import Moving, copied_for

__all__ = ["FORMS", "SparseTensor", "unsupported"]

S = TypeVar("S", bound="SparseTensor")

# The forms for sparse arguments of functions and methods, by name (`sparse/__init__.py` fills it).
FORMS: dict[str, Callable[..., Any]] = {}


def unsupported(name: str, given: SparseTensor) -> NoReturn:
    raise NotImplementedError(
        f"{name}(): there is no form for sparse tensors (layout {given.layout}); call it with x.to_dense()"
    )


class SparseTensor(HistoryOfData):
    """A tensor that stores only some elements, its values; all others are zero. `sparse_coo_tensor`,
    `sparse_csr_tensor`, `Tensor.to_sparse` and others make sparse tensors.

    The values are a dense tensor, whose history is that of the sparse tensor: gradients of a sparse leaf
    have its indices. Methods, operators and functions that have no form for sparse tensors raise
    NotImplementedError.
    """

    layout: Any
    _shape: tuple[int, ...]
    _changes = 0  # more than the versions that the tensor had before the last change by _become()

    # ------------------------------------------------------------ what a layout implements

    def _like(self: S, values: Tensor) -> S:
        """The tensor with other values at the same places."""
        raise NotImplementedError

    def _gradient(self: S, found: Tensor) -> S:
        """The gradient of the tensor for that of its values."""
        return self._like(found)

    def _parts(self) -> dict[str, Tensor]:
        """The index tensors by name."""
        raise NotImplementedError

    def _moved(self: S, move: Callable[[Tensor], Tensor]) -> S:
        """The tensor with each of its dense tensors replaced by what `move` returns."""
        raise NotImplementedError

    def to_sparse_coo(self) -> Any:
        """The tensor in COO layout."""
        raise NotImplementedError

    def sparse_dim(self) -> int:
        """The number of dimensions that the indices cover."""
        raise NotImplementedError

    # ------------------------------------------------------------ facts

    @property
    def shape(self) -> tt.Size:
        """The size of each dimension."""
        return tt.Size(self._shape)

    @property
    def dtype(self) -> _core.dtype:
        """The dtype of the values."""
        return self._data.dtype

    @property
    def device(self) -> _core.device:
        """The device of indices and values."""
        return self._data.device

    @property
    def _session(self) -> Any:
        return self._data._session

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def is_sparse(self) -> bool:
        """Is its layout COO?"""
        return self.layout is tt.sparse_coo

    @property
    def is_sparse_csr(self) -> bool:
        """Is its layout CSR?"""
        return self.layout is tt.sparse_csr

    @property
    def is_cuda(self) -> bool:
        """Is it on a GPU?"""
        return bool(self._data.is_cuda)

    @property
    def is_cpu(self) -> bool:
        """Is it on the daemon's CPU?"""
        return bool(self._data.is_cpu)

    @property
    def is_meta(self) -> bool:
        """Has it no data?"""
        return bool(self._data.is_meta)

    is_quantized = is_nested = False

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one size of it."""
        return self.shape if dim is None else self._shape[wrap_dim(dim, self.ndim)]

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    @property
    def _batch(self) -> tuple[int, ...]:
        """The sizes of the dimensions that number the matrices of a batch; COO tensors have none."""
        return ()

    def dense_dim(self) -> int:
        """The number of dimensions of each value."""
        return self.ndim - self.sparse_dim() - len(self._batch)

    def numel(self) -> int:
        """The number of elements, specified or not."""
        count = 1
        for size in self._shape:
            count *= size
        return count

    nelement, ndimension = numel, dim

    def _nnz(self) -> int:
        """The number of values of each matrix."""
        return self._data.shape[len(self._batch)]

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._data.element_size()

    def is_floating_point(self) -> bool:
        """Is its dtype a floating-point dtype?"""
        return self._data.is_floating_point()

    def is_complex(self) -> bool:
        """Is its dtype complex?"""
        return self._data.is_complex()

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Returns False: there are no strides."""
        return False

    @property
    def _version(self) -> int:
        """Counts the changes of the tensor and of its values in place."""
        version: int = self._changes + self._data._version
        return version

    def _values(self) -> Tensor:
        """The values [nnz, ...] without history, coalesced or not."""
        return self._data.detach()

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a 0-d tensor")
        return self._shape[0]

    def __bool__(self) -> bool:
        raise RuntimeError("Boolean value of a sparse tensor is ambiguous")

    __hash__ = object.__hash__

    # ------------------------------------------------------------ history

    @property
    def grad(self: S) -> S | None:
        """The gradient of the elements at the places of this tensor, each place once; None if there is
        none."""
        found = self._data.grad if self.is_leaf else None
        return None if found is None else self._gradient(found)

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            if not isinstance(value, SparseTensor) or value._shape != self._shape:
                raise RuntimeError("the gradient of a sparse tensor must be a sparse tensor of its shape")
            value = self._at_places(value.to_dense())
        self._data.grad = value

    def retain_grad(self) -> None:
        """Has no effect for a leaf; the gradient of another sparse tensor is not kept."""
        if not self.is_leaf:
            unsupported("retain_grad", self)

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Adds the gradients of this tensor, weighted with `gradient` of its shape (sparse or dense), to
        .grad of the leaves on which it depends."""
        if gradient is None:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if isinstance(gradient, SparseTensor):
            gradient = gradient.to_dense()
        if tuple(gradient.shape) != self._shape:
            raise RuntimeError(
                f"backward: the gradient has shape {list(gradient.shape)}, the tensor has "
                f"shape {list(self._shape)}"
            )
        self._data.backward(self._at_places(gradient), retain_graph, create_graph, inputs)

    def _at_places(self, dense: Tensor) -> Tensor:
        """The elements of a dense tensor of this shape at the places of the values."""
        found: Tensor = self.to_sparse_coo()._at_places(dense)
        return found

    @property
    def T(self) -> Any:
        """The dimensions reversed."""
        return self.transpose(0, 1) if self.ndim == 2 else self.permute(list(range(self.ndim))[::-1])

    def detach(self: S) -> S:
        """The same memory without history."""
        return self._moved(lambda x: x.detach())

    @property
    def data(self: S) -> S:
        """The same memory without history."""
        return self.detach()

    def clone(self: S, memory_format: Any = None) -> S:
        """A copy, through which gradients flow."""
        return self._moved(lambda x: x.clone())

    def __copy__(self: S) -> S:
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self: S, memo: dict[int, Any]) -> S:
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        if id(self) not in memo or isinstance(memo, Moving):
            made = self._moved(lambda x: copied_for(x, memo))
            memo[id(self)] = made.requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]

    def _stored(self) -> StoredSparse:
        """The tensor as the parts that `save` writes."""
        name, parts = repr(self.layout).rpartition(".")[2], list(self._parts().values())
        coalesced = bool(getattr(self, "_coalesced", False))
        return StoredSparse(name, parts, self._data.detach(), list(self._shape), coalesced)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a sparse tensor cannot be pickled: pickle its indices and values, or to_dense()")

    # ------------------------------------------------------------ dtype, device, layout

    def to(
        self: S,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        copy: bool = False,
        non_blocking: bool = False,
    ) -> S:
        """The tensor with values of another dtype, or on another device; the tensor itself if nothing
        changes."""
        for arg in args:
            if isinstance(arg, SparseTensor):
                dtype, device = arg.dtype, arg.device
        rest = [arg for arg in args if not isinstance(arg, SparseTensor)]
        values = self._data.to(*rest, dtype=dtype, device=device)
        if values is self._data and not copy:
            return self
        moved = self if values.device == self.device else self._moved(lambda x: x.to(values.device))
        return (moved.clone() if copy else moved)._like(values)

    def cpu(self: S) -> S:
        """The tensor on the daemon's CPU."""
        return self.to("cpu")

    def cuda(self: S, device: Any = None, non_blocking: bool = False) -> S:
        """The tensor on a GPU."""
        return self._moved(lambda x: x.cuda(device))

    def type_as(self: S, other: Any) -> S:
        """The tensor in the dtype of `other`."""
        return self.to(other.dtype)

    def to_dense(self, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
        """The dense tensor; values at the same place are added. Gradients flow to the values."""
        if masked_grad is False:
            raise NotImplementedError(
                "to_dense: a sparse tensor has gradients at its places only, so "
                "masked_grad=False is not possible"
            )
        dense: Tensor = self.to_sparse_coo()._dense()
        return dense if dtype is None else dense.to(dtype)

    def to_sparse(
        self,
        sparse_dim: int | None = None,
        *,
        layout: Any = None,
        blocksize: Any = None,
        dense_dim: int | None = None,
    ) -> Any:
        """The tensor in another sparse layout, COO by default."""
        coo = self.to_sparse_coo()
        if sparse_dim is not None and sparse_dim != coo.sparse_dim():
            return tt.Tensor.to_sparse(self.to_dense(), sparse_dim)
        if layout in (None, tt.sparse_coo):
            return coo
        if layout is tt.sparse_csr:
            return coo.to_sparse_csr(dense_dim)
        if layout is tt.sparse_csc:
            return coo.to_sparse_csc(dense_dim)
        return tt.Tensor.to_sparse(
            self.to_dense(), layout=layout, blocksize=blocksize, dense_dim=self.dense_dim()
        )

    def to_sparse_bsr(self, blocksize: Any, dense_dim: int | None = None) -> Any:
        """The matrix in BSR layout with blocks of (height, width)."""
        return self.to_sparse(layout=tt.sparse_bsr, blocksize=blocksize, dense_dim=dense_dim)

    def to_sparse_bsc(self, blocksize: Any, dense_dim: int | None = None) -> Any:
        """The matrix in BSC layout with blocks of (height, width)."""
        return self.to_sparse(layout=tt.sparse_bsc, blocksize=blocksize, dense_dim=dense_dim)

    def numpy(self, *, force: bool = False) -> NoReturn:
        """TypeError: NumPy has no sparse arrays."""
        raise TypeError("can't convert a sparse tensor to numpy. Use Tensor.to_dense() first.")

    tolist = __array__ = numpy

    def item(self) -> Any:
        """The only element as a number."""
        if self.numel() != 1:
            raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
        return self.to_dense().item()

    def __iter__(self) -> Iterator[Any]:
        return (FORMS["select"](self, 0, i) for i in range(len(self)))

    def __repr__(self) -> str:
        indent = len("tensor(")
        lines = []
        for name, part in {**self._parts(), "values": self._data.detach()}.items():
            prefix = f"{name}=tensor("
            body = "..." if self.is_meta else body_of(part, indent + len(prefix))
            if self.is_meta or part.numel() == 0:
                body += f", size={tuple(part.shape)}"
            lines.append(f"{prefix}{body})")
        parts = [f"size={self._shape}"]
        if not self.is_meta:
            parts.append(f"nnz={self._nnz()}")
        if self.device.type != "cpu":
            parts.insert(0, f"device='{self.device}'")
        if self.dtype not in (tt.get_default_dtype(), tt.int64, tt.bool):
            parts.append(f"dtype={self.dtype}")
        parts.append(f"layout={self.layout}")
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        return text_with("tensor(" + (",\n" + " " * indent).join(lines), parts, indent, self.is_sparse)

    # ------------------------------------------------------------ forms of functions

    def _form(self, name: str) -> Callable[..., Any] | None:
        """The form of a function or method for this layout, if there is one."""
        return FORMS.get(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the form of a function of the package for sparse arguments."""
        name = func.__name__
        given = {key: value for key, value in (kwargs or {}).items() if key != "out" or value is not None}
        if "out" in given:
            raise NotImplementedError(f"{name}(): out= is not supported with sparse tensors")
        sparse = _first([*args, *given.values()])
        form = sparse._form(name)
        if form is not None:
            return form(*args, **given)
        if args and isinstance(args[0], SparseTensor) and hasattr(type(args[0]), name):
            return getattr(args[0], name)(*args[1:], **given)
        unsupported(name, sparse)

    def __getattr__(self, name: str) -> Any:
        """The methods that have a form; the other methods of Tensor raise an error when they are called."""
        form = self._form(name)
        if form is not None:
            return functools.partial(form, self)
        inherited = getattr(tt.Tensor, name, None) if not name.startswith("__") else None
        if callable(inherited):
            return lambda *args, **kwargs: unsupported(name, self)
        raise AttributeError(
            f"sparse tensors (layout {self.layout}) have no attribute {name!r}"
            + ("; x.to_dense() has it" if inherited is not None else "")
        )

    def _become(self, other: SparseTensor, name: str) -> Any:
        """Takes the contents of `other`, the result of the operation `name` in place."""
        if self.requires_grad and _core.grad_mode():
            raise RuntimeError(f"{name}(): a sparse tensor that requires grad cannot be changed in place")
        if other._shape != self._shape or type(other) is not type(self):
            raise RuntimeError(f"{name}(): the result has another shape or layout than the tensor")
        if not _core.can_cast(other.dtype, self.dtype):
            raise RuntimeError(
                f"result type {other.dtype.name} can't be cast to the desired output type {self.dtype.name}"
            )
        self._changes = self._version + 1
        self.__dict__.update(other._like(other._data.to(self.dtype)).__dict__)
        return self


def _first(arguments: list[Any]) -> SparseTensor:
    for argument in arguments:
        if isinstance(argument, SparseTensor):
            return argument
        if isinstance(argument, (list, tuple)):
            for each in argument:
                if isinstance(each, SparseTensor):
                    return each
    raise TypeError("no argument is a sparse tensor")


def _operator(name: str, reflected: bool = False) -> Any:
    def operate(self: SparseTensor, other: Any) -> Any:
        if not isinstance(other, (SparseTensor, Tensor, bool, int, float, complex)):
            return NotImplemented
        form = self._form(name)
        if form is None:
            unsupported(name, self)
        return form(other, self) if reflected else form(self, other)

    return operate


def _method(name: str) -> Any:
    def call(self: SparseTensor, *args: Any) -> Any:
        form = self._form(name)
        return unsupported(name, self) if form is None else form(self, *args)

    return call


for _name, _form in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "pow": "pow",
    "matmul": "matmul", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}.items():  # fmt: skip
    setattr(SparseTensor, f"__{_name}__", _operator(_form))
    setattr(SparseTensor, f"__r{_name}__", _operator(_form, True))
    setattr(SparseTensor, f"__i{_name}__", _operator(_form + "_"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "getitem", "setitem"):
    setattr(
        SparseTensor,
        f"__{_name}__",
        _method({"pos": "positive", "invert": "bitwise_not"}.get(_name, _name)),
    )
