"""The log files of a launch: the output of each process goes to the terminal, to a file, or to both."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import string
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any, BinaryIO, TextIO

__all__ = ["Logs", "chosen_streams"]

_OUT, _ERR = 1, 2  # bits of the numbers in --redirects and --tee
_NAMES = {_OUT: "stdout.log", _ERR: "stderr.log"}
_END_SECONDS = 5.0  # the time for which the end of a copied stream is waited for


def chosen_streams(text: str, flag: str, size: int) -> list[int]:
    """The streams of each local rank: `text` is one number for all, or a list RANK:NUMBER,...; 1 is
    standard output, 2 is standard error, 3 is both, 0 is none. Raises ValueError if the text is neither."""
    found = [0] * size
    try:
        if ":" not in text:
            found = [int(text)] * size
        else:
            for each in text.split(","):
                rank, _, number = each.partition(":")
                if not 0 <= int(rank) < size:
                    raise ValueError
                found[int(rank)] = int(number)
        if not all(0 <= number <= 3 for number in found):
            raise ValueError
    except ValueError:
        raise ValueError(f"{flag} is 0, 1, 2 or 3, or such a number for each of the local ranks 0 to "
                         f"{size - 1} as in 0:1,1:3, not {text!r}") from None
    return found


class Logs:
    """The folder of a launch, which has a folder for each attempt and local rank, and the threads that
    copy output to a file and to the terminal. Without --redirects, --tee and --log-dir it has only files
    of errors, and is removed at the end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._redirects, self._tee = args.redirects, args.tee
        self._shown, self._role = args.shown, args.role
        self._prefix = string.Template(args.log_line_prefix_template or "[${role_name}${rank}]:")
        self._filters = {_OUT: args.duplicate_stdout_filters, _ERR: args.duplicate_stderr_filters}
        self.kept = bool(args.log_dir) or any(args.redirects) or any(args.tee)
        if args.log_dir:
            os.makedirs(args.log_dir, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="launch-", dir=args.log_dir or None)
        self._copiers: list[threading.Thread] = []

    def place(self, attempt: int, local: int) -> str:
        """The folder of a process, which exists."""
        path = os.path.join(self.folder, f"attempt_{attempt}", str(local))
        os.makedirs(path, exist_ok=True)
        return path

    def error_file(self, attempt: int, local: int) -> str:
        """The file for the error of a process."""
        return os.path.join(self.place(attempt, local), "error.json")

    def start(
        self, command: Sequence[str], attempt: int, local: int, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Starts a process. Its standard output and error go where the flags say."""
        rank, tee = options["env"]["RANK"], self._tee[local]
        files = {which: open(os.path.join(self.place(attempt, local), name), "wb", 0)
                 for which, name in _NAMES.items() if (tee | self._redirects[local]) & which}
        shown = None if local in self._shown else subprocess.DEVNULL
        out, err = (subprocess.PIPE if tee & which else files.get(which, shown) for which in _NAMES)
        copied: list[int] = []
        try:
            process = subprocess.Popen(command, stdout=out, stderr=err, **options)
            copied = [which for which in _NAMES if tee & which]
        finally:
            for which, file in files.items():
                if which not in copied:
                    file.close()
        prefix = self._prefix.safe_substitute(
            role_name=self._role, rank=rank, local_rank=local, hostname=socket.gethostname())
        for which in copied:
            pipe, terminal = (process.stdout, sys.stdout) if which == _OUT else (process.stderr, sys.stderr)
            thread = threading.Thread(target=_copy, daemon=True, args=(
                pipe, files[which], terminal if shown is None else None, prefix,
                self._selected(which, attempt)))
            thread.start()
            self._copiers.append(thread)
        return process

    def _selected(self, which: int, attempt: int) -> Callable[[str], None]:
        """A function that appends a line of this stream to the attempt's file of filtered lines if it
        contains one of the filters."""
        filters = self._filters[which]
        name = os.path.join(self.folder, f"attempt_{attempt}", "filtered_" + _NAMES[which])

        def append(line: str) -> None:
            if any(each in line for each in filters):
                with open(name, "a") as file:  # one write, so that the lines of two processes do not mix
                    file.write(line)

        return append

    def settle(self) -> None:
        """Waits until the output of the processes, which have ended, is copied."""
        for thread in self._copiers:
            thread.join(_END_SECONDS)
        self._copiers.clear()

    def close(self) -> None:
        """Removes the folder, unless it has log files."""
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)


def _copy(pipe: IO[bytes], file: BinaryIO, terminal: TextIO | None, prefix: str,
          select: Callable[[str], None]) -> None:
    with pipe, file:
        for line in pipe:
            file.write(line)
            text = prefix + line.decode(errors="replace")
            select(text)
            if terminal is not None:  # one write, so that the lines of two processes do not mix
                terminal.write(text)
                terminal.flush()
