"""Anomaly mode: a backward that makes NaN names the line of the forward op."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .._session import current_session

__all__ = ["detect_anomaly", "is_anomaly_enabled", "set_detect_anomaly"]

_PACKAGE = str(pathlib.Path(__file__).parents[1])
_state: dict[str, bool] = {"on": False, "check_nan": True}


def _site() -> str:
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(_PACKAGE)]
    return "".join(traceback.format_list(frames[-4:])) + (
        f"\n{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "")


def _check(name: str, gradients: list[Tensor | None], site: str) -> None:
    if not _state["check_nan"]:
        return
    for number, g in enumerate(gradients):
        if g is None or not g.dtype.is_floating_point or g._inside:
            continue
        if bool(ops["any"](ops["isnan"](g)).item()):
            trace, _, line = site.rpartition("\n")
            text = f"Function '{name}' returned nan values in its {number}th output."
            if line:
                text += f" The forward op was recorded at {line}"
            raise RuntimeError(text + (f"\nTraceback of forward call that caused the error:\n{trace}"
                                       if trace else ""))


def _switch(on: bool, check_nan: bool) -> None:
    _state["on"], _state["check_nan"] = on, check_nan
    core = current_session()._core
    if on:
        _core.set_anomaly(core, _site, _check)
    else:
        _core.set_anomaly(core, None, None)


def is_anomaly_enabled() -> bool:
    """Is anomaly mode on?"""
    return _state["on"]


class set_detect_anomaly(contextlib.ContextDecorator):
    """Switches anomaly mode of the current session: as a function at once, as a `with` for its body.

    Nodes remember the line that recorded them, and a backward checks every gradient it makes (it
    waits for each: for finding errors only).
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = dict(_state)
        _switch(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        _switch(self._before["on"], self._before["check_nan"])


class detect_anomaly(contextlib.ContextDecorator):
    """Anomaly mode in its body: the error of a backward that makes NaN names the forward line."""

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._stack: list[dict[str, bool]] = []

    def __enter__(self) -> None:
        self._stack.append(dict(_state))
        _switch(True, self._check_nan)

    def __exit__(self, *_: Any) -> None:
        before = self._stack.pop()
        _switch(before["on"], before["check_nan"])
