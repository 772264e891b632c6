"""The worker processes of a DataLoader: they make batches, whose tensors are sent as host arrays to the
process that iterates.

A worker is forked from multiprocessing's fork server, which has no connections, so that no lock is held in
it by a thread of the program. It does not import the program's `__main__`: what it needs from there is sent
as code (_parcels.py). It communicates with the program through a separate pipe, so that the death of one
worker, at any point, does not affect the pipes of other workers.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing
import os
import queue
import random
import signal
import struct
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ... import _api as tt
from ..._sessions import session as _session
from ._fetch import Fetcher, Recipe
from ._parcels import HostTensor, Parcel, loads, write

__all__ = ["Epoch", "Failure", "Pool", "WorkerInfo", "get_worker_info"]

_FORKED = (
    'a worker of a DataLoader with multiprocessing_context="fork" makes no tensors, because a forked '
    "process cannot use its parent's connections: return NumPy arrays, or leave "
    "multiprocessing_context out"
)
_HEAD = struct.Struct("<qq")  # epoch, task
_PATIENCE = 1.0  # seconds within which workers must end by themselves, or after SIGTERM
_WATCH = 1.0  # seconds between checks of the parent, in case another process keeps the pipe open
_naming = threading.Lock()


class WorkerInfo(NamedTuple):
    """The result of get_worker_info in a worker: its number, the number of workers, its seed, and its copy
    of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Returns information about the worker in a worker of a DataLoader, and None elsewhere."""
    return _info


class _End:
    """The worker's stream has no further batches."""


class _Text(str):
    """The text of a KeyError, which shows the repr() of its argument."""

    def __repr__(self) -> str:
        return str(self)


class Failure(NamedTuple):
    """An exception of a worker in the form in which it is sent."""

    worker: int
    kind: type[BaseException] | None  # None if the type cannot be sent
    name: str
    text: str

    def reraise(self) -> None:
        """Raises an exception of the same type, with the worker's traceback in its message."""
        text = f"Caught {self.name} in DataLoader worker process {self.worker}.\nOriginal {self.text}"
        try:
            error = (self.kind or RuntimeError)(_Text(text))
        except Exception:  # the type takes other arguments
            error = RuntimeError(text)
        raise error


# ---------------------------------------------------------------- in the worker


class Settings(NamedTuple):
    """The settings that a worker gets before it opens its parcel."""

    worker: int
    num_workers: int
    base_seed: int
    forked: bool
    way: Any  # the way to the daemon
    dtype: str  # the default dtype
    environment: dict[str, str]


def _work(settings: Settings, parcel: Parcel, pipe: connection.Connection, others: list[Any]) -> None:
    """The main function of a worker: receives (epoch, task, indices) and sends messages, until the pipe is
    closed."""
    signal.signal(signal.SIGINT, _leave_to_parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for other in others:
        other.close()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_send, args=(pipe, results), daemon=True).start()
    try:
        _serve(settings, parcel, pipe, results.put)
    finally:
        if not settings.forked:
            _session._close_all()


def _leave_to_parent(number: int, frame: Any) -> None:
    """Ctrl-C reaches all processes of a terminal; the parent ends its workers."""


def _end_with_parent(parent: int) -> None:
    """Ends this process, whatever it does, when the program that started it has ended."""
    program = multiprocessing.parent_process()
    while program is not None and program.is_alive() and os.getppid() == parent:
        program.join(_WATCH)
    os._exit(1)


def _send(pipe: connection.Connection, results: queue.SimpleQueue[Any]) -> None:
    """Sends finished batches while the next one is being made."""
    with contextlib.suppress(OSError):  # the pipe is closed at the other end: the other thread ends
        while True:
            pipe.send_bytes(results.get())


def _serve(
    settings: Settings, parcel: Parcel, pipe: connection.Connection, put: Callable[[Any], None]
) -> None:
    recipe: Recipe | None = None
    broken: Failure | None = None
    try:
        recipe = _begin(settings, parcel)
    except Exception:
        broken = _failure(settings.worker)
    epoch, fetch = -1, None
    while True:
        try:
            now, task, indices = loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        outcome: Any = broken
        if recipe is not None and broken is None:
            try:
                if fetch is None or now != epoch:
                    epoch, fetch = now, Fetcher(recipe, HostTensor)
                outcome = fetch(indices)
            except Exception as error:
                over = recipe.stream and isinstance(error, StopIteration)
                outcome = _End() if over else _failure(settings.worker)
        put(_message(settings, now, task, outcome))
        del outcome


