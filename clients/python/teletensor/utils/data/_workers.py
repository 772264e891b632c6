"""Worker processes of a DataLoader: they index the dataset and put samples into NumPy arrays.

A worker never talks to a daemon: arrays go to the process that iterates, which uploads them. It is
started by the method "forkserver" (or what multiprocessing_context says), so that it inherits
neither connections nor threads.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Pool", "WorkerInfo", "fetch", "get_worker_info"]

_REFUSAL = (
    "a worker of a DataLoader does not talk to the daemon: let the dataset return NumPy arrays and "
    "numbers (tensors are made of them where you iterate), or use num_workers=0"
)


class WorkerInfo(NamedTuple):
    """What get_worker_info tells a dataset: the worker's number, how many there are, its seed, and
    its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a DataLoader: what it is. Elsewhere None."""
    return _info


class _Failure(NamedTuple):
    """An exception of a worker, as it travels."""

    worker: int
    kind: type[BaseException] | None  # where the other process knows it
    name: str
    text: str

    def reraise(self) -> None:
        message = f"Caught {self.name} in DataLoader worker process {self.worker}.\n{self.text}"
        try:
            error = (self.kind or RuntimeError)(message)
        except Exception:  # an exception that takes other arguments
            error = RuntimeError(message)
        raise error


def _failure(worker: int) -> _Failure:
    kind = sys.exc_info()[0]
    assert kind is not None
    known = kind.__module__ == "builtins"
    return _Failure(worker, kind if known else None, kind.__name__, traceback.format_exc())


def _message(worker: int, *parts: Any) -> bytes:
    """What a worker sends; says so where samples cannot be sent. (The queue itself would say it in
    a thread of its own, where nobody hears.)"""
    try:
        return bytes(ForkingPickler.dumps(parts))
    except Exception:
        return bytes(ForkingPickler.dumps((*parts[:-1], _failure(worker))))


class _End(NamedTuple):
    """The worker's stream has no more samples."""

    worker: int


def fetch(dataset: Any, indices: list[Any]) -> list[Any]:
    """The samples of a batch."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many is not None else [dataset[i] for i in indices]


def _work(
    worker: int,
    count: int,
    dataset: Any,
    start: Callable[[int], None] | None,
    batch_size: int | None,
    drop_last: bool,
    tasks: Any,
    results: Any,
) -> None:
    """What a worker does: (epoch, number, indices) come in, (epoch, number, samples) go out."""
    global _info
    from ... import _session

    _session.refuse(_REFUSAL)
    parent = os.getppid()
    stream: Iterator[Any] | None = None
    broken: _Failure | None = None
    epoch = -1
    while True:
        try:
            task = tasks.get(timeout=5.0)
        except queue.Empty:
            if os.getppid() != parent:
                return  # nobody is left to ask
            continue
        if task is None:
            return
        now, number, indices, seed = task
        if now != epoch:
            epoch, stream = now, None
            random.seed(seed)
            np.random.seed(seed % 2**32)
            first = _info is None
            _info = WorkerInfo(worker, count, seed, dataset)
            if first and start is not None:
                try:
                    start(worker)
                except Exception:
                    broken = _failure(worker)
        if broken is not None:
            results.put(_message(worker, now, number, broken))
            continue
        try:
            if indices is not None:
                samples: Any = fetch(dataset, indices) if isinstance(indices, list) else (
                    dataset[indices[0]]
                )
            else:
                if stream is None:
                    stream = iter(dataset)
                if batch_size is None:
                    samples = next(stream, _End(worker))
                else:
                    samples = [s for _, s in zip(range(batch_size), stream, strict=False)]
                    if not samples or (drop_last and len(samples) < batch_size):
                        samples = _End(worker)
        except Exception:
            samples = _failure(worker)
        results.put(_message(worker, now, number, samples))


class Pool:
    """Workers of one loader. `run` yields the samples of each task in the tasks' order, having up to
    prefetch of them in the making for each worker."""

    def __init__(
        self,
        dataset: Any,
        count: int,
        *,
        context: Any,
        start: Callable[[int], None] | None,
        timeout: float,
        prefetch: int,
        stream: bool,
        batch_size: int | None,
        drop_last: bool,
    ) -> None:
        if not hasattr(context, "Process"):
            context = multiprocessing.get_context(context or "forkserver")
            if context.get_start_method() == "forkserver":
                # Imported once, not by each worker. (Nothing here opens a connection.)
                context.set_forkserver_preload(["__main__", __name__])
        self._timeout = timeout
        self._prefetch = prefetch
        self._stream = stream
        self._epoch = -1
        self._results = context.Queue()
        self._tasks = [context.Queue() for _ in range(count)]
        self._processes = []
        try:
            for worker, tasks in enumerate(self._tasks):
                process = context.Process(
                    target=_work,
                    args=(worker, count, dataset, start, batch_size, drop_last, tasks,
                          self._results),
                    daemon=True,
                )  # fmt: skip
                process.start()
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    def run(self, batches: Iterator[Any] | None, seed: int) -> Iterator[Any]:
        """One epoch; batches: the indices of each task, None for streams."""
        self._epoch += 1
        epoch, count = self._epoch, len(self._processes)
        owners: dict[int, int] = {}  # task -> worker
        ready: dict[int, Any] = {}
        active = set(range(count))
        sent = wanted = turn = 0

        def send() -> bool:
            nonlocal sent, turn
            if not active:
                return False
            indices = None
            if batches is not None:
                try:
                    indices = next(batches)
                except StopIteration:
                    active.clear()
                    return False
            while turn % count not in active:
                turn += 1
            worker = turn % count
            turn += 1
            owners[sent] = worker
            self._tasks[worker].put((epoch, sent, indices, seed + worker))
            sent += 1
            return True

        for _ in range(self._prefetch * count):
            if not send():
                break
        while wanted < sent:
            while wanted not in ready:
                number, samples = self._receive(epoch)
                ready[number] = samples
            samples = ready.pop(wanted)
            worker = owners.pop(wanted)
            wanted += 1
            if isinstance(samples, _End):
                active.discard(worker)
                continue
            if isinstance(samples, _Failure):
                samples.reraise()
            if worker in active or batches is not None:
                send()
            yield samples

    def _receive(self, epoch: int) -> tuple[int, Any]:
        begin = time.monotonic()
        while True:
            try:
                now, number, samples = ForkingPickler.loads(self._results.get(timeout=1.0))
            except queue.Empty:
                dead = [p for p in self._processes if not p.is_alive()]
                if dead:
                    pids = ", ".join(str(p.pid) for p in dead)
                    raise RuntimeError(
                        f"DataLoader worker (pid(s) {pids}) exited unexpectedly"
                    ) from None
                if self._timeout and time.monotonic() - begin > self._timeout:
                    raise RuntimeError(
                        f"DataLoader timed out after {self._timeout} seconds"
                    ) from None
                continue
            if now == epoch:
                return number, samples

    def close(self) -> None:
        """Ends the workers; a second call does nothing."""
        processes, self._processes = self._processes, []
        for tasks in self._tasks:
            tasks.cancel_join_thread()
            try:
                tasks.put(None)
            except (OSError, ValueError):  # the queue is gone with its worker
                continue
        for process in processes:
            process.join(1.0)
            if process.is_alive():
                process.terminate()
                process.join()
        for channel in (*self._tasks, self._results):
            channel.close()
        self._tasks = []

    def __del__(self) -> None:
        if getattr(self, "_processes", None):
            self.close()
