"""The handle of a call (c10d's Work), and the thread that runs the calls of a session in order."""

from __future__ import annotations

import _thread
import collections
import contextlib
import threading
import time
from collections.abc import Callable, Container, Sequence
from datetime import timedelta
from typing import Any

from .._sessions.session import Session, _drop
from ..autograd import no_grad

try:
    import torch
    from torch._C._distributed_c10d import Work as _Work
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["Lane", "Work"]

_AT_THE_END = 5.0  # seconds to wait for a thread whose session has ended


class Work(_Work):  # type: ignore[misc]
    """A call that runs on another thread, or that has been issued in the session of the device "tt", where
    later lines see its results: its name, and the tensors that it reads and writes. `limit` is the number
    of seconds after which waiting for it raises an error; None means that the daemon decides. `begin`
    starts the call, if it should start only when a function of the Work is first called. PyTorch's profiler
    shows the call as an event with its name."""

    def __init__(
        self,
        what: str,
        given: Sequence[Any] = (),
        result: Sequence[Any] = (),
        limit: float | None = None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._what, self._result, self._limit, self._begin = what, list(result), limit, begin
        recorded = torch.autograd._profiler_enabled()
        self._event = torch.autograd._record_function_with_args_enter(what, *given) if recorded else None
        self._since = time.monotonic()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._futures: list[Any] = []
        self.source: Any = -1  # the rank from which a receive got its data, or a tensor with it

    def end(self, error: BaseException | None = None) -> None:
        """Marks the call as ended, or as failed with that error."""
        if self._event is not None:
            torch.autograd._record_function_with_args_exit(self._event)
            self._event = None
        with self._lock:
            self._error = error
            self._ended.set()
            waiting, self._futures = self._futures, []
        if waiting:  # on a thread of its own, because a callback may wait for later calls
            _thread.start_new_thread(_complete, (waiting,))

    def begin(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the results and returns True. Raises the call's error, or RuntimeError after the
        timeout."""
        self.begin()
        limit = timeout.total_seconds() if timeout is not None else 0.0
        left: float | None = limit
        if limit <= 0:
            limit = self._limit or 0.0
            left = None if self._limit is None else max(self._since + limit - time.monotonic(), 0.0)
        if not self._ended.wait(left):
            raise RuntimeError(
                f"{self._what}: Timed out waiting {round(limit * 1000)}ms for the other ranks"
            )
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the call has ended or failed."""
        self.begin()
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Returns whether the call has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The call's error; None if it has none or has not ended."""
        return self._error if self._ended.is_set() else None

    def result(self) -> list[Any]:
        """Waits for the call; returns the tensors that it has written."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """Waits for the call; returns the rank from which this receive got its data."""
        self.wait()
        source = int(self.source)
        if source < 0:
            raise RuntimeError(f"{self._what} is no receive, so it has no source rank")
        return source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A torch.futures.Future of the tensors, which fails if the call does."""
        self.begin()
        devices = {tensor.device for tensor in self._result if tensor.device.type != "cpu"}
        raw: Any = torch.futures.Future(devices=[*devices])

        def checked(_: Any) -> list[Any]:
            if self._error is not None:
                raise self._error
            return self._result

        future = raw.then(checked)  # this makes an error of the Future visible to C++
        with self._lock:
            if not self._ended.is_set():
                self._futures.append(raw)
                return future
        raw.set_result(None)
        return future


def _complete(futures: list[Any]) -> None:
    """Calls the callbacks of the futures."""
    for future in futures:
        future.set_result(None)


class Lane:
    """A session, and a thread that runs calls in it one after the other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._calls: collections.deque[tuple[Work, Callable[[], None]]] = collections.deque()
        self._changed = threading.Condition()
        self._running: Work | None = None
        self._over = False
        self._left = threading.Event()  # set when the thread has ended
        # a native thread has no Python frames of this package, which errors would name as their line
        _thread.start_new_thread(self._run, ())

    def put(self, work: Work, call: Callable[[], None]) -> None:
        """Runs the call after all earlier ones, and then ends the work."""
        with self._changed:
            if not self._over:
                self._calls.append((work, call))
                self._changed.notify()
                return
        work.end(RuntimeError("the process group has been destroyed"))

    @property
    def idle(self) -> bool:
        """Returns whether no call is running or waiting."""
        with self._changed:
            return self._running is None and not self._calls

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._left.set()

    def _work(self) -> None:
        with self.session.as_current(), no_grad():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._calls or self._over)
                    if not self._calls:
                        return
                    work, call = self._calls.popleft()
                    self._running = work
                error: BaseException | None = None
                try:
                    call()
                except BaseException as raised:
                    error = raised
                with self._changed:
                    self._running = None
                work.end(error)
                del work, call, error

    def interrupt(self, works: Container[Work]) -> None:
        """Cancels the running call if it is one of these."""
        with self._changed:
            if self._running is not None and self._running in works:
                self.session.cancel()

    def close(self) -> None:
        """Ends the session when all calls that were put here have run."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._left.wait()
        with contextlib.suppress(RuntimeError):  # an error that a call has already raised
            self.session.close()

    def drop(self) -> None:
        """Ends the session at once. Calls that have not run fail."""
        with self._changed:
            self._over = True
            left = [work for work, _ in self._calls]
            self._calls.clear()
            self._changed.notify()
        for work in left:
            work.end(RuntimeError("the process group was aborted"))
        with contextlib.suppress(RuntimeError):
            _drop(self.session)
        self._left.wait(_AT_THE_END)
