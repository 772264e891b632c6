"""Function transforms: grad, vjp, jvp, Jacobians, Hessians, vmap, and calls of modules as functions."""

from __future__ import annotations

from typing import Any

from ._calls import functional_call, stack_module_state
from ._derivatives import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
)
from ._vmap import vmap


def functionalize(func: Any, *, remove: str = "mutations") -> Any:
    """func itself: values never change here, in-place code only gives names new ones."""
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            f"functionalize: expected remove='mutations' or 'mutations_and_views', got {remove!r}")
    return func


__all__ = ["functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev",
           "jvp",
           "linearize", "stack_module_state", "vjp", "vmap"]
