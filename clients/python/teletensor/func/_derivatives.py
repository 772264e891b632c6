"""Derivatives of functions: reverse mode, forward mode, and their compositions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _core
from .._calls.tree import flatten, map_tree, unflatten
from .._core import Tensor, ops
from .._functions.typeinfo import is_inexact
from ..autograd._backward import grad as tape_grad
from ..autograd._modes import enable_grad
from ._vmap import vmap

__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"]

Argnums = int | tuple[int, ...]


def _wrapped_argnum(argnum: int, count: int) -> int:
    if not -count <= argnum < count:
        raise RuntimeError(f"Got argnum={argnum}, but only {count} positional inputs")
    return argnum % count


def _select(args: tuple[Any, ...], argnums: Argnums) -> Any:
    if isinstance(argnums, int):
        return args[_wrapped_argnum(argnums, len(args))]
    if not isinstance(argnums, tuple) or not argnums:
        raise RuntimeError(f"argnums must be int or a non-empty tuple of ints, got {argnums!r}")
    return tuple(args[_wrapped_argnum(n, len(args))] for n in argnums)


def _replace(args: tuple[Any, ...], argnums: Argnums, new: Any) -> tuple[Any, ...]:
    out = list(args)
    if isinstance(argnums, int):
        out[_wrapped_argnum(argnums, len(args))] = new
    else:
        for n, each in zip(argnums, new, strict=True):
            out[_wrapped_argnum(n, len(args))] = each
    return tuple(out)


def _tensors(tree: Any, what: str) -> tuple[list[Tensor], Any]:
    leaves, spec = flatten(tree)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise RuntimeError(f"{what}: Expected all tensors, got {type(leaf).__name__}")
    if not leaves:
        raise RuntimeError(f"{what}: Expected at least one tensor")
    return leaves, spec


def _zeros(like: Tensor) -> Tensor:
    made: Tensor = ops["full"](0, like._shape, like.dtype, like.device)
    return made


def _check_inexact(role: str, given: list[Tensor]) -> None:
    for each in given:
        if not is_inexact(each):
            raise ValueError(f"Expected {role} to be floating point or complex, but got: {each.dtype}")


class _Taped:
    """A call of a function in which fresh variables replace the arguments to be differentiated."""

    def __init__(self, inputs: Any, what: str) -> None:
        self.mode = _core.grad_mode()
        self.leaves, self.spec = _tensors(inputs, what)
        if not all(map(is_inexact, self.leaves)):
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        self.nested = self.mode and any(t.requires_grad for t in self.leaves)
        with enable_grad():
            self.variables = [_core.variable(t) for t in self.leaves]

    def inputs(self) -> Any:
        return unflatten(self.variables, self.spec)

    def recorded(self, outputs: list[Tensor], seeds: list[Tensor]) -> bool:
        """Returns whether an enclosing computation differentiates through this one."""
        return self.mode and (
            self.nested or any(t is not None and t.requires_grad for t in seeds)
            or _core.depends_elsewhere(outputs, self.variables))

    def gradients(self, outputs: list[Tensor], seeds: list[Any], keep: bool,
                  create: bool | None = None) -> list[Tensor]:
        """One gradient for each input, zeros for an input that was not used."""
        roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
        if not roots:
            return [_zeros(t) for t in self.leaves]
        if create is None:
            create = self.recorded([o for o, _ in roots], [s for _, s in roots])
        found = tape_grad([o for o, _ in roots], self.variables, [s for _, s in roots],
                          retain_graph=keep or create, create_graph=create, allow_unused=True)
        return [_zeros(leaf) if g is None else g for g, leaf in zip(found, self.leaves, strict=True)]

    def release(self, tree: Any, outputs: list[Tensor]) -> Any:
        """The results without the history that was needed only for this derivative."""
        if self.mode and (self.nested or (outputs and _core.depends_elsewhere(
                outputs, self.variables))):
            return tree
        return map_tree(lambda t: _core.cut(t) if isinstance(t, Tensor) else t, tree)


def _split_aux(result: Any, has_aux: bool, what: str) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(f"{what}: output of function f should be a tuple: (output, aux) if has_aux "
                           "is True")
    return result


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0,
                   has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that computes (gradient, value) of `func`, which returns one number.

    argnums: the arguments with respect to which the gradient is computed. has_aux: func returns (value,
    aux), and the result is (gradient, (value, aux)).
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        what = "grad_and_value(f)(*args)"
        taped = _Taped(_select(args, argnums), what)
        with enable_grad():
            output, aux = _split_aux(func(*_replace(args, argnums, taped.inputs()), **kwargs),
                                     has_aux, what)
        if not isinstance(output, Tensor):
            raise RuntimeError(f"{what}: Expected f(*args) to return a Tensor, got {type(output)}")
        if output.dim() != 0:
            raise RuntimeError(
                f"{what}: Expected f(*args) to return a scalar tensor, got tensor with {output.dim()} "
                "dims. Maybe you wanted to use the vjp or jacrev APIs instead?")
        found = unflatten(taped.gradients([output], [None], keep=False), taped.spec)
        value = taped.release(output, [output])
        if has_aux:
            return found, (value, taped.release(
                aux, [t for t in flatten(aux)[0] if isinstance(t, Tensor)]))
        return found, value

    return wrapper


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that computes the gradient of `func`, which returns one number.

    >>> tt.func.grad(tt.sin)(tt.tensor(0.0))
    tensor(1.)
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        found, value = grad_and_value(func, argnums, has_aux)(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapper


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Returns (outputs, a function from cotangents to the tuple of gradients of the primals), and with
    has_aux also aux."""
    what = "vjp(f, *primals)"
    taped = _Taped(primals, what)
    with enable_grad():
        result, aux = _split_aux(func(*taped.inputs()), has_aux, what)
    outputs, spec = _tensors(result, what)

    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        seeds, seed_spec = _tensors(cotangents, "vjp_fn(cotangents)")
        if seed_spec != spec:
            raise RuntimeError("Expected pytree structure of cotangents to be the same as pytree "
                               "structure of outputs to the function.")
        for seed, output in zip(seeds, outputs, strict=True):
            if seed.shape != output.shape:
                raise RuntimeError(f"vjp_fn(cotangents): a cotangent has shape {list(seed.shape)}, its "
                                   f"output {list(output.shape)}")
        taped.mode = _core.grad_mode()
        found = taped.gradients(outputs, seeds, retain_graph, create_graph)
        return unflatten(found, taped.spec)

    released = taped.release(result, outputs)
    if has_aux:
        return released, vjp_fn, taped.release(
            aux, [t for t in flatten(aux)[0] if isinstance(t, Tensor)])
    return released, vjp_fn


