"""Jacobians, Hessians and their products with vectors, for a function of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import Tensor, ops
from ._backward import grad
from ._modes import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _tuple(value: Any, name: str, function: str) -> tuple[bool, tuple[Tensor, ...]]:
    single = not isinstance(value, tuple)
    out = (value,) if single else value
    for number, each in enumerate(out):
        if not isinstance(each, Tensor):
            raise TypeError(
                f"The {name} given to {function} must be either a Tensor or a tuple of Tensors but the "
                f"value at index {number} has type {type(each)}.")
    return not single, out


def _inputs(inputs: Any, create_graph: bool, function: str) -> tuple[bool, tuple[Tensor, ...]]:
    is_tuple, listed = _tuple(inputs, "inputs", function)
    with enable_grad():
        return is_tuple, tuple(
            x.view_as(x) if create_graph and x.requires_grad
            else x.detach().requires_grad_() for x in listed)


def _vector(v: Any, like: tuple[Tensor, ...], function: str, what: str) -> tuple[Tensor, ...]:
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if the {what} contains a single Tensor "
                               "with a single element.")
        return (ops["full"](1, like[0]._shape, like[0].dtype, like[0].device),)
    _, listed = _tuple(v, "v", function)
    if len(listed) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got "
                           f"{len(listed)}.")
    for number, (each, x) in enumerate(zip(listed, like, strict=True)):
        if each.shape != x.shape:
            raise RuntimeError(f"Entry {number} in v has invalid size: should be {x.shape} but got "
                               f"{each.shape}.")
    return listed


def _gradients(outputs: Any, inputs: Any, seeds: Any, create_graph: bool,
               strict: bool) -> tuple[Tensor, ...]:
    roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    found: Any = [None] * len(inputs)
    if roots:
        found = grad([o for o, _ in roots], inputs, [s for _, s in roots],
                     retain_graph=True, create_graph=create_graph, allow_unused=True)
    if strict and any(g is None for g in found):
        number = next(i for i, g in enumerate(found) if g is None)
        raise RuntimeError(f"Output 0 of the user-provided function is independent of input {number}. "
                           "This is not allowed in strict mode.")
    return tuple(ops["full"](0, x._shape, x.dtype, x.device) if g is None else g
                 for g, x in zip(found, inputs, strict=True))


def _has_graph(tensors: Any) -> None:
    """In strict mode, checks that tensors to be differentiated again depend on the inputs."""
    for number, each in enumerate(tensors):
        if not each.requires_grad:
            raise RuntimeError(f"The jacobian of the user-provided function is independent of input "
                               f"{number}. This is not allowed in strict mode when create_graph=True.")


def _finish(tensors: Any, is_tuple: bool, create_graph: bool) -> Any:
    out = tuple(tensors if create_graph else (t.detach() for t in tensors))
    return out if is_tuple else out[0]


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
        strict: bool = False) -> Any:
    """Returns (func(*inputs), v times the Jacobian)."""
    is_tuple, points = _inputs(inputs, create_graph, "vjp")
    with enable_grad():
        out_tuple, outputs = _tuple(func(*points), "outputs of the user-provided function", "vjp")
        seeds = _vector(v, outputs, "vjp", "user-provided function's output")
        found = _gradients(outputs, points, seeds, create_graph, strict)
    if strict and create_graph:
        _has_graph(found)
    return _finish(outputs, out_tuple, create_graph), _finish(found, is_tuple, create_graph)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
        strict: bool = False) -> Any:
    """Returns (func(*inputs), the Jacobian times v)."""
    _, points = _inputs(inputs, create_graph, "jvp")
    directions = _vector(v, points, "jvp", "input to the user-provided function")
    with _core.forward_level() as level, enable_grad():
        duals = []
        for x, t in zip(points, directions, strict=True):
            dual = ops["clone"](x)
            _core.set_tangent(dual, t, level)
            duals.append(dual)
        out_tuple, outputs = _tuple(func(*duals), "outputs of the user-provided function", "jvp")
        tangents = [_core.tangent_of(o, level) for o in outputs]
    if strict and any(t is None for t in tangents):
        raise RuntimeError("Output 0 of the user-provided function is independent of the inputs. This "
                           "is not allowed in strict mode.")
    found = [ops["full"](0, o._shape, o.dtype, o.device) if t is None else t
             for t, o in zip(tangents, outputs, strict=True)]
    if strict and create_graph:
        _has_graph(found)
    return _finish(outputs, out_tuple, create_graph), _finish(found, out_tuple, create_graph)


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False,
             strict: bool = False, vectorize: bool = False,
             strategy: str = "reverse-mode") -> Any:
    """The Jacobian of func: for each output and input, a tensor whose shape is the output's followed by the
    input's; nested tuples if there are several."""
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode", got '
                             f"{strategy!r}.")
    if strict and (vectorize or strategy == "forward-mode"):
        raise RuntimeError('`strict=True` and `vectorize=True` or `strategy="forward-mode"` are not '
                           "supported together.")
    from ..func import jacfwd

    is_tuple, points = _inputs(inputs, create_graph, "jacobian")
    if strategy == "forward-mode":
        with enable_grad():
            found = jacfwd(func, tuple(range(len(points))))(*points)
        several = isinstance(found[0], tuple)
        rows = [_finish(row, is_tuple, create_graph) for row in (found if several else [found])]
        return tuple(rows) if several else rows[0]
    with enable_grad():
        out_tuple, outputs = _tuple(func(*points), "outputs of the user-provided function", "jacobian")
        rows = []
        for output in outputs:
            rows.append(_finish(_rows(output, points, create_graph, strict, vectorize), is_tuple,
                                create_graph))
    return tuple(rows) if out_tuple else rows[0]


