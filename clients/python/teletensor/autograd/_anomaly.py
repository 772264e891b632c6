"""Anomaly mode: the error of a backward that produces NaN names the source line of the forward op."""

from __future__ import annotations

import pathlib
import traceback

from .. import _core
from .._core import Tensor, ops
from .._sessions.scopes import Restoring
from .._sessions.session import current_session

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


def _put(before: dict[str, bool]) -> None:
    _switch(before["on"], before["check_nan"])


def is_anomaly_enabled() -> bool:
    """Returns whether anomaly mode is enabled."""
    return _state["on"]


class set_detect_anomaly(Restoring):
    """Enables or disables anomaly mode of the current session: at once if called as a function, and for the
    block if used in a `with` statement.

    In anomaly mode, nodes record the line that created them, and a backward checks every gradient that it
    computes. It waits for each of them, so use it only to find errors.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        before = dict(_state)
        super().__init__(lambda: before, lambda: None, _put)
        _switch(mode, check_nan)


class detect_anomaly(Restoring):
    """Enables anomaly mode in its block: the error of a backward that produces NaN names the line of the
    forward op."""

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(lambda: dict(_state), lambda: _switch(True, check_nan), _put)
