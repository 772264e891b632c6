"""Writes files completely or not at all, if the file system supports it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

__all__ = ["written"]

_CANNOT_CREATE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
# EBUSY: the file itself is a mount point, as in containers.
_CANNOT_RENAME = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV)


@contextmanager
def written(path: str | bytes) -> Iterator[BinaryIO]:
    """A file to write to, like open(path, "wb"): it follows symbolic links, writes into pipes and devices,
    keeps the mode and owner of an existing file, and refuses the same paths.

    A regular file is replaced when the block ends without an error, and stays unchanged otherwise. It is
    overwritten in place if replacing it would change more than its contents: if it has several hard links,
    an owner to whom this process cannot give the new file, or a folder that this process may not change.
    """
    try:
        file = _opened(path, 0)
    except FileNotFoundError:
        with _new(path) as file:
            yield file
        return
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            yield file
            return
        target = _sole_name(path, status)
        temporary = _temporary(target) if target else ""
        try:
            beside = _create_like(temporary, file.fileno(), status) if target else None
            if beside is None:
                file.truncate()
                yield file
                return
            with beside:
                yield beside
            _replace(temporary, target, file)
        finally:
            if target:
                _unlink(temporary)


@contextmanager
def _new(path: str | bytes) -> Iterator[BinaryIO]:
    """Opens a file that does not exist yet."""
    target = os.path.realpath(os.fsdecode(path))
    temporary = _temporary(target)
    try:
        ends_in_name = os.path.basename(os.fsdecode(path)) not in ("", ".", "..")
        beside = _create(temporary, 0o666) if ends_in_name else None
        with beside or open(path, "wb") as file:  # open() raises its error for the given path
            yield file
        if beside is not None:
            os.replace(temporary, target)
    finally:
        _unlink(temporary)


def _sole_name(path: str | bytes, status: os.stat_result) -> str:
    """The path without symbolic links; empty if the file has other names or cannot be found by its path, as
    with /proc/self/fd."""
    target = os.path.realpath(os.fsdecode(path))
    with suppress(OSError):
        if status.st_nlink == 1 and os.path.samestat(os.lstat(target), status):
            return target
    return ""


def _temporary(target: str) -> str:
    # The length does not depend on the target's name, which may have the maximum length already.
    return os.path.join(os.path.dirname(target), f".teletensor-{secrets.token_hex(8)}.tmp")


def _opened(path: str | bytes, flags: int, mode: int = 0o666) -> BinaryIO:
    """Opens a file for writing with these additional flags. One native call opens the descriptor and makes
    the file object: an exception of a signal handler between two calls would leave the descriptor open."""
    descriptors = map(os.open, (path,), (os.O_WRONLY | os.O_CLOEXEC | flags,), (mode,))
    return cast(BinaryIO, next(map(open, descriptors, ("wb",))))


def _create(temporary: str, mode: int) -> BinaryIO | None:
    """Creates the file; returns None if the folder does not allow it."""
    try:
        return _opened(temporary, os.O_CREAT | os.O_EXCL, mode)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _CANNOT_CREATE:
            raise
        return None


def _create_like(temporary: str, existing: int, status: os.stat_result) -> BinaryIO | None:
    """Creates a file with the mode, owner and extended attributes (access control lists) of the existing
    one; returns None if it cannot have them."""
    file = _create(temporary, 0o600)
    if file is None:
        return None
    made = file.fileno()
    try:
        own = os.fstat(made)
        if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
            os.fchown(made, status.st_uid, status.st_gid)
        os.fchmod(made, status.st_mode & 0o777)
        for name in os.listxattr(existing) if hasattr(os, "listxattr") else ():
            os.setxattr(made, name, os.getxattr(existing, name))
    except OSError as error:
        if error.errno != errno.ENOTSUP:  # the file system does not support extended attributes
            file.close()
            return None
    return file


def _replace(temporary: str, target: str, existing: BinaryIO) -> None:
    try:
        os.replace(temporary, target)
    except OSError as error:
        if error.errno not in _CANNOT_RENAME:
            raise
        existing.truncate()
        with open(temporary, "rb") as source:
            shutil.copyfileobj(source, existing, 1 << 20)


def _unlink(temporary: str) -> None:
    with suppress(OSError):
        os.unlink(temporary)
