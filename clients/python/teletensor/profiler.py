"""The interface of torch.profiler for the records of `Session.profile`: ops on the daemon's lanes, frames
in transit, waits.

`profile` records the current session from start to end; rows have the names of the daemon's ops and of
`record_function`. The times of ops are those of the daemon's lanes, whichever device computes them.
"""

from __future__ import annotations

import enum
import functools
import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import cuda
from ._names import absent as _absent
from ._sessions.session import current_session
from ._tools.profile import Profile
from ._tools.profile_events import EventList, FunctionEvent, FunctionEventAvg

__all__ = ["ProfilerAction", "ProfilerActivity", "profile", "record_function", "schedule",
           "supported_activities", "tensorboard_trace_handler"]


class ProfilerActivity(enum.Enum):
    """What is recorded. It has no effect: everything is always recorded."""

    CPU = 0
    XPU = 1
    CUDA = 2


class ProfilerAction(enum.Enum):
    """The action in a step of a schedule."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """CPU, and also CUDA if the daemon has GPUs."""
    return {ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda.is_available() else [])}


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0,
             skip_first_wait: int = 0) -> Callable[[int], ProfilerAction]:
    """Returns a schedule: cycles of `wait` steps that are not recorded, `warmup` steps, and `active`
    recorded steps, after skip_first steps; there are `repeat` cycles, or with 0 as many as there are steps.
    With skip_first_wait the first cycle has no wait. AssertionError for numbers out of range, as in
    PyTorch."""
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise AssertionError(f"schedule: wait={wait}, warmup={warmup}, repeat={repeat}, "
                             f"skip_first={skip_first} must not be negative, and active={active} must "
                             "be positive")
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise AssertionError(f"Step must be non-negative, got {step}.")
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first - (wait if skip_first_wait else 0)
        if repeat > 0 and step // cycle >= repeat:
            return ProfilerAction.NONE
        place = step % cycle - wait
        if place < 0:
            return ProfilerAction.NONE
        if place < warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < warmup + active - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


_running: list[profile] = []
_ranges = threading.Lock()


class record_function:
    """A context manager and decorator that adds a row for the block to a profile's table and trace. Its
    total time is the time that the program spends in the block; operations issued in it may be computed
    later."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> record_function:
        self._begin = time.monotonic_ns()
        return self

    def __exit__(self, *error: object) -> None:
        with _ranges:
            for each in _running:
                each._blocks.append((self.name, self._begin, time.monotonic_ns(), threading.get_ident()))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name, self.args):
                return function(*args, **kwargs)

        return within


