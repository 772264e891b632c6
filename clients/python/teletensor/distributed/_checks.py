"""Checks of the arguments of the functions of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core import Tensor, described
from .._sessions.session import owner_of
from ..autograd import no_grad
from ._group import ProcessGroup, ReduceOp, found, is_member


def check(tensor: Any, name: str, group: ProcessGroup | None = None) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a Tensor, not {described(tensor)}")
    session = group._session if group is not None else None
    if session is not None and owner_of(tensor._session) is not session:
        from .._script import compiling

        if compiling():
            raise RuntimeError(
                "a function of jit.script cannot call collectives, sends and receives: tt.compile takes it"
            )
        raise ValueError(f"{name} belongs to another session than the group, which was created in session "
                         f"{session!r}")


def check_reduced(tensor: Any, op: ReduceOp, name: str = "tensor") -> None:
    check(tensor, name)
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op must be a ReduceOp, not {type(op).__name__}")
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and (
        tensor.dtype.is_floating_point or tensor.dtype.is_complex
    ):
        raise RuntimeError(f"Cannot use {op} with non-integral dtype {tensor.dtype}")


def listed(given: Any, name: str, group: ProcessGroup) -> list[Any]:
    if not isinstance(given, (list, tuple)) or len(given) != group.size():
        size = len(given) if isinstance(given, (list, tuple)) else type(given).__name__
        raise ValueError(
            f"{name} must be a list of one element for each rank of the group, which has {group.size()}; "
            f"it is {size}"
        )
    return list(given)


def alike(tensors: Sequence[Any], name: str) -> None:
    for i, each in enumerate(tensors):
        check(each, f"{name}[{i}]")
        if each.dtype != tensors[0].dtype or each.shape != tensors[0].shape:
            raise ValueError(
                f"{name}: tensors of one dtype and shape are expected, got {tensors[0].dtype} of "
                f"{tuple(tensors[0].shape)} and {each.dtype} of {tuple(each.shape)}"
            )


def write(target: Any, source: Any, names: tuple[str, str], same_shape: bool = True) -> None:
    """Copies the elements of the source to the target."""
    for tensor, name in zip((target, source), names, strict=True):
        check(tensor, name)
    if target.dtype != source.dtype:
        raise ValueError(f"{names[0]} is {target.dtype}, {names[1]} {source.dtype}")
    if target.shape != source.shape if same_shape else target.numel() != source.numel():
        raise ValueError(
            f"{names[0]} of {tuple(target.shape)} does not take {names[1]} of {tuple(source.shape)}"
        )
    with no_grad():
        target.copy_(source.reshape(target.shape))


def member(group: Any) -> ProcessGroup | None:
    """The group; None if this process is not a member of it."""
    return found(group) if is_member(group) else None
