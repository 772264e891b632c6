"""DTensor: this rank's part of a tensor, and the distribution of all parts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from ... import distributed as _d
from ..._core import Tensor
from ..._tensors.size import Size
from ...autograd import no_grad
from ..device_mesh import DeviceMesh
from ._placements import (
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
    coordinate,
    for_gradients,
    listed,
)
from ._redistribute import redistributed

__all__ = ["DTensor", "distribute_tensor", "rules"]

_rules: ContextVar[Mapping[str, Callable[..., Any]]] = ContextVar("rules", default={})  # noqa: B039


@contextlib.contextmanager
def rules(further: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """A context in which functions of these names take DTensors."""
    token = _rules.set({**_rules.get(), **further})
    try:
        yield
    finally:
        _rules.reset(token)


def _rule(name: str) -> Callable[..., Any] | None:
    """Returns the implementation of this function for DTensors, or None if there is none."""
    from ._functions import FUNCTIONS  # it needs DTensor

    return _rules.get().get(name) or FUNCTIONS.get(name)


def _no_rule(name: str) -> NoReturn:
    raise NotImplementedError(
        f"DTensor: {name} has no rule: use to_local() or full_tensor(), and DTensor.from_local() for the "
        "result"
    )


class DTensor:
    """A tensor in parts, of which each rank of a DeviceMesh has one. Created by `from_local` and
    `distribute_tensor`; all ranks must call the same operations on it in the same order.

    It is not a Tensor: it supports `redistribute`, `full_tensor`, `to_local`, sums and differences of
    DTensors with the same placements, products with numbers, linear, layer_norm, softmax and elementwise
    functions, and `cross_entropy` within `loss_parallel`. Any other operation raises NotImplementedError
    with its name: use to_local(), and from_local() for the result."""

    def __init__(self, local: Tensor, layout: Layout) -> None:
        self._local, self._layout = local, layout

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Any = None,
    ) -> DTensor:
        """Returns the tensor whose part on this rank is `local_tensor`, with its history. Without
        placements it is Replicate. `shape` is the shape of the whole tensor, which is needed if the parts
        of a Shard have different sizes. run_check=True copies the values of the first rank of a Replicate
        to all ranks; stride has no effect. ValueError if the size of the part does not match `shape`."""
        placed = listed(placements, device_mesh, local_tensor.dim())
        whole = list(local_tensor.shape) if shape is None else list(shape)
        if shape is None:
            for dim, each in enumerate(placed):
                if isinstance(each, Shard):
                    whole[each.dim] *= device_mesh.size(dim)
        layout = Layout(device_mesh, placed, tuple(whole))
        if layout.local_shape() != list(local_tensor.shape):
            raise ValueError(
                f"from_local: a part of {tuple(local_tensor.shape)} is not this rank's of a tensor of "
                f"{tuple(whole)} as {list(placed)}"
            )
        if run_check:
            with no_grad():
                for dim, each in enumerate(placed):
                    if isinstance(each, Replicate):
                        _d.broadcast(local_tensor, group=device_mesh.get_group(dim), group_src=0)
        return DTensor(local_tensor, layout)

    # ---- properties

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh whose ranks have the parts."""
        return self._layout.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placement for each dimension of the mesh."""
        return self._layout.placements

    @property
    def shape(self) -> Size:
        """The shape of the whole tensor."""
        return Size(self._layout.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape of the whole tensor, or one size of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements of the whole tensor."""
        return self.shape.numel()

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self._local.dtype

    @property
    def device(self) -> Any:
        """The device of this rank's part."""
        return self._local.device

    @property
    def requires_grad(self) -> bool:
        """Returns whether this rank's part requires grad."""
        return self._local.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> DTensor:
        """Sets requires_grad; returns the tensor."""
        self._local.requires_grad_(requires_grad)
        return self

    @property
    def grad(self) -> DTensor | None:
        """The gradient, which is Replicate if this tensor is Partial; None before a backward."""
        found = self._local.grad
        return None if found is None else DTensor(found, self._gradient())

    def _gradient(self) -> Layout:
        return self._layout.placed(for_gradients(self.placements))

    def backward(
        self,
        gradient: DTensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
    ) -> None:
        """Computes gradients as Tensor.backward does; all ranks call it. `gradient` is a DTensor of any
        placements, and is not needed for one element."""
        given = None
        if gradient is not None:
            given = gradient.redistribute(placements=self._gradient().placements).to_local()
        self._local.backward(given, retain_graph, create_graph)

    def item(self) -> Any:
        """The value of a tensor of one element, which all ranks read."""
        return self.detach().full_tensor().item()

    def detach(self) -> DTensor:
        """Returns the tensor without history."""
        return DTensor(self._local.detach(), self._layout)

    def __repr__(self) -> str:
        return (
            f"DTensor(local_tensor={self._local!r}, device_mesh={self.device_mesh!r}, "
            f"placements={self.placements!r})"
        )

    def _for_parameter(self, parameter: Any) -> Tensor:
        """Called by Parameter(self): the tensor of the new parameter, which becomes a part."""
        from ._parameter import placed_parameter  # modules are imported after tensors

        placed_parameter(parameter, self._layout)
        return self._local

    # ---- to other layouts

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
    ) -> DTensor:
        """Returns the same tensor with these placements, computed by collectives. async_op has no effect.
        ValueError for another mesh, RuntimeError from Replicate to Partial."""
        if device_mesh is not None and device_mesh != self.device_mesh:
            raise NotImplementedError("Cross device mesh comm not supported yet!")
        if placements is None:
            raise RuntimeError("placements is needed for redistribute!")
        then = self._layout.placed(listed(placements, self.device_mesh, self.ndim))
        if then.placements == self.placements:
            return self
        for now, wanted in zip(self.placements, then.placements, strict=True):
            if now != wanted and isinstance(wanted, Partial) and not isinstance(now, Shard):
                raise RuntimeError(
                    f"Can not redistribute from {now!r} to {wanted!r}, only Shard to {wanted!r} "
                    "redistribution is supported!"
                )
        return DTensor(redistributed(self._local, self._layout, then), then)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """Returns this rank's part. `grad_placements` says how its gradient is distributed, for example
        Partial if later lines use the whole tensor to compute a part of a result; by default it is
        distributed like this tensor, and Replicate if this tensor is Partial."""
        if grad_placements is None:
            return self._local
        gradient = self._layout.placed(listed(grad_placements, self.device_mesh, self.ndim))
        return redistributed(self._local, self._layout, self._layout, gradient)

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """Returns the whole tensor. `grad_placements` is as for to_local."""
        whole = [Replicate()] * self.device_mesh.ndim
        return self.redistribute(placements=whole).to_local(grad_placements=grad_placements)

    # ---- arithmetic

    def _with(self, other: Any, name: str, number: bool) -> Any:
        if isinstance(other, DTensor):
            if number or other._layout != self._layout:
                raise NotImplementedError(
                    f"DTensor: {name} has no rule for {list(self.placements)} of "
                    f"{tuple(self.shape)} and {list(other.placements)} of {tuple(other.shape)}"
                )
            return other._local
        if number and isinstance(other, (int, float, complex)):
            return other
        raise NotImplementedError(f"DTensor: {name} has no rule for a {type(other).__name__}")

    def __add__(self, other: Any) -> DTensor:
        return DTensor(self._local + self._with(other, "add", False), self._layout)

    def __sub__(self, other: Any) -> DTensor:
        return DTensor(self._local - self._with(other, "sub", False), self._layout)

    def __mul__(self, other: Any) -> DTensor:
        return DTensor(self._local * self._with(other, "mul", True), self._layout)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DTensor:
        return DTensor(self._local / self._with(other, "div", True), self._layout)

    def __neg__(self) -> DTensor:
        return DTensor(-self._local, self._layout)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"'DTensor' object has no attribute {name!r}", name=name, obj=self)
        rule = _rule(name)
        if rule is not None:
            return functools.partial(rule, self)
        return lambda *args, **kwargs: _no_rule(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the rule of a function of the package for DTensors."""
        rule = _rule(func.__name__)
        return _no_rule(func.__name__) if rule is None else rule(*args, **(kwargs or {}))


def distribute_tensor(
    tensor: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """Returns the tensor in parts, as a leaf. Its values are those of the first rank along each dimension
    of the mesh; with src_data_rank=None those of each rank, which must then be equal. The defaults are the
    mesh of all ranks and Replicate. RuntimeError for a tensor with history."""
    if not tensor.is_leaf:
        raise RuntimeError(
            "`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!"
        )
    if src_data_rank not in (0, None):
        raise ValueError(f"distribute_tensor: src_data_rank must be 0 or None, not {src_data_rank}")
    mesh = (
        DeviceMesh(tensor.device.type, list(range(_d.get_world_size())))
        if device_mesh is None
        else device_mesh
    )
    placed = listed(placements, mesh, tensor.dim())
    whole = Layout(mesh, (Replicate(),) * mesh.ndim, tuple(tensor.shape))
    coordinate(mesh)
    with no_grad():
        data = tensor.detach().clone()
        for dim in range(mesh.ndim):
            if src_data_rank is not None:
                _d.broadcast(data, group=mesh.get_group(dim), group_src=0)
        then = whole.placed(placed)
        local = redistributed(data, whole, then).detach()
    return DTensor(local.requires_grad_(tensor.requires_grad), then)
