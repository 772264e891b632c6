"""Finds the user's daemon and the teletensord binary, and starts embedded daemons."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pathlib
import pwd
import select
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from .._sessions.errors import TeletensorError
from .notices import tell
from .transport import open_transport

__all__ = ["answers", "embedded", "ends_with_this", "find_daemon", "free_port", "runtime_dir", "start"]

START_SECONDS = 20.0  # the time within which an embedded daemon must report that it is ready
_BINARY = "teletensord"
_BUILT = pathlib.PurePath("build", "release", "bin", _BINARY)
_WHEEL = pathlib.PurePath("teletensord", "bin", _BINARY)  # the package that the `daemon` extra installs
# the package's folder in a checkout of the repository
_PACKAGE = pathlib.PurePath("clients", "python", "teletensor")
_LINKS = 40  # the maximum number of symbolic links on the way to one file, as in Linux


def runtime_dir() -> pathlib.Path:
    """Returns the folder of this user's sockets: XDG_RUNTIME_DIR, or else a private folder under /tmp.

    The daemon uses the same folder (`default_socket` in server/base/os/listen.cc). TMPDIR is not used,
    because a daemon and its clients often have different ones, such as that of a batch job.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.access(given, os.W_OK):
        return pathlib.Path(given)
    path = pathlib.Path("/tmp") / f"teletensor-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise TeletensorError(f"{path} is not a directory that only this user can open")
    return path


def answers(path: pathlib.Path) -> bool:
    """Returns whether a daemon answers on the socket at `path`."""
    if not path.exists():
        return False
    transport = open_transport(f"unix:{path}")
    try:
        return transport.answers(2.0)
    finally:
        transport.close()


def _places() -> Iterator[pathlib.Path]:
    """Yields the places where a daemon may have been installed or built together with this package, then
    the folders of PATH."""
    package = pathlib.Path(__file__).resolve().parents[1]
    yield package / _BINARY
    yield package.parent / _WHEEL
    prefix = pathlib.Path(sys.prefix).absolute()
    yield prefix / "bin" / _BINARY
    if package.parts[-3:] == _PACKAGE.parts:
        yield package.parents[2] / _BUILT
    if sys.prefix != sys.base_prefix and (prefix.parent / _PACKAGE / "__init__.py").exists():
        yield prefix.parent / _BUILT
    for folder in os.get_exec_path():
        if os.path.isabs(folder):  # a relative entry depends on the working directory
            yield pathlib.Path(folder) / _BINARY


def find_daemon() -> str:
    """Returns the path of the teletensord binary: the one that TELETENSORD names, or one beside this
    package or in its checkout, or one in PATH, in this order.

    Raises TeletensorError if there is no binary, or if a user other than this one and root owns the binary
    or could replace it.
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
    """Returns why a user other than this one and root could change what is at `path`, or "" if none can."""
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
    # In a folder with the sticky bit (such as /tmp) only the owner of a file can replace it.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and not _private(status.st_gid, status.st_uid)):
        return f"other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _private(gid: int, uid: int) -> bool:
    """Returns whether the user `uid` is the only member of the group `gid` and the group has that user's
    name."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return (user.pw_gid == gid and group.gr_name == user.pw_name
            and not set(group.gr_mem) - {user.pw_name})


def embedded() -> pathlib.Path:
    """Returns the socket of this user's embedded daemon; starts the daemon, and says so, if none
    answers."""
    folder = runtime_dir()
    path = folder / "teletensor-embedded.sock"
    with open(folder / "teletensor-embedded.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if answers(path):
            return path
        start(path)
    # A program that expects its user's daemon would otherwise take the new, empty one for it.
    tell("no daemon found, started an embedded one (nothing of an earlier daemon is here)")
    return path


def start(path: pathlib.Path, *flags: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Starts an embedded daemon that serves on the socket at `path` and returns when it is ready. Its log
    is a file in the runtime folder. Raises TeletensorError if the daemon did not start. `prefix`: the words
    of a command that executes the daemon."""
    binary = find_daemon()
    command = [*prefix, binary, "--embedded", "--socket", str(path), *flags]
    log = open(runtime_dir() / "teletensor-embedded.log", "ab")
    daemon = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        start_new_session=True, close_fds=True)
    log.close()
    try:
        problem = _not_ready(daemon)
        if problem:
            raise TeletensorError(f"{binary} {problem}; its log is {log.name}")
    except BaseException:
        daemon.kill()
        daemon.wait()
        raise
    finally:
        assert daemon.stdout is not None
        daemon.stdout.close()
    return daemon


def _not_ready(daemon: subprocess.Popen[bytes]) -> str:
    """Waits for the line in which the daemon reports that it is ready. Returns "" then, and otherwise a
    description of what it did instead."""
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


def ends_with_this(number: int, blocked: Iterable[int]) -> list[str]:
    """The words in front of a command that make the kernel send the process of the command the signal
    `number` when this process ends for any reason. `blocked` is the signal mask of the command."""
    words = ",".join(str(int(each)) for each in blocked)
    script = pathlib.Path(__file__).with_name("bound_child.py")
    return [sys.executable, "-I", "-S", str(script), str(os.getpid()), str(int(number)), words]


def free_port() -> int:
    """Returns a TCP port of this machine that is free now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])
