"""Events of a profile, and their table, in the form of torch.autograd.profiler. Times are in
microseconds."""

from __future__ import annotations

from typing import Any

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg"]


class _Times:
    """PyTorch's other names of times: the lanes' time is the devices' time."""

    cpu_time: Any
    cpu_time_total: float
    self_cpu_time_total: float
    device_time = cuda_time = property(lambda self: self.cpu_time, doc="As cpu_time.")
    device_time_total = cuda_time_total = property(
        lambda self: self.cpu_time_total, doc="As cpu_time_total.")
    self_device_time_total = self_cuda_time_total = property(
        lambda self: self.self_cpu_time_total, doc="As self_cpu_time_total.")


class FunctionEvent(_Times):
    """An op on a lane of the daemon, or a block of record_function. Times are in microseconds."""

    def __init__(self, name: str, begin: float, own: float, total: float, line: str,
                 input_shapes: list[list[int]] | None = None) -> None:
        self.name = self.key = name
        self.begin, self.line = begin, line
        self.input_shapes = input_shapes or []  # [] for each argument that is not a tensor
        self.self_cpu_time_total, self.cpu_time_total = own, total
        self.count = 1

    @property
    def cpu_time(self) -> float:
        """The same as cpu_time_total."""
        return self.cpu_time_total

    def __repr__(self) -> str:
        return f"<FunctionEvent {self.name!r}: {self.cpu_time_total:.3f} us, {self.line}>"


class FunctionEventAvg(_Times):
    """All events with the same name, and with the same shapes if these are grouped. Times are in
    microseconds."""

    def __init__(self, key: str, input_shapes: list[list[int]] | str = "") -> None:
        self.key, self.count = key, 0
        self.input_shapes = input_shapes  # "" if shapes are not grouped
        self.self_cpu_time_total = self.cpu_time_total = 0.0

    def add(self, event: FunctionEvent | FunctionEventAvg) -> None:
        """Adds an event, or the events of another entry."""
        self.count += event.count
        self.self_cpu_time_total += event.self_cpu_time_total
        self.cpu_time_total += event.cpu_time_total

    @property
    def cpu_time(self) -> float:
        """The mean time."""
        return self.cpu_time_total / self.count

    def __repr__(self) -> str:
        return f"<FunctionEventAvg {self.key!r}: {self.count} calls, {self.cpu_time_total:.3f} us>"


_COLUMNS = {"cpu_time": "cpu_time", "cpu_time_total": "cpu_time_total", "count": "count",
            "self_cpu_time_total": "self_cpu_time_total"}
_COLUMNS |= {name.replace("cpu", place): own for name, own in list(_COLUMNS.items())
             for place in ("cuda", "device")}


class EventList(list[Any]):
    """A list of events or averages, which can be printed as a table."""

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of the entries' own times, in microseconds."""
        return float(sum(each.self_cpu_time_total for each in self))

    def total_average(self) -> FunctionEventAvg:
        """One entry "Total" with the sums of all entries."""
        total = FunctionEventAvg("Total")
        for each in self:
            total.add(each)
        return total

    def table(self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
              max_name_column_width: int = 55, max_shapes_column_width: int = 80, header: str | None = None,
              top_level_events_only: bool = False, time_unit: str | None = None) -> str:
        """A table with one line for each entry, largest first by "self_cpu_time_total", "cpu_time_total",
        "cpu_time" or "count"; "cuda" or "device" in place of "cpu" mean the same, because the lanes' time
        is the devices' time. row_limit -1 shows all entries. ValueError for another column."""
        if sort_by is not None and sort_by not in _COLUMNS:
            raise ValueError(f"sort_by must be one of {', '.join(_COLUMNS)}, not {sort_by!r}")
        units = {"s": 1e-6, "ms": 1e-3, "us": 1.0}
        if time_unit not in (None, *units):
            raise ValueError(f"time_unit must be one of {', '.join(units)}, not {time_unit!r}")
        rows = list(self) if sort_by is None else sorted(
            self, key=lambda each: -getattr(each, _COLUMNS[sort_by]))
        whole = self.self_cpu_time_total
        shown = rows if row_limit < 0 else rows[:row_limit]
        width = max([min(len(each.key), max_name_column_width) for each in shown] + [4])
        shapes = [str(each.input_shapes) if each.input_shapes else "" for each in shown]
        wide = min(max(map(len, shapes), default=0), max_shapes_column_width)
        wide = max(wide, len("Input Shapes")) if wide else 0  # no column without shapes

        def text(us: float) -> str:
            unit = time_unit or ("s" if us >= 1e6 else "ms" if us >= 1e3 else "us")
            return f"{us * units[unit]:.3f}{unit}"

        head = (f"{'Name':<{width}}  {'Self %':>9}  {'Self':>12}  {'Total':>12}  {'Average':>12}  "
                f"{'# of Calls':>10}" + (f"  {'Input Shapes':>{wide}}" if wide else ""))
        lines = [*([header] if header else []), head, "-" * len(head)]
        for each, of in zip(shown, shapes, strict=True):
            part = each.self_cpu_time_total / whole if whole else 0.0
            average = each.cpu_time_total / each.count
            lines.append(f"{each.key[:max_name_column_width]:<{width}}  {part:>9.2%}  "
                         f"{text(each.self_cpu_time_total):>12}  {text(each.cpu_time_total):>12}  "
                         f"{text(average):>12}  {each.count:>10}"
                         + (f"  {self._cut(of, wide):>{wide}}" if wide else ""))
        return "\n".join([*lines, "-" * len(head), f"Self time total: {text(whole)}", ""])

    @staticmethod
    def _cut(text: str, width: int) -> str:
        return text if len(text) <= width else text[:width - 3] + "..."
