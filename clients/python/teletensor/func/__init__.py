"""Function transforms: grad, vjp, jvp, Jacobians, Hessians, vmap, and calls of modules as functions."""

from __future__ import annotations

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

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp",
           "linearize", "stack_module_state", "vjp", "vmap"]