def _begin(settings: Settings, parcel: Parcel) -> Recipe:
    """Initialises a worker: seeds, session, dataset."""
    global _info
    worker, seed = settings.worker, settings.base_seed + settings.worker
    if settings.forked:
        _session.refuse(_FORKED)
    else:
        os.environ.update(settings.environment)
        _session.usual(settings.way)
        tt.set_default_dtype(getattr(tt, settings.dtype))
    random.seed(seed)
    np.random.seed(numpy_seed(settings.base_seed, worker))
    tt.manual_seed(seed)
    recipe: Recipe
    recipe, start = parcel.open()
    _info = WorkerInfo(worker, settings.num_workers, seed, recipe.dataset)
    if "torch" in sys.modules:
        _tell_torch(_info)
    if start is not None:
        start(worker)
    return recipe


def numpy_seed(base_seed: int, worker: int) -> np.ndarray[Any, Any]:
    """The seed of NumPy's global generator in a worker, as PyTorch derives it."""
    entropy = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return np.random.SeedSequence(entropy).generate_state(4)


def _tell_torch(info: WorkerInfo) -> None:
    """Sets PyTorch's WorkerInfo too, by which PyTorch's iterable datasets divide their samples."""
    import torch
    from torch.utils.data._utils import worker

    torch.set_num_threads(1)
    torch.manual_seed(info.seed)
    worker._worker_info = worker.WorkerInfo(**info._asdict())


def _failure(worker: int) -> Failure:
    kind = sys.exc_info()[0]
    assert kind is not None
    return Failure(worker, kind, kind.__name__, traceback.format_exc())


def _message(settings: Settings, epoch: int, task: int, outcome: Any) -> memoryview:
    """The message for a batch or a failure; or for the reason why it cannot be sent."""

    def packed(value: Any) -> memoryview:
        file = io.BytesIO()
        file.write(_HEAD.pack(epoch, task))
        write(value, file, by_value=not settings.forked)  # a forked worker has the program's own classes
        return file.getbuffer()

    try:
        return packed(outcome)
    except Exception:
        failed = outcome._replace(kind=None) if isinstance(outcome, Failure) else _failure(settings.worker)
        return packed(failed)


# ---------------------------------------------------------------- in the program


class Pool:
    """The workers of one loader, which serve one Epoch at a time."""

    def __init__(
        self,
        recipe: Recipe,
        count: int,
        *,
        context: Any,
        start: Callable[[int], None] | None,
        base_seed: int,
        timeout: float,
        prefetch: int,
    ) -> None:
        if not hasattr(context, "Process"):
            context = multiprocessing.get_context(context or "forkserver")
        forked = context.get_start_method() == "fork"
        if context.get_start_method() == "forkserver":
            # this module is imported once in the fork server, and not again by each worker
            context.set_forkserver_preload([__name__])
        self.timeout = timeout
        self.ahead = prefetch * count
        self.epoch = -1
        self.closed = ""  # the reason why the pool is closed
        self._pid = os.getpid()
        self._pipes: list[connection.Connection] = []
        self._processes: list[Any] = []
        parcel = Parcel((recipe, start))
        try:
            for worker in range(count):
                ours, its = context.Pipe()
                self._pipes.append(ours)
                settings = Settings(
                    worker, count, base_seed, forked, _session.way(),
                    str(tt.get_default_dtype()).rpartition(".")[2], dict(os.environ),
                )  # fmt: skip
                process = context.Process(
                    target=_work,
                    args=(settings, parcel, its, self._pipes if forked else []),
                    daemon=True,
                )
                with its, _starting(forked):
                    process.start()
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """The number of workers."""
        return len(self._pipes)

    def give(self, worker: int, task: Any) -> None:
        """Sends (epoch, number, indices) to a worker."""
        if self.closed:
            raise RuntimeError(self.closed)
        try:
            self._pipes[worker].send(task)
        except OSError:
            self._died(worker)

    def waiting(self) -> bool:
        """Whether take() returns, or raises an error, without waiting."""
        return bool(self.closed or connection.wait(self._pipes, 0))

    def take(self) -> tuple[int, int, Any]:
        """Returns (epoch, number, message) of the next finished task. RuntimeError if a worker has died, or
        after `timeout` seconds."""
        if self.closed:
            raise RuntimeError(self.closed)
        try:
            ready = connection.wait(self._pipes, self.timeout or None)
            if not ready:
                raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds")
            pipe: Any = ready[0]
            try:
                message = memoryview(pipe.recv_bytes())
            except (EOFError, OSError):
                self._died(self._pipes.index(pipe))
            epoch, task = _HEAD.unpack_from(message)
            return epoch, task, message[_HEAD.size :]
        except BaseException as error:  # a message may have been read in part
            self.close(str(error))
            raise

    def _died(self, worker: int) -> NoReturn:
        process = self._processes[worker]
        process.join(_PATIENCE)
        code = process.exitcode
        if code is not None and code < 0:
            number = signal.Signals(-code)
            how = f"killed by signal {number.name} ({signal.strsignal(number)})"
            if number == signal.SIGKILL:
                how += ", which is also what the system does when memory runs out"
        else:
            how = f"exit code {code}"
        text = f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: {how}"
        self.close(text)
        raise RuntimeError(text)

    def close(self, why: str = "the DataLoader's workers have ended") -> None:
        """Ends the workers; a second call does nothing."""
        self.closed = self.closed or why or "interrupted"
        processes, self._processes = self._processes, []
        for pipe in self._pipes:
            pipe.close()  # ends a worker that is waiting, or that has finished its batch
        if self._pid != os.getpid():
            return
        for end in (None, "terminate", "kill"):
            for process in processes:
                if end is not None and process.is_alive():
                    getattr(process, end)()
            until = time.monotonic() + _PATIENCE
            for process in processes:
                process.join(max(until - time.monotonic(), 0))

    def __del__(self) -> None:
        if getattr(self, "_processes", None):
            self.close()