class profile:
    """Records the current session: `with profile() as p: ...`, then `p.key_averages().table()`.

    With a schedule, `p.step()` at the end of each step decides when it records; on_trace_ready(p) is called
    after each cycle, or at the end. With record_shapes, events have the shapes of the tensors that an op
    was called with; a fused loop has those of its first op, and ops of a backward or of a captured program
    have none. profile_memory, with_stack, with_flops and with_modules have no effect: every event always
    has the line of the program that issued it.

    >>> with tt.profiler.profile() as p:
    ...     (tt.ones(3) * 2).sum().item()
    6.0
    >>> "mul" in p.key_averages().table(sort_by="self_cpu_time_total")
    True
    """

    def __init__(self, *, activities: Iterable[Any] | None = None,
                 schedule: Callable[[int], ProfilerAction] | None = None,
                 on_trace_ready: Callable[..., Any] | None = None, record_shapes: bool = False,
                 profile_memory: bool = False, with_stack: bool = False, with_flops: bool = False,
                 with_modules: bool = False, experimental_config: Any = None,
                 execution_trace_observer: Any = None, acc_events: bool = False,
                 custom_trace_id_callback: Any = None,
                 post_processing_timeout_s: float | None = None) -> None:
        self._schedule, self.on_trace_ready = schedule, on_trace_ready
        self._shapes = record_shapes
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._recording: Profile | None = None
        self._found: Profile | None = None
        self._blocks: list[tuple[str, int, int, int]] = []

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts with the first step of the schedule."""
        self.current_action = self._action()
        if self.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE):
            self._begin()

    def stop(self) -> None:
        """Stops, and calls on_trace_ready if something was recorded since its last call."""
        self._end(saved=True)
        self.current_action = ProfilerAction.NONE

    def step(self) -> None:
        """Ends a step and starts the next one."""
        before, self.step_num = self.current_action, self.step_num + 1
        self.current_action = self._action()
        records = self.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if before is ProfilerAction.RECORD_AND_SAVE or not records:
            self._end(saved=before is ProfilerAction.RECORD_AND_SAVE)
        if records and self._recording is None:
            self._begin()

    def _action(self) -> ProfilerAction:
        return ProfilerAction.RECORD if self._schedule is None else self._schedule(self.step_num)

    def _begin(self) -> None:
        self._blocks = []
        self._recording = current_session().profile(record_shapes=self._shapes)
        self._recording.__enter__()
        with _ranges:
            _running.append(self)

    def _end(self, saved: bool) -> None:
        if self._recording is None:
            return
        with _ranges:
            _running.remove(self)
        self._found, self._recording = self._recording, None
        self._found.__exit__(None, None, None)
        if saved and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _ended(self) -> Profile:
        if self._found is None:
            raise RuntimeError(
                "the profile has no events yet: they are available after a recorded part has ended")
        return self._found

    def events(self) -> EventList:
        """All ops and blocks of record_function in the order in which they began. RuntimeError before the
        profile has ended."""
        found = self._ended()
        events = [FunctionEvent(Profile._name(span, "op"), span.begin * 1e6, span.seconds * 1e6,
                                span.seconds * 1e6, span.line, span.shapes) for span in found.spans]
        events += [FunctionEvent(name, begin, 0.0, length, "") for name, begin, length, _ in self._times()]
        return EventList(sorted(events, key=lambda each: each.begin))

    def _times(self) -> Iterator[tuple[str, float, float, int]]:
        start = self._ended()._begin
        for name, begin, end, thread in self._blocks:
            yield name, (begin - start) / 1e3, (end - begin) / 1e3, thread

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0,
                     group_by_overload_name: bool = False) -> EventList:
        """The events grouped by name; with group_by_input_shape also by the shapes of their arguments (see
        record_shapes), and with group_by_stack_n also by the line of the program."""
        if group_by_overload_name:
            raise NotImplementedError("key_averages: ops have no overloads to group events by")
        sums: dict[tuple[str, str], FunctionEventAvg] = {}
        for event in self.events():
            key = f"{event.name}  {event.line}" if group_by_stack_n and event.line else event.name
            shapes = event.input_shapes if group_by_input_shape else ""
            sums.setdefault((key, str(shapes)), FunctionEventAvg(key, shapes)).add(event)
        return EventList(sums.values())

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace for Perfetto (ui.perfetto.dev) and chrome://tracing, compressed if path ends in
        ".gz". RuntimeError before the profile has ended."""
        events = list(self._ended()._events())
        events += [{"ph": "X", "pid": 1, "tid": thread, "ts": round(begin, 3), "dur": round(length, 3),
                    "name": name, "cat": "user_annotation"}
                   for name, begin, length, thread in self._times()]
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events})
        if os.fspath(path).endswith(".gz"):
            with gzip.open(path, "wt") as file:
                file.write(text)
        else:
            with open(path, "w") as plain:
                plain.write(text)


class _AutogradProfile(profile):
    """The older `torch.autograd.profiler.profile`: records the current session unless enabled is False.
    The switches that choose what is recorded have no effect, but record_shapes."""

    def __init__(self, enabled: bool = True, *, use_device: str | None = None, record_shapes: bool = False,
                 with_flops: bool = False, profile_memory: bool = False, with_stack: bool = False,
                 with_modules: bool = False, use_kineto: bool = False, use_cpu: bool = True,
                 experimental_config: Any = None, acc_events: bool = False,
                 custom_trace_id_callback: Any = None, post_processing_timeout_s: float | None = None,
                 activity_filters: Any = None) -> None:
        super().__init__(record_shapes=record_shapes)
        self.enabled = enabled

    def __enter__(self) -> Any:
        """Starts, and returns the profile; None if it is not enabled, as in PyTorch."""
        return super().__enter__() if self.enabled else None

    @property
    def function_events(self) -> EventList:
        """As events()."""
        return self.events()

    def table(self, *args: Any, **options: Any) -> str:
        """The table of all events, one row for each."""
        return self.events().table(*args, **options)

    def total_average(self) -> FunctionEventAvg:
        """The sum of all events."""
        return self.events().total_average()

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all ops on the daemon's lanes, in microseconds."""
        return self.events().self_cpu_time_total


def tensorboard_trace_handler(dir_name: str, worker_name: str | None = None, use_gzip: bool = False,
                              use_python_export: bool = False) -> Callable[[profile], None]:
    """Returns a function for on_trace_ready that writes each trace to a file in that folder, which it
    creates."""
    def handler(prof: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' * use_gzip}"
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return handler


_absent.attach(globals())
