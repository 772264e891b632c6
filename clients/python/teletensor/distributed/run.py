"""Starts the processes of a world: `teletensor launch`, or `python -m teletensor.distributed.run`.

The flags are those of torchrun. This process starts one process for each rank, waits for all of them, and
ends all of them when one fails. It needs no agent and no port; see docs/distributed.md. Launchers on
several machines agree on their node ranks through a store of a daemon (_stores/rendezvous.py), or get
them by --node-rank.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .._connection import daemon as _daemon
from .._connection.credentials import credentials_of
from .._connection.transport import open_transport
from .._sessions.errors import TeletensorError
from .._tools.admin import Admin
from ._arrivals import Arrivals, arrivals
from ._flags import PORT, parsed
from ._logs import Logs
from ._record import ERROR_FILE, recorded
from ._stores.daemon_store import Place, place_of
from ._stores.rendezvous import Seat, take_seat
from ._stores.stores import DistStoreError

__all__ = ["main"]

_RUN_PATH = "import runpy, sys; sys.argv[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"
_AGAIN = -1  # the status of an attempt that was ended because the number of machines changes
_ONE_DAEMON = ("the processes of several machines need one daemon that all machines reach; set "
               "TELETENSOR_ADDRESS to its address on each machine")


class _Process:
    """A rank's process, which is the leader of its own process group. It stays unreaped until `reap`, so
    that the id of its group cannot be reused."""

    def __init__(
        self, logs: Logs, attempt: int, command: Sequence[str], environment: dict[str, str],
        prefix: Sequence[str]
    ) -> None:
        self.rank, self.local_rank = environment["RANK"], environment["LOCAL_RANK"]
        self._error_file = environment[ERROR_FILE]
        self._popen = logs.start([*prefix, *command], attempt, int(self.local_rank), env=environment,
                                 start_new_session=True)

    def status(self) -> int | None:
        """The exit code, or minus the number of the signal that ended the process, or None while it
        runs."""
        info = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def send(self, number: int) -> None:
        """Sends a signal to the process and to the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)

    def reap(self) -> None:
        """Kills the remaining processes of its process group, and waits for the process."""
        self.send(signal.SIGKILL)
        self._popen.wait()

    def told(self, status: int) -> str:
        """The description of the failure in messages."""
        how = f"exited with code {status}" if status >= 0 else f"was ended by {_signal_name(-status)}"
        return f"rank {self.rank} (local rank {self.local_rank}, pid {self._popen.pid}) {how}"

    def error(self) -> tuple[int, str] | None:
        """The time and the traceback of the exception that `record` has written, or None."""
        return recorded(self._error_file)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have no name
        return f"signal {number}"