@contextlib.contextmanager
def _starting(forked: bool) -> Iterator[None]:
    """A context in which a started process ignores Ctrl-C until it is ready for it, and does not import
    this program's `__main__`, which may be a notebook or a script without a guard."""
    with _naming:
        main = sys.modules["__main__"]
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            if not forked:
                sys.modules["__main__"] = types.ModuleType("__main__")
            yield
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


class Epoch:
    """One iteration over the batches that a pool makes for `tasks`, in their order unless in_order is
    False.

    A Failure of a worker takes the place of its batch. An error of `tasks`, or of sending a task, is raised
    after the batches of the tasks before it.
    """

    def __init__(self, pool: Pool, tasks: Iterator[Any], in_order: bool) -> None:
        pool.epoch += 1
        self._pool, self._tasks, self._number, self._in_order = pool, tasks, pool.epoch, in_order
        self._turns = itertools.cycle(range(pool.count))
        self._active = set(range(pool.count))
        self._owners: dict[int, int] = {}  # task -> worker, for tasks whose batch has not been returned
        self._ready: dict[int, Any] = {}  # task -> message
        self._sent = 0
        self._error: Exception | None = None  # the reason why no further task is sent
        for _ in range(pool.ahead):
            self._give()

    def _give(self) -> None:
        """Sends the next task to the worker whose turn it is."""
        if not self._active:
            return
        try:
            indices = next(self._tasks)
            worker = next(worker for worker in self._turns if worker in self._active)
            self._pool.give(worker, (self._number, self._sent, indices))
        except StopIteration:
            self._active.clear()
        except Exception as error:
            self._error = error
            self._active.clear()
        else:
            self._owners[self._sent] = worker
            self._sent += 1

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._pool.epoch != self._number:
            raise RuntimeError(
                "DataLoader: another iteration has begun, and persistent workers serve one at a time"
            )
        while self._owners:
            task = self._done()
            worker = self._owners.pop(task)
            outcome = loads(self._ready.pop(task))
            if not isinstance(outcome, _End):
                self._give()
                return outcome
            self._active.discard(worker)
            self._give()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def ready(self) -> bool:
        """Whether the next batch has arrived."""
        while self._owners and self._next_task() not in self._ready:
            if not self._pool.waiting():
                return False
            self._receive()
        return bool(self._owners)

    def _done(self) -> int:
        """The next task whose batch is to be returned; waits for it."""
        while (task := self._next_task()) not in self._ready:
            self._receive()
        return task

    def _next_task(self) -> int:
        """The task whose batch is to be returned next; without an order, one that has arrived if there is
        one."""
        handed: dict[int, Any] = self._ready if self._ready and not self._in_order else self._owners
        task: int = next(iter(handed))
        return task

    def _receive(self) -> None:
        epoch, task, message = self._pool.take()
        if epoch == self._number:
            self._ready[task] = message
