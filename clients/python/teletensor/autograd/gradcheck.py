"""gradcheck: compares gradients with finite differences, computed on the daemon."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor, ops
from ._backward import grad
from ._modes import enable_grad, no_grad

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(RuntimeError):
    """The error that gradcheck and gradgradcheck raise."""


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _differentiable(outputs: Any) -> list[Tensor]:
    return [o for o in _listed(outputs) if isinstance(o, Tensor) and o.dtype.is_floating_point]


def _is_complex(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.is_complex


def _in_parts(func: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """func with real and imaginary parts in place of complex numbers: the derivatives of a complex function
    are right if those of its parts are."""
    which = [_is_complex(x) and x.requires_grad for x in inputs]

    def parts(*args: Any) -> tuple[Any, ...]:
        own = [ops["view_as_complex"](a) if split else a for a, split in zip(args, which, strict=True)]
        return tuple(ops["view_as_real"](o) if _is_complex(o) else o for o in _listed(func(*own)))

    split = [ops["view_as_real"](x.detach()).requires_grad_() if complex_one else x
             for x, complex_one in zip(inputs, which, strict=True)]
    return parts, tuple(split)


def _numerical(func: Callable[..., Any], inputs: tuple[Any, ...], which: int, outputs: int,
               eps: float) -> list[np.ndarray[Any, Any]]:
    """One matrix [elements of the input, elements of the output] for each output."""
    x = inputs[which]
    flat = x.detach().contiguous().reshape(-1)
    columns: list[list[Tensor]] = [[] for _ in range(outputs)]
    with no_grad():
        for element in range(x.numel()):
            found = []
            for sign in (1, -1):
                moved = flat.clone()
                moved[element] += sign * eps
                args = list(inputs)
                args[which] = moved.reshape(x.shape)
                found.append([o.clone() for o in _differentiable(func(*args))])
            for number, (up, down) in enumerate(zip(*found, strict=True)):
                columns[number].append(((up - down) / (2 * eps)).reshape(-1))
        return [ops["stack"](each).numpy() if each else np.zeros((0, 0)) for each in columns]


def _analytical(outputs: list[Tensor], number: int, x: Tensor, shape: Any) -> tuple[Any, bool]:
    """Returns (the matrix [elements of the input, elements of the output], whether a second computation
    gives the same one)."""
    output = outputs[number]
    rows, same = [], True
    for element in range(output.numel()):
        seed = ops["full"](0, output._shape, output.dtype, output.device)
        seed.reshape(-1)[element] = 1
        pair = []
        for _ in range(2):
            if not output.requires_grad:
                pair.append(ops["full"](0, x._shape, x.dtype, x.device))
                continue
            g = grad(output, x, seed, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
            assert g is not None
            pair.append(g.detach())
        rows.append(pair[0].reshape(-1))
        same = same and bool(ops["eq"](pair[0], pair[1]).all().item())
    if not rows:
        return np.zeros((x.numel(), 0)), same
    return ops["stack"](rows).numpy().T, same


def _forward(func: Callable[..., Any], inputs: tuple[Any, ...], which: int,
             outputs: int) -> list[Any]:
    x = inputs[which]
    columns: list[list[Tensor]] = [[] for _ in range(outputs)]
    for element in range(x.numel()):
        direction = ops["full"](0, x._shape, x.dtype, x.device)
        direction.reshape(-1)[element] = 1
        with _core.forward_level() as level:
            args = [a.detach() if isinstance(a, Tensor) else a for a in inputs]
            args[which] = ops["clone"](args[which])
            _core.set_tangent(args[which], direction, level)
            for number, out in enumerate(_differentiable(func(*args))):
                t = _core.tangent_of(out, level)
                if t is None:
                    t = ops["full"](0, out._shape, out.dtype, out.device)
                columns[number].append(t.detach().reshape(-1))
    return [ops["stack"](each).numpy() if each else np.zeros((0, 0)) for each in columns]


def _compare(numerical: Any, analytical: Any, number: int, which: int, atol: float, rtol: float,
             how: str) -> None:
    if numerical.size == analytical.size == 0:
        return
    if not np.allclose(analytical, numerical, rtol, atol, equal_nan=True):
        raise GradcheckError(
            f"Jacobian {how}mismatch for output {number} with respect to input {which},\n"
            f"numerical:{numerical}\nanalytical:{analytical}\n")


def _batched(outputs: list[Tensor], inputs: list[Tensor]) -> None:
    for number, output in enumerate(outputs):
        if not output.requires_grad or output.numel() == 0:
            continue
        seeds = [ops["normal"](ops["empty"](output._shape, output.dtype, output.device))
                 for _ in range(2)]
        single = [grad(output, inputs, s, retain_graph=True, allow_unused=True,
                       materialize_grads=True) for s in seeds]
        together = grad(output, inputs, ops["stack"](seeds), retain_graph=True, allow_unused=True,
                        is_grads_batched=True, materialize_grads=True)
        for i, g in enumerate(together):
            want = np.stack([np.asarray(s[i].detach().numpy()) for s in single])  # type: ignore[union-attr]
            assert g is not None
            if not np.allclose(g.detach().numpy(), want, 1e-7, 1e-9):
                raise GradcheckError(f"For output {number} and input {i}: the gradients of a batch "
                                     "(is_grads_batched) differ from those one by one")


def _undefined(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    with enable_grad():
        outputs = [o for o in _differentiable(func(*inputs)) if o.requires_grad]
        wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        if not outputs:
            return
        zeros = [ops["full"](0, o._shape, o.dtype, o.device) for o in outputs]
        for g in grad(outputs, wanted, zeros, allow_unused=True):
            if g is not None and bool((g != 0).any().item()):
                raise GradcheckError("Expected backward function to handle undefined output grads. "
                                     "Gradients of zeros are not zeros")


def gradcheck(func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5,
              rtol: float = 1e-3, raise_exception: bool = True, nondet_tol: float = 0.0,
              check_undefined_grad: bool = True, check_grad_dtypes: bool = False,
              check_batched_grad: bool = False, check_batched_forward_grad: bool = False,
              check_forward_ad: bool = False, check_backward_ad: bool = True,
              fast_mode: bool = False) -> bool:
    """Returns True if the gradients of `func` agree elementwise with central differences of step eps.

    Inputs that require grad should be float64, or complex128, whose parts are changed separately. Raises
    GradcheckError if gradients differ (or returns False without raise_exception). check_forward_ad compares
    tangents too, and check_batched_grad the gradients under vmap. fast_mode is accepted without effect:
    every element is always compared.
    """
    func, points = _in_parts(func, _listed(inputs))
    try:
        _check(func, points, eps, atol, rtol, check_undefined_grad, check_grad_dtypes,
               check_batched_grad, check_forward_ad or check_batched_forward_grad, check_backward_ad,
               nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check(func: Callable[..., Any], inputs: tuple[Any, ...], eps: float, atol: float, rtol: float,
           undefined: bool, dtypes: bool, batched: bool, forward: bool, backward: bool,
           nondet_tol: float) -> None:
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError("gradcheck expects at least one input tensor to require gradient, but none of "
                         "the them have requires_grad=True.")
    for i in wanted:
        if inputs[i].dtype != _core.float64:
            warnings.warn(f"Input #{i} requires gradient and is not a double precision floating point "
                          "or complex. This check will likely fail if all the inputs are not of double "
                          "precision floating point or complex. ", stacklevel=3)
    with enable_grad():
        outputs = _differentiable(func(*inputs))
    if not outputs:
        raise GradcheckError("gradcheck: the function has no floating point output")
    if all(not o.requires_grad for o in outputs) and backward and not forward:
        for i in wanted:
            for each in _numerical(func, inputs, i, len(outputs), eps):
                if not np.allclose(each, 0, atol=atol):
                    raise GradcheckError("Numerical gradient for function expected to be zero")
        return
    numerical = {i: _numerical(func, inputs, i, len(outputs), eps) for i in wanted}
    for i in wanted:
        if backward:
            for number in range(len(outputs)):
                analytical, same = _analytical(outputs, number, inputs[i], None)
                _compare(numerical[i][number], analytical, number, i, atol, rtol, "")
                if not same and nondet_tol == 0.0:
                    raise GradcheckError(
                        "Backward is not reentrant, i.e., running backward with same input and "
                        "grad_output multiple times gives different values, although analytical "
                        "gradient matches numerical gradient.")
        if forward:
            for number, each in enumerate(_forward(func, inputs, i, len(outputs))):
                _compare(numerical[i][number], each, number, i, atol, rtol,
                         "computed with forward mode ")
    if dtypes:
        for i in wanted:
            for o in outputs:
                g = grad(o.sum(), inputs[i], retain_graph=True, allow_unused=True)[0]
                if g is not None and g.dtype != inputs[i].dtype:
                    raise GradcheckError("gradcheck: the dtype of a gradient differs from the dtype of its "
                                         "input")
    if batched:
        _batched(outputs, [inputs[i] for i in wanted])
    if undefined and backward:
        _undefined(func, inputs)


def gradgradcheck(func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, *,
                  eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
                  gen_non_contig_grad_outputs: bool = False, raise_exception: bool = True,
                  nondet_tol: float = 0.0, check_undefined_grad: bool = True,
                  check_grad_dtypes: bool = False, check_batched_grad: bool = False,
                  check_fwd_over_rev: bool = False, check_rev_over_rev: bool = True,
                  fast_mode: bool = False) -> bool:
    """Applies gradcheck to the gradients of `func`, as functions of its inputs and of grad_outputs (random
    numbers unless they are given)."""
    func, points = _in_parts(func, _listed(inputs))
    if grad_outputs is None:
        with enable_grad():
            outputs = _differentiable(func(*points))
        seeds = [ops["normal"](ops["empty"](o._shape, _core.float64, o.device)).requires_grad_()
                 for o in outputs]
    else:
        seeds = [ops["view_as_real"](s.detach()).requires_grad_() if _is_complex(s) else s
                 for s in _listed(grad_outputs)]
    count = len(points)

    def gradients(*args: Any) -> tuple[Any, ...]:
        with enable_grad():  # new tensors that keep the tangents
            own = tuple(a if not isinstance(a, Tensor) or a.requires_grad or not p.requires_grad
                        else _core.variable(a)
                        for a, p in zip(args[:count], points, strict=True))
        with enable_grad():
            found = [(o, s) for o, s in zip(_differentiable(func(*own)), args[count:], strict=True)
                     if o.requires_grad]
            wanted = [x for x in own if isinstance(x, Tensor) and x.requires_grad]
            return grad([o for o, _ in found], wanted, [s for _, s in found], create_graph=True,
                        allow_unused=True, materialize_grads=True)

    return gradcheck(
        gradients, (*points, *seeds), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol, check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes, check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev, check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode)
