"""The GPU memory of the current session.

The daemon keeps freed memory for any session that needs it next. A session's own memory is that of its
tensors, tape and queue, so the allocated and the reserved memory are the same number.
"""

from __future__ import annotations

from typing import Any

from .._sessions.errors import OutOfMemoryError
from .._sessions.session import current_session
from .._tools.admin import Admin, bytes_text
from ._device import index_of, init, is_available

__all__ = [
    "OutOfMemoryError", "empty_cache", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
    "reset_peak_memory_stats",
]  # fmt: skip


def _use(device: Any, reset: bool = False) -> dict[str, Any]:
    """The daemon's account of the session on a GPU, after everything issued has run."""
    name = f"cuda:{index_of(device)}"
    session = current_session()
    session.synchronize()
    uses = Admin(session._transport).holdings(most=1, reset_peaks=reset)["session"]["memory"]
    found: dict[str, Any] = next(use for use in uses if use["device"] == name)
    return found


def memory_allocated(device: Any = None) -> int:
    """The bytes that the session uses on a GPU; 0 if there is no GPU. Waits for everything that has been
    issued."""
    return int(_use(device)["used"]) if is_available() else 0


def max_memory_allocated(device: Any = None) -> int:
    """The maximum so far of the bytes that the session uses, or since reset_peak_memory_stats()."""
    return int(_use(device)["peak"]) if is_available() else 0


def memory_reserved(device: Any = None) -> int:
    """As memory_allocated(): the daemon keeps freed memory for all sessions."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    """As max_memory_allocated()."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Resets max_memory_allocated() to memory_allocated() on every device of the session."""
    _use(device, reset=True)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The (free, total) bytes of the GPU memory that the daemon may use for all sessions."""
    use = _use(device)
    return use["device_total"] - use["device_used"], use["device_total"]


def memory_stats(device: Any = None) -> dict[str, int]:
    """A dict with "allocated_bytes.all.current" and ".peak", and the same for "reserved_bytes"; {} without
    a GPU."""
    if not is_available():
        return {}
    use = _use(device)
    return {f"{kind}_bytes.all.{when}": int(use[field]) for kind in ("allocated", "reserved")
            for when, field in (("current", "used"), ("peak", "peak"))}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the GPU memory that the session and all sessions use, with the session's largest
    tensors."""
    init()
    index = index_of(device)
    held = current_session().memory(0 if abbreviated else 10)
    use = next(use for use in held if use["device"] == f"cuda:{index}")
    lines = [f"cuda:{index}, this session: {bytes_text(use['used'])} of {bytes_text(use['quota'])}, "
             f"at most {bytes_text(use['peak'])} so far",
             f"all sessions: {bytes_text(use['device_used'])} of {bytes_text(use['device_total'])}"]
    lines += [f"{bytes_text(tensor['bytes']):>12}  {tensor['site']}" for tensor in use["tensors"]]
    return "\n".join(lines)


def empty_cache() -> None:
    """Does nothing: memory that a session frees is available to all sessions at once, and the daemon keeps
    it for them."""
