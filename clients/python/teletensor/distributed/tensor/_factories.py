"""Functions that make new tensors of which each rank of a mesh has a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import _api as tt
from ..device_mesh import DeviceMesh
from ._dtensor import DTensor, distribute_tensor
from ._placements import Placement

__all__ = ["empty", "full", "ones", "rand", "randn", "zeros"]


def _made(
    make: Callable[..., Any],
    size: Sequence[Any],
    device_mesh: DeviceMesh | None,
    placements: Sequence[Placement] | None,
    requires_grad: bool,
    same: bool,
    **options: Any,
) -> DTensor:
    """Each rank makes the whole tensor and keeps its part. `same`: all ranks make equal tensors."""
    sizes = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    whole = make(tuple(sizes), **options).requires_grad_(requires_grad)
    return distribute_tensor(whole, device_mesh, placements, src_data_rank=None if same else 0)


def zeros(
    *size: Any, requires_grad: bool = False, dtype: Any = None, layout: Any = None,
    device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None,
) -> DTensor:  # fmt: skip
    """A tensor of zeros of this global size. The defaults are those of distribute_tensor; `layout` has no
    effect."""
    return _made(tt.zeros, size, device_mesh, placements, requires_grad, True, dtype=dtype)


def ones(
    *size: Any, requires_grad: bool = False, dtype: Any = None, layout: Any = None,
    device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None,
) -> DTensor:  # fmt: skip
    """A tensor of ones; see zeros."""
    return _made(tt.ones, size, device_mesh, placements, requires_grad, True, dtype=dtype)


def empty(
    *size: Any, requires_grad: bool = False, dtype: Any = None, layout: Any = None,
    device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None,
) -> DTensor:  # fmt: skip
    """A tensor of arbitrary values; see zeros."""
    return _made(tt.empty, size, device_mesh, placements, requires_grad, True, dtype=dtype)


def full(
    size: Sequence[int], fill_value: Any, *, requires_grad: bool = False, dtype: Any = None,
    layout: Any = None, device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> DTensor:  # fmt: skip
    """A tensor of one value; see zeros."""
    return _made(tt.full, [size], device_mesh, placements, requires_grad, True, dtype=dtype,
                 fill_value=fill_value)  # fmt: skip


def rand(
    *size: Any, requires_grad: bool = False, dtype: Any = None, layout: Any = None,
    device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None,
) -> DTensor:  # fmt: skip
    """Random numbers from 0 to 1, as the first rank of the mesh draws them; see zeros."""
    return _made(tt.rand, size, device_mesh, placements, requires_grad, False, dtype=dtype)


def randn(
    *size: Any, requires_grad: bool = False, dtype: Any = None, layout: Any = None,
    device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None,
) -> DTensor:  # fmt: skip
    """Normally distributed random numbers, as the first rank of the mesh draws them; see zeros."""
    return _made(tt.randn, size, device_mesh, placements, requires_grad, False, dtype=dtype)
