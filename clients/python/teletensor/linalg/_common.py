"""Helpers that the functions of linalg share."""

from __future__ import annotations

from typing import Any, TypeVar

from .. import _core
from .._core import Tensor, ops
from .._script import capturing as _capturing
from .._sessions.session import owner_of

__all__: list[str] = []


def wants_gradient(*tensors: Tensor) -> bool:
    """Returns whether the tape will record what is computed from the tensors, or they may carry
    tangents."""
    return _core.depth() > 0 or _core.grad_mode() and any(x.requires_grad for x in tensors)


_T = TypeVar("_T")


def settled(a: Tensor, results: _T) -> _T:
    """Returns results, which were computed from a, after waiting for them, so that an error of a matrix is
    raised at this line. Does not wait in a function that is captured or scripted."""
    session = owner_of(a._session)
    # the stand-in tensors of a script belong to a closed session
    if _capturing.active() is None and not session._closed:
        session.synchronize()
    return results


def square(a: Tensor, name: str) -> None:
    """RuntimeError if a is not a batch of square matrices."""
    shape = a._shape
    if len(shape) < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if shape[-1] != shape[-2]:
        raise RuntimeError(f"linalg.{name}: A must be batches of square matrices, but they are "
                           f"{shape[-2]} by {shape[-1]} matrices")


def floating(a: Tensor, name: str) -> None:
    """RuntimeError for integers and bools."""
    if not a.is_floating_point() and not is_complex(a):
        raise NotImplementedError(f"linalg.{name}: Expected a floating point or complex tensor as input. "
                           f"Got {a.dtype}")


def is_complex(a: Tensor) -> bool:
    """Returns whether the elements are complex."""
    return a.dtype.is_complex


def adjoint(a: Tensor) -> Tensor:
    """The conjugate transpose of matrices."""
    turned = a.transpose(-2, -1)
    return ops["conj"](turned) if is_complex(a) else turned


def identity(n: int, like: Tensor, m: int | None = None) -> Tensor:
    """An n x m identity matrix with the dtype and device of like."""
    return ops["eye"](n, n if m is None else m, like.dtype, like.device)


def epsilon(a: Tensor) -> float:
    """The machine epsilon of a's dtype."""
    return 2.0**-52 if str(a.dtype).split(".")[-1] in ("float64", "complex128") else 2.0**-23


def tolerances(a: Tensor, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """atol and rtol with PyTorch's defaults: rtol is max(m, n) * eps, or 0 if atol is given."""
    if rtol is None:
        rtol = epsilon(a) * max(a._shape[-2:])
        if isinstance(atol, Tensor):
            rtol = ops["where"](atol > 0, 0.0, rtol)
        elif atol is not None and atol > 0:
            rtol = 0.0
    return 0.0 if atol is None else atol, rtol
