"""The interface of torch.futures: values that become available later. The hooks of DistributedDataParallel
return them.

A value that is a tensor may still be being computed by the daemon: reading it waits, as for any tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ._names import absent as _absent

__all__ = ["Future", "collect_all", "wait_all"]

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """A value or an error that is set once, by `set_result` or `set_exception`. `devices` has no effect.

    Any thread may call any of the methods. Callbacks run in the thread that sets the value, or at once if
    it is already set."""

    def __init__(self, *, devices: Any = None) -> None:
        self._changed = threading.Condition()
        self._done = False  # this field and the following ones are protected by _changed
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Returns whether the value or an error is set."""
        with self._changed:
            return self._done

    def wait(self) -> T:
        """Waits for the value and returns it. Raises the error given to `set_exception`, or that of the
        callback that should have computed the value."""
        with self._changed:
            while not self._done:
                self._changed.wait()
        return self.value()

    def value(self) -> T:
        """Returns the value, or raises the error as wait() does. RuntimeError if neither is set."""
        with self._changed:
            if not self._done:
                raise RuntimeError("value() of a Future that has no result yet; wait() waits for it")
        if self._error is not None:
            raise self._error
        found: T = self._value
        return found

    def set_result(self, result: T) -> None:
        """Sets the value. RuntimeError if it is already set."""
        self._end(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Sets an error instead of a value. TypeError if it is not an exception."""
        if not isinstance(result, BaseException):
            raise TypeError(f"set_exception takes an exception, not {type(result).__name__}")
        self._end(None, result)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """Returns a Future of the result of callback(this Future), which is called when this Future is
        done."""
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
        """Calls callback(this Future) when it is done. As in PyTorch, errors of the callback are only
        written to standard error."""

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
    """Returns a Future of the list, which is done when all its elements are."""
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
    """Waits for the values of all futures and returns them. Raises the first error in the list."""
    return [each.wait() for each in collect_all(futures).wait()]


_absent.attach(globals())
