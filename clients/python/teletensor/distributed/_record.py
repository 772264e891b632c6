"""The errors of the processes of a launch: `record` writes them to a file, and the launcher reads it.

The file has the format of torch.distributed.elastic, so that programs that use PyTorch's `record` work with
this launcher, and programs that use this one work with torchrun.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["record"]

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # the variable with the file's name
_MAX_BYTES = 1 << 20  # of a file that the launcher reads

_F = TypeVar("_F", bound=Callable[..., Any])


def record(fn: _F, error_handler: Any = None) -> _F:
    """Wraps the main function of a program that a launcher starts. An exception that the function raises is
    written to the file that the launcher names in TORCHELASTIC_ERROR_FILE, and raised again; the launcher
    shows the exception of the process that has failed first. SystemExit with status 0 is a return. With an
    `error_handler`, its initialize() is called before the function, and its record_exception(error) in
    place of the write."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if error_handler is not None:
            error_handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
            return None
        except Exception as error:
            (_write if error_handler is None else error_handler.record_exception)(error)
            raise

    return wrapper  # type: ignore[return-value]


def _write(error: Exception) -> None:
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    told = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": {
        "py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}}}
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(told, file)
    except OSError as reason:
        print(f"teletensor: {path} could not be written: {reason}", file=sys.stderr)


def recorded(path: str) -> tuple[int, str] | None:
    """When a file was written, in nanoseconds, and the traceback in it; None if it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            message = json.loads(file.read(_MAX_BYTES))["message"]
        if isinstance(message, dict):
            message = message.get("extraInfo", {}).get("py_callstack") or message["message"]
        return os.stat(path).st_mtime_ns, str(message).rstrip()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
