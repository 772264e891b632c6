"""Measures the times of statements: `Timer(...).timeit()`, measurements, and tables that compare them.

A statement only issues work; the clock of a Timer waits until the daemon has computed it, as PyTorch's
clock waits for a GPU. The time of a run includes its share of the one round trip with which a block of runs
ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import statistics
import textwrap
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._functions import zeros
from .._names import absent as _absent
from .._names.extras import get_num_threads, set_num_threads
from .._sessions.session import current_session, way

__all__ = ["Colorize", "Compare", "Language", "Measurement", "TaskSpec", "Timer", "ordered_unique",
           "select_unit", "set_torch_threads", "timer", "trim_sigfig", "unit_to_english"]

_UNITS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_MIN_INTERVAL = 25e-9  # the seconds to which a time can be known
_MAX_FIGURES = 4
_NAMES = {"ns": "nanosecond", "us": "microsecond", "ms": "millisecond", "s": "second"}


def timer() -> float:
    """Reads a clock in seconds, after the daemon has computed everything that was issued in the current
    session."""
    if way() is not None:
        current_session().synchronize()
    return time.perf_counter()


def select_unit(t: float) -> tuple[str, float]:
    """The unit in which a time of t seconds is best read, and the length of the unit in seconds: ("us",
    1e-06)."""
    return next((unit for unit in reversed(_UNITS) if t >= unit[1]), _UNITS[0])


def unit_to_english(u: str) -> str:
    """The English name of a unit: "microsecond"."""
    return _NAMES[u]


def ordered_unique(elements: Iterable[Any]) -> list[Any]:
    """The elements in order, each once."""
    return list(dict.fromkeys(elements))


def trim_sigfig(x: float, n: int) -> float:
    """Rounds x to n significant digits: trim_sigfig(3.14159, 2) is 3.1. AssertionError if n is not a whole
    number."""
    if n != int(n):
        raise AssertionError("Number of significant figures must be an integer")
    return float(f"{x:.{max(int(n), 1) - 1}e}")


@contextlib.contextmanager
def set_torch_threads(n: int) -> Iterator[None]:
    """Within the block get_num_threads() returns n."""
    before = get_num_threads()
    set_num_threads(n)
    try:
        yield
    finally:
        set_num_threads(before)


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """The description of what was measured."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label (or the statement), followed by the sub-label if there is one."""
        head = self.label or self.stmt
        return f"{head}: {self.sub_label}" if self.sub_label else head

    def setup_str(self) -> str:
        """The setup for people to read; "" if there is none."""
        if self.setup == "pass" or not self.setup:
            return ""
        if "\n" not in self.setup:
            return f"setup: {self.setup}"
        return "setup:\n" + textwrap.indent(self.setup, "  ")

    def summarize(self) -> str:
        """The title, the description and the setup, each on lines of its own."""
        return "\n".join(filter(None, (self.title, self.description, self.setup_str())))


_TASK_FIELDS = frozenset(each.name for each in dataclasses.fields(TaskSpec))