def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False,
        has_aux: bool = False) -> Any:
    """Returns (func(*primals), its directional derivative along the tangents), and with has_aux also
    aux."""
    what = "jvp(f, primals, tangents)"
    if not isinstance(primals, tuple):
        raise RuntimeError(f"{what}: Expected primals to be a tuple. E.g. it should be valid to call "
                           "f(*primals).")
    points, spec = _tensors(primals, what)
    directions, other = _tensors(tangents, what)
    if spec != other:
        raise RuntimeError(f"{what}: Expected primals and tangents to have the same python structure.")
    for role, given in (("primal", points), ("tangent", directions)):
        _check_inexact(role, given)
    for p, t in zip(points, directions, strict=True):
        if p.shape != t.shape:
            raise RuntimeError(f"{what}: a tangent has shape {list(t.shape)}, its primal "
                               f"{list(p.shape)}")
    with _core.forward_level() as level:
        duals = []
        for p, t in zip(points, directions, strict=True):
            dual = ops["clone"](p)
            _core.set_tangent(dual, t, level)
            duals.append(dual)
        result, aux = _split_aux(func(*unflatten(duals, spec)), has_aux, what)
        outputs, out_spec = _tensors(result, what)
        found = [_core.tangent_of(t, level) for t in outputs]
        if strict and any(t is None for t in found):
            raise RuntimeError(f"{what}: The output of f is independent of primals. This is not allowed "
                               "with strict=True.")
    out = unflatten([_zeros(o) if t is None else t for o, t in zip(outputs, found, strict=True)],
                    out_spec)
    return (result, out, aux) if has_aux else (result, out)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Returns (func(*primals), its derivative at the primals as a function of tangents); the latter does
    not run func again."""
    _check_inexact("primal", _tensors(primals, "linearize")[0])
    result, vjp_fn = vjp(func, *primals)
    points, spec = _tensors(primals, "linearize")
    outputs, out_spec = _tensors(result, "linearize")
    with enable_grad():
        seeds = [_zeros(o).requires_grad_() for o in outputs]
        found = vjp_fn(unflatten(seeds, out_spec), True, True)
    gradients = flatten(found)[0]

    def jvp_fn(*tangents: Any) -> Any:
        directions, other = _tensors(tangents, "jvp_fn(*tangents)")
        if other != spec:
            raise RuntimeError("Expected the tangents to have the same structure as the primals")
        roots = [(g, t) for g, t in zip(gradients, directions, strict=True) if g.requires_grad]
        if not roots:
            return unflatten([_zeros(o) for o in outputs], out_spec)
        out = tape_grad([g for g, _ in roots], seeds, [t for _, t in roots], retain_graph=True,
                        allow_unused=True, materialize_grads=True)
        return unflatten(list(out), out_spec)

    del points
    return result, jvp_fn


def _basis(like: Tensor) -> Tensor:
    from .._functions import eye

    count = like.numel()
    return eye(count, dtype=like.dtype, device=like.device).reshape(count, *like.shape)


def jacrev(func: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False,
           chunk_size: int | None = None) -> Callable[..., Any]:
    """Returns a function that computes the Jacobian of `func` by reverse mode, one row for each output
    element.

    The shape is the output's followed by the input's; structures are nested as outputs of inputs.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        selected = _select(args, argnums)

        def of_inputs(*inputs: Any) -> Any:
            new = inputs[0] if isinstance(argnums, int) else inputs
            return func(*_replace(args, argnums, new), **kwargs)

        primals = (selected,) if isinstance(argnums, int) else selected
        result = vjp(of_inputs, *primals, has_aux=has_aux)
        outputs, spec = _tensors(result[0], "jacrev")
        points, in_spec = _tensors(selected, "jacrev")
        rows = []
        for number, output in enumerate(outputs):

            def pull(seed: Tensor, number: int = number) -> Any:
                seeds = [seed if i == number else _zeros(o) for i, o in enumerate(outputs)]
                return tuple(flatten(result[1](unflatten(seeds, spec)))[0])

            if output.numel() == 0:
                found = [ops["full"](0, (0, *p.shape), p.dtype, p.device) for p in points]
            else:
                found = vmap(pull, chunk_size=chunk_size)(_basis(output))
            rows.append(unflatten([g.reshape(*output.shape, *p.shape)
                                   for g, p in zip(found, points, strict=True)], in_spec))
        out = unflatten(rows, spec)
        return (out, result[2]) if has_aux else out

    return wrapper


