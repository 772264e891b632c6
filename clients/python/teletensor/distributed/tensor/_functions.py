"""Functions of the package for DTensors: the layout of the result follows from those of the operands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import _api as tt
from ..._core import Tensor
from ...nn import functional as F
from ..device_mesh import DeviceMesh
from ._dtensor import DTensor
from ._parameter import DTensorParameter
from ._placements import Layout, Partial, Placement, Replicate, Shard

__all__ = ["FUNCTIONS"]


def _placed(value: Any, mesh: DeviceMesh) -> DTensor:
    """Returns the operand as a DTensor. A Tensor counts as replicated: each rank has the whole of it."""
    if isinstance(value, DTensor):
        if value.device_mesh != mesh:
            raise NotImplementedError("Cross device mesh comm not supported yet!")
        return value
    if isinstance(value, DTensorParameter):
        return DTensor(value, value.dtensor_layout)
    return DTensor(value, Layout(mesh, (Replicate(),) * mesh.ndim, tuple(value.shape)))


def _input(name: str, value: Any) -> DTensor:
    if not isinstance(value, DTensor):
        raise RuntimeError(
            f"DTensor: {name} got mixed Tensor and DTensor: its input must be a DTensor if another operand "
            "is one"
        )
    return value


def _whole_along(x: DTensor, dims: Sequence[int]) -> DTensor:
    """The tensor with no dimension of `dims` divided, and no summands."""
    return x.redistribute(placements=[
        Replicate() if isinstance(each, Partial) or isinstance(each, Shard) and each.dim in dims else each
        for each in x.placements
    ])  # fmt: skip


def _elementwise(function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> DTensor:
    if kwargs.get("out") is not None:
        raise NotImplementedError(f"DTensor: {function.__name__} has no rule for out=")
    x = _whole_along(_input(function.__name__, x), ())
    return DTensor(function(x.to_local(), *args, **kwargs), x._layout)


def _softmax(
    function: Callable[..., Any], x: Any, dim: int | None = None, _stacklevel: Any = 3, dtype: Any = None
) -> DTensor:
    # softmax of the package, and the method, have dtype as their second argument.
    dtype = dtype if isinstance(_stacklevel, int) else _stacklevel
    if dim is None:
        raise NotImplementedError(f"DTensor: {function.__name__} needs its dim")
    x = _input(function.__name__, x)
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"{function.__name__}: dim {dim} is not one of the {x.ndim} of the input")
    x = _whole_along(x, [dim % x.ndim])
    return DTensor(function(x.to_local(), dim, dtype=dtype), x._layout)


def _of_all(value: Any, x: DTensor) -> Tensor | None:
    """A parameter that the function reads whole. Where `x` is divided, each rank computes a summand of its
    gradient."""
    if value is None:
        return None
    whole = _placed(value, x.device_mesh)
    whole = whole.redistribute(placements=[Replicate()] * x.device_mesh.ndim)
    return whole.to_local(grad_placements=[
        Partial() if isinstance(each, Shard) else Replicate() for each in x.placements
    ])  # fmt: skip


def _layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> DTensor:
    x = _input("layer_norm", x)
    x = _whole_along(x, range(x.ndim - len(normalized_shape), x.ndim))
    local = F.layer_norm(x.to_local(), normalized_shape, _of_all(weight, x), _of_all(bias, x), eps)
    return DTensor(local, x._layout)


def _linear(x: Any, weight: Any, bias: Any = None) -> DTensor:
    x = _input("linear", x)
    mesh, last = x.device_mesh, x.ndim - 1
    w = _placed(weight, mesh)
    of_x: list[Placement] = []
    of_w: list[Placement] = []
    x_gradient: list[Placement] = []
    w_gradient: list[Placement] = []
    result: list[Placement] = []
    for a, c in zip(x.placements, w.placements, strict=True):
        if a == Shard(last) and c == Shard(1):  # each rank has a summand of the result
            rule: tuple[Placement, ...] = (a, c, a, c, Partial())
        elif isinstance(a, Shard) and a.dim < last and isinstance(c, Replicate):
            rule = (a, c, a, Partial(), a)
        elif isinstance(a, Replicate) and c == Shard(0):
            rule = (a, c, Partial(), c, Shard(last))
        else:
            rule = (Replicate(),) * 5
        for found, each in zip((of_x, of_w, x_gradient, w_gradient, result), rule, strict=True):
            found.append(each)
    product = F.linear(
        x.redistribute(placements=of_x).to_local(grad_placements=x_gradient),
        w.redistribute(placements=of_w).to_local(grad_placements=w_gradient),
    )
    made = DTensor(product, Layout(mesh, tuple(result), (*x.shape[:-1], w.shape[0])))
    return made if bias is None else _with_bias(made, _placed(bias, mesh))


def _with_bias(x: DTensor, bias: DTensor) -> DTensor:
    x = _whole_along(x, ())
    of_bias: list[Placement] = []
    gradient: list[Placement] = []
    for each in x.placements:
        divided = isinstance(each, Shard) and each.dim == x.ndim - 1
        of_bias.append(Shard(0) if divided else Replicate())
        gradient.append(of_bias[-1] if divided or not isinstance(each, Shard) else Partial())
    part = bias.redistribute(placements=of_bias).to_local(grad_placements=gradient)
    return DTensor(x.to_local() + part, x._layout)


_ELEMENTWISE: tuple[Callable[..., Any], ...] = (
    tt.abs, tt.cos, tt.exp, tt.log, tt.neg, tt.rsqrt, tt.sigmoid, tt.sin, tt.sqrt, tt.square, tt.tanh,
    F.elu, F.gelu, F.leaky_relu, F.logsigmoid, F.relu, F.silu, F.softplus,
)  # fmt: skip

# by the names of the functions, and of methods of DTensor
FUNCTIONS: Mapping[str, Callable[..., DTensor]] = {
    **{each.__name__: functools.partial(_elementwise, each) for each in _ELEMENTWISE},
    **{each.__name__: functools.partial(_softmax, each) for each in (F.softmax, F.log_softmax)},
    "layer_norm": _layer_norm,
    "linear": _linear,
}
