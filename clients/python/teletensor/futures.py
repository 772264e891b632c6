"""torch.futures: values that come later. The hooks of DistributedDataParallel return them.

A value that is a tensor may still be computed by the daemon: reading it waits, as of any tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from . import _absent

__all__ = ["Future", "collect_all", "wait_all"]

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """A value, or an error, that `set_result` or `set_exception` gives once. `devices` has no effect.

    Any thread may call any of the methods. Callbacks run in the thread that gives the value, or at once
    where it is there."""

    def __init__(self, *, devices: Any = None) -> None:
        self._changed = threading.Condition()
        self._done = False  # this and what follows: with _changed
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Is the value there, or an error?"""
        with self._changed:
            return self._done

    def wait(self) -> T:
        """The value, as soon as it is there. Raises the error of `set_exception`, or of the callback that
        was to compute it."""
        with self._changed:
            while not self._done:
                self._changed.wait()
        return self.value()

    def value(self) -> T:
        """The value, or the error as wait() raises it. RuntimeError where neither is there."""
        with self._changed:
            if not self._done:
                raise RuntimeError("value() of a Future that has no result yet; wait() waits for it")
        if self._error is not None:
            raise self._error
        found: T = self._value
        return found

    def set_result(self, result: T) -> None:
        """Gives the value. RuntimeError for a second one."""
        self._end(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Gives an error in place of a value. TypeError where it is no exception."""
        if not isinstance(result, BaseException):
            raise TypeError(f"set_exception takes an exception, not {type(result).__name__}")
        self._end(None, result)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """A Future of what callback(this Future) returns once this one is done."""
        following: Future[S] = Future()

        def run() -> None:
            try:
                result = callback(self)
            except BaseException as error:
                following.set_exception(error)
            else:
                following.set_result(result)

        self._after(run)
        return following

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Calls callback(this Future) once it is done. As in PyTorch, its errors are only written to the
        standard error."""

        def run() -> None:
            try:
                callback(self)
            except Exception:
                import traceback

                traceback.print_exc()

        self._after(run)

    def _after(self, run: Callable[[], None]) -> None:
        with self._changed:
            if not self._done:
                self._callbacks.append(run)
                return
        run()

    def _end(self, value: Any, error: BaseException | None) -> None:
        with self._changed:
            if self._done:
                raise RuntimeError("a Future takes one result, and has one")
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for run in callbacks:
            run()


def collect_all(futures: list[Future[Any]]) -> Future[list[Future[Any]]]:
    """A Future of the list, done once all of them are."""
    all_done: Future[list[Future[Any]]] = Future()
    lock = threading.Lock()
    missing = len(futures)

    def count(_: Future[Any]) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            last = missing == 0
        if last:
            all_done.set_result(list(futures))

    for each in futures:
        each.add_done_callback(count)
    if not futures:
        all_done.set_result([])
    return all_done


def wait_all(futures: list[Future[Any]]) -> list[Any]:
    """The values of all, once they are there. Raises the first error of the list."""
    return [each.wait() for each in collect_all(futures).wait()]


_absent.attach(globals())