def _rows(output: Tensor, points: tuple[Tensor, ...], create_graph: bool, strict: bool,
          vectorize: bool) -> list[Tensor]:
    from .._functions import eye
    from ..func import vmap

    count = output.numel()
    basis = eye(count, dtype=output.dtype, device=output.device).reshape(count, *output.shape)

    def row(seed: Tensor) -> tuple[Tensor, ...]:
        return _gradients((output,), points, (seed,), create_graph, strict)

    if count == 0:
        return [ops["full"](0, (*output._shape, *p._shape), p.dtype, p.device) for p in points]
    if vectorize:
        stacked = list(vmap(row)(basis))
    else:
        found = [row(seed) for seed in basis]
        stacked = [ops["stack"](list(each)) for each in zip(*found, strict=True)]
    if strict and create_graph:
        _has_graph(stacked)
    return [g.reshape(*output.shape, *p.shape) for g, p in zip(stacked, points, strict=True)]


def _scalar(value: Any, function: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise RuntimeError(f"The function given to {function} should return a single Tensor")
    if value.numel() != 1:
        raise RuntimeError(
            f"The Tensor returned by the function given to {function} should contain a single element")
    return value.reshape(())


def hessian(func: Callable[..., Any], inputs: Any, create_graph: bool = False,
            strict: bool = False, vectorize: bool = False,
            outer_jacobian_strategy: str = "reverse-mode") -> Any:
    """The Hessian of a func that returns one number, as the Jacobian of its gradient."""
    from ..func import grad as func_grad

    is_tuple, listed = _tuple(inputs, "inputs", "hessian")

    def dual_gradient(*points: Tensor) -> Any:
        return func_grad(lambda *own: _scalar(func(*own), "hessian"), tuple(range(len(points))))(*points)

    def gradient(*points: Tensor) -> Any:
        with enable_grad():
            own = tuple(p if p.requires_grad else p.detach().requires_grad_() for p in points)
            value = _scalar(func(*own), "hessian")
            return _gradients((value,), own, (None,), True, strict)

    forward = outer_jacobian_strategy == "forward-mode"
    found = jacobian(dual_gradient if forward else gradient, listed, create_graph, strict, vectorize,
                     outer_jacobian_strategy)
    return found if is_tuple else found[0][0]


def vhp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
        strict: bool = False) -> Any:
    """Returns (func(*inputs), v times the Hessian)."""
    is_tuple, points = _inputs(inputs, create_graph, "vhp")
    directions = _vector(v, points, "vhp", "input to the user-provided function")
    with enable_grad():
        value = _scalar(func(*points), "vhp")
        first = _gradients((value,), points, (None,), True, strict)
        found = _gradients(first, points, directions, create_graph, strict)
    return _finish((value,), False, create_graph), _finish(found, is_tuple, create_graph)


def hvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False,
        strict: bool = False) -> Any:
    """Returns (func(*inputs), the Hessian times v); since the Hessian is symmetric, this is vhp."""
    return vhp(func, inputs, v, create_graph, strict)