def main(arguments: list[str] | None = None, prog: str = "python -m teletensor.distributed.run",
         pass_local_rank: bool = False) -> int:
    """Runs the command; returns the exit status: 0 if all processes have exited with 0, 1 if one has
    failed, 128 + n if signal n has ended the launcher. `pass_local_rank` gives each process the argument
    --local-rank=n, as torch.distributed.launch does."""
    try:
        args = parsed(sys.argv[1:] if arguments is None else arguments, prog, _gpus)
        # Signals that nohup or a background shell ignores stay ignored.
        ends = args.signals_to_handle
        handled_signals = {each for each in ends if signal.getsignal(each) != signal.SIG_IGN}
        with arrivals(handled_signals) as signals, _daemon_of(args) as address:
            return _Launch(args, prog, address, pass_local_rank, signals).run()
    except (TeletensorError, DistStoreError, OSError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1


def _mask() -> set[Any]:
    """The signals that this thread blocks."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextlib.contextmanager
def _daemon_of(args: argparse.Namespace) -> Iterator[str]:
    """The address of the daemon for all processes: the one that is configured or that runs for this user,
    or else one that is started for this launch and ended with it."""
    if given := os.environ.get("TELETENSOR_ADDRESS"):
        yield given
        return
    if args.nnodes.most > 1:
        if args.rdzv_backend != "static":
            yield _place_of(args).address
            return
        raise TeletensorError(_ONE_DAEMON)
    own = _daemon.runtime_dir() / "teletensor.sock"
    if _daemon.answers(own):
        yield f"unix:{own}"
        return
    path = _daemon.runtime_dir() / f"teletensor-launch-{os.getpid()}.sock"
    # The first process may connect late, and between two attempts no process is connected.
    prefix = _daemon.ends_with_this(signal.SIGTERM, _mask())
    daemon = _daemon.start(path, "--linger", "1e7", prefix=prefix)
    try:
        yield f"unix:{path}"
    finally:
        daemon.terminate()
        try:
            daemon.wait(args.shutdown_timeout)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        path.unlink(missing_ok=True)


def _gpus(args: argparse.Namespace) -> int:
    """The number of GPUs of the daemon for the processes."""
    with _daemon_of(args) as address, contextlib.closing(open_transport(address)) as transport:
        return sum(each["device"].startswith("cuda:") for each in Admin(transport).memory())


def _place_of(args: argparse.Namespace) -> Place:
    """The daemon with the store through which launchers agree on their node ranks."""
    def configured() -> Place:
        given = os.environ.get("TELETENSOR_ADDRESS")
        if not given:
            raise TeletensorError(f"no daemon answers at {args.rdzv_host}:{args.rdzv_port} "
                                  f"(--rdzv-endpoint): {_ONE_DAEMON}")
        return Place(given, credentials_of(given))

    return place_of(args.rdzv_host or "127.0.0.1", args.rdzv_port, configured)


class _Launch:
    def __init__(self, args: argparse.Namespace, prog: str, address: str, pass_local_rank: bool,
                 signals: Arrivals) -> None:
        self._args, self._prog, self._address, self._pass_local_rank = args, prog, address, pass_local_rank
        self._signals, self._logs = signals, Logs(args)
        self._prefix = _daemon.ends_with_this(signal.SIGKILL, _mask())

    def run(self) -> int:
        """Starts all processes, and starts them again after a failure, or when the number of machines
        changes; returns the exit status of the launcher."""
        try:
            return self._attempts()
        finally:
            if self._logs.kept:
                self._say(f"the log files are in {self._logs.folder}")
            self._logs.close()

    def _attempts(self) -> int:
        restarts, failures = self._args.max_restarts, 0
        while True:
            status = self._attempt(failures)
            if status == _AGAIN:
                self._say("all processes are started again: the number of machines changes")
            elif status != 1 or failures == restarts:
                return status
            else:
                failures += 1
                self._say(f"all processes are started again ({failures} of {restarts})")

    def _attempt(self, attempt: int) -> int:
        processes: list[_Process] = []
        started = time.monotonic()
        try:
            seat = self._seat()
            if seat is None:
                return 128 + (self._signals.end or 0)
            for command, environment in self._ranks(attempt, seat):
                processes.append(_Process(self._logs, attempt, command, environment, self._prefix))
            changes = self._watch(processes, seat)
            failed = [(each, status) for each in processes if (status := each.status())]
            for process, status in failed if self._signals.end is None else ():
                self._say(f"{process.told(status)} at {time.strftime('%Y-%m-%d %H:%M:%S')}, "
                          f"{time.monotonic() - started:.1f} s after the start")
            self._say_cause(processes)
            self._stop(processes, self._signals.end or signal.SIGTERM)
        finally:
            for process in processes:
                process.reap()
            self._logs.settle()
        if self._signals.end is not None:
            return 128 + self._signals.end
        return _AGAIN if changes else 1 if failed else 0

    def _watch(self, processes: list[_Process], seat: Seat) -> bool:
        """Waits until all processes have exited with 0, one has failed, the number of machines changes, or
        a signal that ends the launcher has arrived. Returns whether the number of machines changes."""
        interval = self._args.monitor_interval if seat.nodes < self._args.nnodes.most else None
        while True:
            statuses = [each.status() for each in processes]
            if any(statuses):  # the launcher of another machine may have stopped its ranks for a newcomer
                return seat.newcomers()
            if None not in statuses:
                return False
            number = self._signals.wait(interval)
            if number is None and seat.newcomers():
                return True
            if number not in (None, signal.SIGCHLD):
                return False

    def _stop(self, processes: list[_Process], number: int) -> None:
        """Sends the signal to all running processes, and waits for them until a time limit, or until the
        launcher gets another signal that ends it."""
        running = [each for each in processes if each.status() is None]
        for process in running:
            process.send(number)
        deadline = time.monotonic() + self._args.shutdown_timeout
        while any(each.status() is None for each in running):
            left = deadline - time.monotonic()
            if left <= 0 or self._signals.wait(left) != signal.SIGCHLD:
                return

    def _seat(self) -> Seat | None:
        """Returns the node rank of this machine, and the address that identifies the world; or None if a
        signal that ends the launcher has arrived in the meantime."""
        args = self._args
        # Each attempt is a separate world, so that it does not find the keys of the previous one in a
        # store.
        port = args.master_port or (PORT if args.nnodes.most > 1 and args.rdzv_backend == "static"
                                    else _daemon.free_port())
        if args.rdzv_backend == "static" or args.nnodes.most == 1:
            return Seat(args.node_rank, args.nnodes.most, args.master_addr, port)
        host = args.local_addr or socket.gethostname()
        seat = take_seat(_place_of(args), args.rdzv_id, args.nnodes, host, port, args.patience,
                         self._signals.ended)
        return None if self._signals.ended() else seat

    def _ranks(self, attempt: int, seat: Seat) -> Iterator[tuple[list[str], dict[str, str]]]:
        """The command and the environment of each process on this machine."""
        args, size = self._args, self._args.nproc_per_node
        if args.rdzv_id != "none":
            run = args.rdzv_id
        else:
            run = secrets.token_hex(8) if args.nnodes.most == 1 else f"{seat.address}:{seat.port}"
        module = ["-m"] if args.module else ["-c", _RUN_PATH] if args.run_path else []
        python = [] if args.no_python else [sys.executable, "-u", *module]
        for local in range(size):
            given = {
                "RANK": seat.node * size + local, "LOCAL_RANK": local, "GROUP_RANK": seat.node,
                "WORLD_SIZE": seat.nodes * size, "LOCAL_WORLD_SIZE": size,
                "GROUP_WORLD_SIZE": seat.nodes, "MASTER_ADDR": seat.address, "MASTER_PORT": seat.port,
                "TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": attempt,
                "TORCHELASTIC_MAX_RESTARTS": args.max_restarts, "TELETENSOR_ADDRESS": self._address,
                "ROLE_NAME": args.role, "ROLE_RANK": seat.node * size + local,
                "ROLE_WORLD_SIZE": seat.nodes * size,
                ERROR_FILE: self._logs.error_file(attempt, local),
            }  # fmt: skip
            extra = [f"--local-rank={local}"] if self._pass_local_rank else []
            yield ([*python, args.script, *extra, *args.arguments],
                   {**os.environ, **{name: str(value) for name, value in given.items()}})

    def _say_cause(self, processes: list[_Process]) -> None:
        """Shows the exception that `record` has written first. Its process may still be on its way to its
        end when the failure of another process is seen."""
        errors = [(*error, each.rank) for each in processes if (error := each.error())]
        if errors and self._signals.end is None:
            _, text, rank = min(errors)
            self._say(f"the exception of rank {rank}:\n{text}")

    def _say(self, text: str) -> None:
        print(f"{self._prog}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