@dataclasses.dataclass
class Measurement:
    """The times of a statement's runs: each block of `number_per_run` runs took one of `raw_times`, in
    seconds."""

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = None

    @property
    def times(self) -> list[float]:
        """The seconds per run, for each block of runs."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def mean(self) -> float:
        """The mean of the times. ValueError without times."""
        return statistics.fmean(self._some())

    @property
    def median(self) -> float:
        """The median of the times. ValueError without times."""
        return statistics.median(self._some())

    @property
    def iqr(self) -> float:
        """The interquartile range of the times; 0 for a single time."""
        times = self._some()
        if len(times) == 1:
            return 0.0
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return high - low

    def meets_confidence(self, threshold: float = 0.1) -> bool:
        """Returns whether the interquartile range is below `threshold` times the median."""
        return self.iqr < threshold * self.median

    @property
    def has_warnings(self) -> bool:
        """Returns whether the interquartile range is at least 10 % of the median."""
        return not self.meets_confidence()

    @property
    def significant_figures(self) -> int:
        """An estimate of how many digits of the median are certain, 1 to 4: those of the median divided by
        the 90 % confidence interval of the times between the quartiles. Source: PyTorch's
        `Measurement.significant_figures`."""
        times = sorted(self._some())
        inner = times[len(times) // 4:math.ceil(3 * len(times) / 4)]
        interval = max(1.645 * statistics.pstdev(inner) / math.sqrt(len(inner)), _MIN_INTERVAL)
        return min(max(math.floor(math.log10(self.median / interval)), 1), _MAX_FIGURES)

    @property
    def env(self) -> str:
        """The environment of the task."""
        return self.task_spec.env or "Unspecified env"

    @property
    def as_row_name(self) -> str:
        """The name of the row in tables: the sub-label, or the statement."""
        return self.task_spec.sub_label or self.task_spec.stmt or "[Unknown]"

    def __getattr__(self, name: str) -> Any:
        if name in _TASK_FIELDS:
            return getattr(self.task_spec, name)
        raise AttributeError(f"a Measurement has no attribute {name!r}", name=name, obj=self)

    @property
    def title(self) -> str:
        """The title of the task."""
        return self.task_spec.title

    def _some(self) -> list[float]:
        if not self.raw_times:
            raise ValueError("a Measurement without times has no statistics")
        return self.times

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """Merges the measurements of the same task: one measurement for each task, with all its times."""
        found: dict[TaskSpec, Measurement] = {}
        for each in measurements:
            known = found.setdefault(each.task_spec, Measurement(1, [], each.task_spec, each.metadata))
            known.raw_times += each.times
        return list(found.values())

    def __repr__(self) -> str:
        unit, scale = select_unit(self.median)
        count = len(self.times)
        lines = [f"<teletensor.utils.benchmark.Measurement: {self.title}>"]
        if self.task_spec.description:
            lines.append(self.task_spec.description)
        name = "Median" if count > 1 else "Time"
        lines.append(f"{name}: {self.median / scale:.2f} {unit}")
        if count > 1:
            lines.append(f"IQR:    {self.iqr / scale:.2f} {unit}")
        lines.append(f"{count} measurement{'s' * (count > 1)}, {self.number_per_run} runs per measurement, "
                     f"{self.task_spec.num_threads} thread{'s' * (self.task_spec.num_threads > 1)}")
        if self.has_warnings:
            lines.append(f"WARNING: the quartiles lie {self.iqr / self.median:.0%} of the median apart")
        return "\n".join(lines)


class Language(enum.Enum):
    """The language of a statement. A Timer takes only those of Python."""

    PYTHON = 0
    CPP = 1


class Timer:
    """Measures a Python statement, given as text, with `globals` as its global names.

    Compare arranges measurements by `label`, `sub_label` and `description`. `num_threads` is only shown in
    its tables: the number of the daemon's threads is set when it is started. `timer` may be another clock.

    >>> from teletensor.utils import benchmark
    >>> x = tt.ones(100)
    >>> m = benchmark.Timer("(x * 2).sum()", globals={"x": x}).timeit(10)
    >>> m.number_per_run, m.median > 0
    (10, True)
    """

    def __init__(self, stmt: str = "pass", setup: str = "pass", global_setup: str = "",
                 timer: Callable[[], float] = timer, globals: dict[str, Any] | None = None,
                 label: str | None = None, sub_label: str | None = None, description: str | None = None,
                 env: str | None = None, num_threads: int = 1,
                 language: Language | str = Language.PYTHON) -> None:
        if not isinstance(stmt, str):
            raise ValueError("Only a `str` stmt is supported.")
        if str(getattr(language, "name", language)).lower() not in ("python", "py"):
            raise NotImplementedError(f"Timer: only statements of Python are supported, not of {language}")
        if global_setup:
            raise ValueError("global_setup is only supported for C++: a statement of Python has `setup`")
        import teletensor

        names = {"teletensor": teletensor, "tt": teletensor, **(globals or {})}
        self._timer = timeit.Timer(stmt, setup, timer, names)
        self._task_spec = TaskSpec(stmt, setup, "", label, sub_label, description, env, num_threads)

    def _measured(self, number: int, raw: list[float]) -> Measurement:
        return Measurement(number, raw, self._task_spec)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """Measures one block of `number` runs, after a hundredth as many that are not measured."""
        self._timer.timeit(max(number // 100, 2))
        return self._measured(number, [max(self._timer.timeit(number), 1e-9)])

    def repeat(self, repeat: int = -1, number: int = -1) -> None:
        """NotImplementedError, as in PyTorch: use blocked_autorange()."""
        raise NotImplementedError("See `Timer.blocked_autorange.`")

    def autorange(self, callback: Callable[[int, float], Any] | None = None) -> None:
        """NotImplementedError, as in PyTorch: use blocked_autorange()."""
        raise NotImplementedError("See `Timer.blocked_autorange.`")

    def collect_callgrind(self, *args: Any, **kwargs: Any) -> None:
        """NotImplementedError: Valgrind could only count instructions of the client."""
        raise NotImplementedError("Timer.collect_callgrind: the daemon does the work, and Valgrind cannot "
                                  "count its instructions from here: use blocked_autorange()")

    def _overhead(self) -> float:
        """The seconds of an empty block, with something issued for which the clock waits."""
        clock = self._timer.timer  # type: ignore[attr-defined]
        begin = clock()
        if clock is timer and way() is not None:
            zeros(())
        return float(clock() - begin)

    def _block(self, min_run_time: float) -> int:
        """The number of runs for which the clock and the round trip take at most 1 % of a block's time."""
        overhead = statistics.median(self._overhead() for _ in range(5))
        number = 1
        while True:
            taken = self._timer.timeit(number)
            if overhead <= 0.01 * taken and taken >= min_run_time / 1000 or taken > min_run_time:
                return number
            number *= 10

    def blocked_autorange(self, callback: Callable[[int, float], Any] | None = None,
                          min_run_time: float = 0.2) -> Measurement:
        """Measures blocks of runs, each much longer than the clock's own cost, until they have taken
        min_run_time seconds. callback(number, seconds) is called after each block."""
        number = self._block(min_run_time)
        return self._until(number, callback, min_run_time, lambda times: True, min_run_time)

    def adaptive_autorange(self, threshold: float = 0.1, *, min_run_time: float = 0.01,
                           max_run_time: float = 10.0,
                           callback: Callable[[int, float], Any] | None = None) -> Measurement:
        """As blocked_autorange, until the interquartile range is less than threshold times the median, or
        for max_run_time seconds."""
        def steady(times: list[float]) -> bool:
            found = self._measured(1, times)
            return len(times) >= 4 and found.iqr < threshold * found.median

        return self._until(self._block(min_run_time), callback, min_run_time, steady, max_run_time)

    def _until(self, number: int, callback: Callable[[int, float], Any] | None, least: float,
               enough: Callable[[list[float]], bool], most: float) -> Measurement:
        raw: list[float] = []
        total = 0.0
        while total < least or not enough(raw):
            raw.append(self._timer.timeit(number))
            total += raw[-1]
            if callback is not None:
                callback(number, raw[-1])
            if total >= most:
                break
        return self._measured(number, raw)


