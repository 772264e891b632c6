"""The command `teletensor doctor`: checks in order everything that is needed to compute a first value, and
says how to repair what is wrong."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from .. import _core, _functions
from .._connection.credentials import (
    Credentials,
    checked_address,
    credentials_of,
    token_file_warning,
)
from .._connection.daemon import find_daemon, runtime_dir
from .._connection.reach import Fault, steps
from .._connection.transport import CallError
from .._sessions.errors import TeletensorError
from .._sessions.session import connect, place_of
from ..version import __version__

__all__ = ["doctor"]

T = TypeVar("T")


class _Place(NamedTuple):
    """An address at which to look for a daemon."""

    address: str
    source: str  # the setting that names the address

    def __str__(self) -> str:
        return f"{self.address} ({self.source})"


class _Files(NamedTuple):
    """The files of the token, the authority and the client's certificate, which have been read."""

    credentials: Credentials

    def __str__(self) -> str:
        c = self.credentials
        names = [c.token_source if os.path.exists(c.token_source) else "", c.ca_file,
                 *(c.certificate_files or ())]
        return ", ".join(filter(None, names)) or "none"


def doctor(args: argparse.Namespace) -> int:
    """Prints one line for each check; the exit status is 1 if any check failed."""
    report = _Report()
    report.add("client", lambda: f"{__version__}, Python {platform.python_version()}, "
                                 f"{len(_core.op_table())} ops")
    report.add("transport", _transport)
    given = args.address or os.environ.get("TELETENSOR_ADDRESS")
    if not given:  # teletensor would start a daemon itself
        report.add("teletensord binary", find_daemon)
    report.add("runtime folder", runtime_dir)
    place = report.add("address", lambda: _place(args.address))
    files = place and report.add("files", lambda: _Files(credentials_of(place.address)))
    if place is not None and files is not None:
        for name, look in [*steps(files.credentials), ("token", lambda: _token(files.credentials)),
                           ("session", lambda: _session(place.address))]:
            if report.add(name, look) is None:
                break  # the later checks depend on this one
    return 1 if report.bad else 0


class _Report:
    bad = False

    def add(self, what: str, look: Callable[[], T]) -> T | None:
        """Prints what look() returns, and returns it; returns None if the check failed."""
        try:
            found = look()
        except (Fault, TeletensorError, RuntimeError, OSError, ValueError) as error:
            print(f"FAIL  {what}: {error}")
            self.bad = True
            return None
        print(f"ok    {what}: {found}")
        return found


def _transport() -> str:
    from .._connection.native import wire

    try:
        wire()
        return "native"
    except CallError as error:
        return f"grpcio ({error})"


def _place(given: str | None) -> _Place:
    address = place_of(given)
    source = ("--address" if given else "TELETENSOR_ADDRESS" if os.environ.get("TELETENSOR_ADDRESS") else
              "no address is given: this user's own daemon, or an embedded one")
    return _Place(checked_address(address), source)


def _token(credentials: Credentials) -> str:
    if not credentials.token:
        return "none"
    warning = token_file_warning(credentials.token_source)
    return f"from {credentials.token_source}" + (f"; {warning}" if warning else "")


def _session(address: str) -> str:
    with connect(address) as session, session:
        begin = time.perf_counter()
        value = _functions.ones(64, 64).sum().item()
        if value != 4096.0:
            raise TeletensorError(f"the sum of 4096 ones must be 4096, it is {value}")
        ms = (time.perf_counter() - begin) * 1000
        return (f"teletensord {session.server_version}, devices {', '.join(session.devices)}, a sum "
                f"computed and read in {ms:.1f} ms")
