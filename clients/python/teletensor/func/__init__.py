"""Function transforms: grad, vjp, jvp, Jacobians, Hessians, vmap, and functional calls of modules."""

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
    """Returns func itself: values never change here, and in-place operations only replace the value to
    which a name refers."""
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            f"functionalize: expected remove='mutations' or 'mutations_and_views', got {remove!r}")
    return func


__all__ = ["functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev",
           "jvp",
           "linearize", "stack_module_state", "vjp", "vmap"]