def jacfwd(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *,
           randomness: str = "error") -> Callable[..., Any]:
    """Returns a function that computes the Jacobian of `func` by forward mode, one column for each input
    element.

    The shape is the output's followed by the input's; structures are nested as outputs of inputs.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        selected = _select(args, argnums)
        points, in_spec = _tensors(selected, "jacfwd")
        _check_inexact("primal", points)
        spec: list[Any] = [None]
        extra: list[Any] = [None]

        def of_inputs(*leaves: Any) -> Any:
            return func(*_replace(args, argnums, unflatten(leaves, in_spec)), **kwargs)

        columns = []
        for number, point in enumerate(points):

            def push(direction: Tensor, number: int = number) -> Any:
                tangents = tuple(direction if i == number else _zeros(p)
                                 for i, p in enumerate(points))
                found = jvp(of_inputs, tuple(points), tangents, has_aux=has_aux)
                leaves, spec[0] = flatten(found[1])
                if has_aux:
                    extra_leaves, extra[0] = flatten(found[2])
                    return tuple(leaves), tuple(extra_leaves)
                return tuple(leaves)

            if has_aux:
                tangents, aux = vmap(push, randomness=randomness)(_basis(point))
                extra[0] = unflatten([a[0] for a in aux], extra[0])
            else:
                tangents = vmap(push, randomness=randomness)(_basis(point))
            columns.append([t.movedim(0, -1).reshape(*t.shape[1:], *point.shape) for t in tangents])
        rows = [unflatten([column[i] for column in columns], in_spec) for i in range(len(columns[0]))]
        out = unflatten(rows, spec[0])
        return (out, extra[0]) if has_aux else out

    return wrapper


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Returns a function that computes the Hessian of `func`, as jacfwd of jacrev."""
    return jacfwd(jacrev(func, argnums), argnums)
