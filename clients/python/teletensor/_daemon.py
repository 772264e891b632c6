"""Finding this user's daemon, its binary, and starting an embedded one."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import grp
import os
import pathlib
import pwd
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from ._errors import TeletensorError
from ._transport import open_transport

__all__ = ["answers", "embedded", "ends_with_this", "find_daemon", "free_port", "runtime_dir", "start"]

START_SECONDS = 20.0  # in which an embedded daemon says that it is ready
_BINARY = "teletensord"
_BUILT = pathlib.PurePath("build", "release", "bin", _BINARY)
_WHEEL = pathlib.PurePath("teletensord", "bin", _BINARY)  # the package that the extra `daemon` installs
_PACKAGE = pathlib.PurePath("clients", "python", "teletensor")  # in a checkout
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_LINKS = 40  # symbolic links on the way to one file, as Linux allows


def runtime_dir() -> pathlib.Path:
    """The folder of this user's sockets: XDG_RUNTIME_DIR, else a private one under /tmp."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.access(given, os.W_OK):
        return pathlib.Path(given)
    path = pathlib.Path(tempfile.gettempdir()) / f"teletensor-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.is_symlink():
        raise TeletensorError(f"{path} belongs to another user")
    return path


def answers(path: pathlib.Path) -> bool:
    """Whether a daemon serves on the socket at `path`."""
    if not path.exists():
        return False
    transport = open_transport(f"unix:{path}")
    try:
        return transport.answers(2.0)
    finally:
        transport.close()


def _places() -> Iterator[pathlib.Path]:
    """Where a daemon may have been installed or built together with this package, then PATH."""
    package = pathlib.Path(__file__).resolve().parent
    yield package / _BINARY
    yield package.parent / _WHEEL
    prefix = pathlib.Path(sys.prefix).absolute()
    yield prefix / "bin" / _BINARY
    if package.parts[-3:] == _PACKAGE.parts:
        yield package.parents[2] / _BUILT
    if sys.prefix != sys.base_prefix and (prefix.parent / _PACKAGE / "__init__.py").exists():
        yield prefix.parent / _BUILT
    for folder in os.get_exec_path():
        if os.path.isabs(folder):  # a relative entry is the working directory
            yield pathlib.Path(folder) / _BINARY


def find_daemon() -> str:
    """The teletensord binary: TELETENSORD, beside this package or in its checkout, PATH.

    TeletensorError where there is none, or where another user owns it, or can replace it.
    """
    given = os.environ.get("TELETENSORD")
    if given:
        return given
    for path in _places():
        if path.is_file() and os.access(path, os.X_OK):
            if reason := _changeable(path):
                raise TeletensorError(f"{path} is not run, because {reason}; set TELETENSORD to the path "
                                      "of a daemon that you trust")
            return str(path)
    raise TeletensorError(
        "no teletensord to start: install the package teletensord, set TELETENSORD to the binary, "
        "put it on PATH, or give an address")


def _changeable(path: pathlib.Path) -> str:
    """Why another user than this one and root can decide what is at `path`; "": none can."""
    at, names, links = pathlib.Path("/"), list(reversed(path.parts[1:])), 0
    while True:
        status = os.lstat(at)
        if reason := _of_others(at, status):
            return reason
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _LINKS:
                return f"{path} has too many symbolic links"
            target = pathlib.Path(os.readlink(at))
            at = pathlib.Path("/") if target.is_absolute() else at.parent
            names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        if not names:
            return ""
        name = names.pop()
        at = at.parent if name == ".." else at / name


def _of_others(path: pathlib.Path, status: os.stat_result) -> str:
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return ""
    # In a folder with the sticky bit (/tmp) nobody replaces what another user owns.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and not _private(status.st_gid, status.st_uid)):
        return f"other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _private(gid: int, uid: int) -> bool:
    """Whether the user `uid` is the only member of the group `gid`, which is named after the user."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return (user.pw_gid == gid and group.gr_name == user.pw_name
            and not set(group.gr_mem) - {user.pw_name})


def embedded() -> pathlib.Path:
    """The socket of this user's embedded daemon, which is started if none answers."""
    folder = runtime_dir()
    path = folder / "teletensor-embedded.sock"
    with open(folder / "teletensor-embedded.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if answers(path):
            return path
        start(path)
        return path


def start(path: pathlib.Path, *flags: str,
          preexec_fn: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
    """Starts an embedded daemon that serves on the socket at `path`; it is ready. Its log is a file of the
    runtime folder. TeletensorError: it did not start. `preexec_fn` is subprocess.Popen's."""
    command = [find_daemon(), "--embedded", "--socket", str(path), *flags]
    log = open(runtime_dir() / "teletensor-embedded.log", "ab")
    daemon = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        start_new_session=True, close_fds=True, preexec_fn=preexec_fn)
    log.close()
    try:
        problem = _not_ready(daemon)
        if problem:
            raise TeletensorError(f"{command[0]} {problem}; its log is {log.name}")
    except BaseException:
        daemon.kill()
        daemon.wait()
        raise
    finally:
        assert daemon.stdout is not None
        daemon.stdout.close()
    return daemon


def _not_ready(daemon: subprocess.Popen[bytes]) -> str:
    """Waits for the line in which a daemon says that it is ready; what it did instead, or ""."""
    assert daemon.stdout is not None
    output = select.poll()
    output.register(daemon.stdout, select.POLLIN)
    deadline = time.monotonic() + START_SECONDS
    said = b""
    while b"\n" not in said:
        left = deadline - time.monotonic()
        if left <= 0 or not output.poll(left * 1000):
            return f"did not say within {START_SECONDS:g} s that it is ready, and was ended"
        part = os.read(daemon.stdout.fileno(), 4096)
        if not part:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=1)
            status = daemon.poll()
            return "closed its output" if status is None else f"did not start (exit {status})"
        said += part
    return ""


def ends_with_this(number: int, mask: set[Any]) -> Callable[[], None]:
    """For a child, before its exec: it gets the signal `number` when this process ends, however that
    happens, and has the signal mask `mask`."""
    parent, prctl = os.getpid(), ctypes.CDLL(None, use_errno=True).prctl

    def begin() -> None:
        if prctl(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return begin


def free_port() -> int:
    """A TCP port of this machine that no process uses now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])
