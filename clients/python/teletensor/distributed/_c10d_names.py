"""Names of torch.distributed that are about backends, debugging and several collectives at once."""

from __future__ import annotations

import contextlib
import datetime
import enum
import os
import pdb
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from .._core import Tensor
from .._sessions.errors import RankLostError
from ._collectives import all_gather, all_reduce, barrier
from ._group import ProcessGroup, ReduceOp, Work, get_backend, get_rank, is_nccl_available

__all__ = [
    "Backend", "DebugLevel", "DistBackendError", "all_gather_coalesced", "all_reduce_coalesced",
    "breakpoint", "default_pg_timeout", "get_backend_config", "get_debug_level",
    "get_default_backend_for_device", "reduce_op", "set_debug_level", "set_debug_level_from_env",
    "supports_complex",
]  # fmt: skip

default_pg_timeout = datetime.timedelta(minutes=30)
reduce_op = ReduceOp  # PyTorch's earlier name
DistBackendError = RankLostError  # PyTorch's name of the error of a collective whose ranks have ended


class Backend(str):
    """The name of a backend, in lower case. TypeError for an argument that is not a str."""

    UNDEFINED = "undefined"
    GLOO = "gloo"
    NCCL = "nccl"
    backend_list: ClassVar[list[str]] = [UNDEFINED, GLOO, NCCL]

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise TypeError(f"Backend constructor parameter must be string-ish, not {type(name).__name__}")
        return super().__new__(cls, name.lower())


def get_backend_config(group: Any = None) -> str:
    """The backend of a group for each type of device, such as "cpu:gloo,cuda:gloo"."""
    name = get_backend(group)
    return f"cpu:{name},cuda:{name}"


def get_default_backend_for_device(device: Any) -> str:
    """Returns "nccl" for a GPU if the daemon has one, and otherwise "gloo". ValueError for another type of
    device."""
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"Default backend not registered for device : {device}")
    return "nccl" if kind == "cuda" and is_nccl_available() else "gloo"


def supports_complex(reduceOp: ReduceOp) -> bool:
    """Returns whether PyTorch's collectives reduce complex tensors in this way."""
    return reduceOp in (ReduceOp.SUM, ReduceOp.AVG)


# ---------------------------------------------------------------- debugging


class DebugLevel(enum.Enum):
    """The values of the variable TORCH_DISTRIBUTED_DEBUG, by which programs choose what they log. The
    checks of collectives do not depend on it: the daemons always compare the ranks' collectives."""

    OFF = 0
    INFO = 1
    DETAIL = 2


_level: DebugLevel | None = None


def get_debug_level() -> DebugLevel:
    """The level that set_debug_level has set, or that of the variable TORCH_DISTRIBUTED_DEBUG. RuntimeError
    if that is not OFF, INFO or DETAIL."""
    if _level is None:
        set_debug_level_from_env()
    assert _level is not None
    return _level


def set_debug_level(level: DebugLevel) -> None:
    """Sets the result of get_debug_level."""
    global _level
    _level = DebugLevel(level)


def set_debug_level_from_env() -> None:
    """Sets the level to that of the variable TORCH_DISTRIBUTED_DEBUG, by default OFF."""
    name = os.environ.get("TORCH_DISTRIBUTED_DEBUG") or "OFF"
    try:
        set_debug_level(DebugLevel[name.upper()])
    except KeyError:
        raise RuntimeError(
            f"The value of TORCH_DISTRIBUTED_DEBUG must be one of OFF, INFO or DETAIL, not {name}"
        ) from None


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float = 3600) -> None:
    """Starts the debugger on one rank, while all other ranks wait for it in a barrier. The first `skip`
    calls are ignored. timeout_s has no effect: the ranks wait for the timeout of the world."""
    global _skipped
    if skip > 0:
        _skipped += 1
        if _skipped <= skip:
            return
    if get_rank() == rank:
        debugger = pdb.Pdb()
        debugger.reset()
        debugger.interaction(sys._getframe(1), None)  # until the program is continued
    barrier()


_skipped = 0


# ---------------------------------------------------------------- several collectives at once


def all_reduce_coalesced(
    tensors: list[Tensor] | Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduces each of the tensors, as all_reduce does."""
    several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for each in several:
        all_reduce(each, op, group)
    return Work(several) if async_op else None


def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Gathers each tensor of input_tensor_list: output_tensor_lists[rank][i] becomes tensor i of the rank.
    ValueError if a list has another length."""
    if any(len(each) != len(input_tensor_list) for each in output_tensor_lists):
        raise ValueError("all_gather_coalesced: each list of outputs must be as long as the list of inputs")
    for i, each in enumerate(input_tensor_list):
        all_gather([outputs[i] for outputs in output_tensor_lists], each, group)
    return Work([each for outputs in output_tensor_lists for each in outputs]) if async_op else None


class _CoalescingManager:
    """The collectives of a _coalescing_manager."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def append(self, work: Work | None = None) -> None:
        """Adds the handle of a collective."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Waits for all handles, as Work.wait does."""
        for work in self.works:
            work.wait()


@contextlib.contextmanager
def _coalescing_manager(
    group: ProcessGroup | None = None, device: Any = None, async_ops: bool = False
) -> Iterator[_CoalescingManager]:
    """A context whose collectives PyTorch issues together. Here every collective is a command of the
    session's stream, and they need not be joined."""
    yield _CoalescingManager()