class Colorize(enum.Enum):
    """What the colours of a table compare: nothing, the times of each column, or the times of each row."""

    NONE = "none"
    COLUMNWISE = "columnwise"
    ROWWISE = "rowwise"


# The codes of a terminal. Source: PyTorch's utils/benchmark/utils/compare.py.
_BOLD, _END = "\033[1m", "\033[0m"
_BEST, _GOOD, _BAD, _WORST = "\033[92m", "\033[34m", "\033[2m\033[91m", "\033[31m"


def _colored(text: str, value: float, best: float) -> str:
    """The text in the colour for a time of `value` seconds, where `best` is the shortest time."""
    if value <= max(best * 1.01, best + 100e-9):
        return _BEST + _BOLD + text + _END * 2
    if value <= best * 1.1:
        return _GOOD + _BOLD + text + _END * 2
    if value >= best * 5:
        return _WORST + _BOLD + text + _END * 2
    return _BAD + text + _END * 2 if value >= best * 2 else text


class Compare:
    """A table of measurements: one table for each label, with a row for each sub-label and a column for
    each description."""

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._results: list[Measurement] = []
        self._trimmed = False
        self._highlighted = False
        self._colors = Colorize.NONE
        self.extend_results(results)

    def extend_results(self, results: Sequence[Measurement]) -> None:
        """Adds measurements. ValueError for anything that is not a measurement."""
        for each in results:
            if not isinstance(each, Measurement):
                raise ValueError(f"Expected an instance of `Measurement`, got {type(each)} instead.")
        self._results += results

    def trim_significant_figures(self) -> None:
        """Shows three significant digits of each time."""
        self._trimmed = True

    def highlight_warnings(self) -> None:
        """Marks times that varied much with "(!)"."""
        self._highlighted = True

    def colorize(self, rowwise: bool = False) -> None:
        """Shows in a terminal's colours how far each time is from the shortest one of its column, or with
        rowwise of its row. The columns of each number of threads are compared for themselves."""
        self._colors = Colorize.ROWWISE if rowwise else Colorize.COLUMNWISE

    def print(self) -> None:
        """Prints the table."""
        print(str(self))

    def __str__(self) -> str:
        merged = Measurement.merge(self._results)
        labels = dict.fromkeys(each.task_spec.label or "" for each in merged)
        return "\n".join(
            self._table(label, [each for each in merged if (each.task_spec.label or "") == label])
            for label in labels)

    def _table(self, label: str, results: list[Measurement]) -> str:
        unit, scale = select_unit(min(each.median for each in results))
        columns = list(dict.fromkeys(each.task_spec.description or "" for each in results))
        cells: dict[int, dict[tuple[str, str], Measurement]] = {}
        for each in results:
            spec = each.task_spec
            row = " ".join(filter(None, (f"({spec.env})" if spec.env else "", each.as_row_name)))
            cells.setdefault(spec.num_threads, {})[row, spec.description or ""] = each
        rows = [row for of in cells.values() for row, _ in of]
        first = max([len(row) for row in rows] + [13])
        wide = [max([len(c)] + [len(self._cell(each, scale)) for of in cells.values()
                                for (_, column), each in of.items() if column == c])
                for c in columns]
        lines = [f"[{f' {label} ' if label else '':-^{first + sum(wide) + 5 * len(wide) + 2}}]",
                 " " * (first + 4) + "".join(f"  |  {c:^{w}}" for c, w in zip(columns, wide, strict=True))]
        for threads, of in cells.items():
            lines.append(f"{threads} threads: ".ljust(first + sum(wide) + 5 * len(wide) + 4, "-"))
            for row in dict.fromkeys(row for row, _ in of):
                lines.append(f"    {row:<{first}}" + "".join(
                    "  |  " + self._shown(of, row, column, w, scale)
                    for column, w in zip(columns, wide, strict=True)))
        return "\n".join([*lines, "", f"Times are in {unit_to_english(unit)}s ({unit}).", ""])

    def _shown(self, cells: dict[tuple[str, str], Measurement], row: str, column: str, width: int,
               scale: float) -> str:
        """The text of one cell, which is empty if nothing was measured."""
        each = cells.get((row, column))
        text = f"{'' if each is None else self._cell(each, scale):>{width}}"
        if each is None or self._colors is Colorize.NONE:
            return text
        place = 0 if self._colors is Colorize.ROWWISE else 1
        best = min(other.median for at, other in cells.items() if at[place] == (row, column)[place])
        return _colored(text, each.median, best)

    def _cell(self, each: Measurement, scale: float) -> str:
        value = each.median / scale
        text = f"{value:.3g}" if self._trimmed else f"{value:.1f}"
        return text + " (!)" * (self._highlighted and each.has_warnings)


_absent.attach(globals())
