"""What the functions of linalg share."""

from __future__ import annotations

from typing import Any, TypeVar

from .. import _capturing, _core
from .._core import Tensor, ops
from .._session import owner_of

__all__: list[str] = []


def wants_gradient(*tensors: Tensor) -> bool:
    """Will the tape record what is computed from them, or may they carry tangents?"""
    return _core.depth() > 0 or _core.grad_mode() and any(x.requires_grad for x in tensors)


_T = TypeVar("_T")


def settled(a: Tensor, results: _T) -> _T:
    """results, computed from a: waits for them, so that the error of a matrix is raised at this line. A
    function that is captured or scripted does not wait."""
    session = owner_of(a._session)
    if _capturing.active() is None and not session._closed:  # a script's stand-ins are in a closed one
        session.synchronize()
    return results


def square(a: Tensor, name: str) -> None:
    """Refuses what is no batch of square matrices."""
    shape = a._shape
    if len(shape) < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if shape[-1] != shape[-2]:
        raise RuntimeError(f"linalg.{name}: A must be batches of square matrices, but they are "
                           f"{shape[-2]} by {shape[-1]} matrices")


def floating(a: Tensor, name: str) -> None:
    """Refuses integers and bools."""
    if not a.is_floating_point() and not is_complex(a):
        raise NotImplementedError(f"linalg.{name}: Expected a floating point or complex tensor as input. "
                           f"Got {a.dtype}")


def is_complex(a: Tensor) -> bool:
    """Complex elements?"""
    return a.dtype.is_complex


def adjoint(a: Tensor) -> Tensor:
    """The conjugate transpose of matrices."""
    turned = a.transpose(-2, -1)
    return ops["conj"](turned) if is_complex(a) else turned


def identity(n: int, like: Tensor, m: int | None = None) -> Tensor:
    """An n x m identity of like's dtype and device."""
    return ops["eye"](n, n if m is None else m, like.dtype, like.device)


def epsilon(a: Tensor) -> float:
    """The rounding error of a's dtype."""
    return 2.0**-52 if str(a.dtype).split(".")[-1] in ("float64", "complex128") else 2.0**-23


def tolerances(a: Tensor, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """atol and rtol with PyTorch's defaults: max(m, n) * eps, and none where there is an atol."""
    if rtol is None:
        rtol = epsilon(a) * max(a._shape[-2:])
        if isinstance(atol, Tensor):
            rtol = ops["where"](atol > 0, 0.0, rtol)
        elif atol is not None and atol > 0:
            rtol = 0.0
    return 0.0 if atol is None else atol, rtol
