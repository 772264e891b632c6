"""How a tensor is printed: PyTorch's format; only the edges of a large tensor are downloaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .convert import to_numpy

__all__ = ["PRINT_OPTS", "body_of", "set_printoptions", "text_of", "text_with"]


@dataclass(frozen=True)
class _Options:
    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}
_options = _PROFILES["default"]


class _Current:
    """The options that the last set_printoptions has set."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_options, name)


PRINT_OPTS = _Current()


def set_printoptions(precision: int | None = None, threshold: float | None = None,
                     edgeitems: int | None = None, linewidth: int | None = None,
                     profile: str | None = None, sci_mode: bool | None = None) -> None:
    """Sets how tensors are printed in the whole process.

    precision: digits after the decimal point (4 by default). threshold: a tensor with more elements is
    shown by its edges only (1000). edgeitems: elements at each end of a dimension that is abbreviated (3).
    linewidth: characters per line (80). profile: "default", "short" or "full", applied before the other
    options. sci_mode: always scientific notation (True) or never (False); without it the values decide.
    ValueError for an unknown profile."""
    global _options
    options = _options
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"set_printoptions: no profile {profile!r}; there are "
                             f"{', '.join(map(repr, _PROFILES))}")
        options = _PROFILES[profile]
    _options = _Options(
        options.precision if precision is None else precision,
        options.threshold if threshold is None else threshold,
        options.edgeitems if edgeitems is None else edgeitems,
        options.linewidth if linewidth is None else linewidth,
        sci_mode,
    )


class _Formatter:
    """The common format and width of all shown values."""

    def __init__(self, values: list[Any], floating: bool) -> None:
        self._floating = floating
        # as in PyTorch, zeros, infinities and NaN do not affect the width
        shown = [v for v in values if math.isfinite(v) and v != 0] if floating else values
        sizes = [abs(v) for v in shown]
        whole = all(v == math.ceil(v) for v in sizes)
        largest, smallest = max(sizes, default=0), min(sizes, default=0)
        scientific = floating and bool(sizes) and (
            largest / smallest > 1000 or largest > 1e8 or smallest < 1e-4)
        if _options.sci_mode is not None and sizes:
            scientific = _options.sci_mode and floating
        self._form = f"{{:.{_options.precision}e}}" if scientific else (
            "{:.0f}." if whole else f"{{:.{_options.precision}f}}")
        self.width = max((len(self._text(v)) for v in shown), default=1)

    def _text(self, value: Any) -> str:
        if not self._floating:
            return str(value)
        if not math.isfinite(value):
            return str(float(value))
        return self._form.format(value)

    def __call__(self, value: Any) -> str:
        return self._text(value).rjust(self.width)


class _ComplexFormatter:
    """Separate formats for the real and the imaginary parts."""

    def __init__(self, values: list[complex]) -> None:
        self._real = _Formatter([v.real for v in values], True)
        self._imaginary = _Formatter([v.imag for v in values], True)
        self.width = self._real.width + self._imaginary.width + 1

    def __call__(self, value: complex) -> str:
        imaginary = self._imaginary(value.imag).lstrip()
        sign = "" if imaginary[0] in "+-" else "+"
        return f"{self._real(value.real)}{sign}{imaginary}j"


def _edges(x: Tensor) -> Tensor:
    """x without the middle of its long dimensions, which one element represents; the selection runs on the
    daemon."""
    edge = _options.edgeitems
    for d, size in enumerate(x._shape):
        if size > 2 * edge:
            x = ops["cat"]([ops["slice"](x, d, 0, edge, 1),
                            ops["slice"](x, d, size - edge, edge, 1)], d)
    return x


def _rows(values: Any, shape: tuple[int, ...], form: Any, indent: int, cut: bool) -> str:
    if not shape:
        return str(form(values))
    edge = _options.edgeitems
    gap = edge if cut and shape[0] > 2 * edge else None
    if len(shape) == 1:
        cells = [form(v) for v in values]
        if gap is not None:
            cells.insert(gap, " ...")
        per_line = max(1, (_options.linewidth - indent) // (form.width + 2))
        lines = [", ".join(cells[i:i + per_line]) for i in range(0, len(cells), per_line)] or [""]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    parts = [_rows(v, shape[1:], form, indent + 1, cut) for v in values]
    if gap is not None:
        parts.insert(gap, "...")
    return "[" + ("," + "\n" * (len(shape) - 1) + " " * (indent + 1)).join(parts) + "]"


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, list):
        return [values]
    return [v for each in values for v in _flat(each)]


def body_of(x: Tensor, indent: int) -> str:
    """The elements of a tensor in brackets, the first of which is in column `indent`."""
    if x.numel() == 0:
        return "[]"
    cut = x.numel() > _options.threshold
    with _core.GradScope(False):
        shown = ops["detach"](x)
        if cut:
            shown = _edges(shown)
        if shown.dtype == _core.bfloat16:
            shown = ops["cast"](shown, _core.float32)
        values = to_numpy(shown).tolist()
    flat = _flat(values)
    form = (_ComplexFormatter(flat) if x.dtype.is_complex
            else _Formatter(flat, x.dtype.is_floating_point))
    return _rows(values, tuple(x._shape), form, indent, cut)


def text_of(x: Tensor) -> str:
    """The repr of a tensor; if its values cannot be read, the text says why instead of raising an error."""
    if x._inside:
        return f"<tensor inside vmap, {list(x._shape)} {x.dtype.name} on {x.device}>"
    head = "Parameter containing:\ntensor(" if type(x).__name__ == "Parameter" else "tensor("
    default = _core.default_dtype()
    if x.is_meta:
        body = "..."
        parts = [f"device='{x.device}'", f"size={tuple(x._shape)}"]
        if x.dtype != default:
            parts.append(f"dtype={x.dtype}")
    else:
        try:
            body = body_of(x, len("tensor("))
        except (RuntimeError, MemoryError, IndexError) as error:
            return (f"<tensor {list(x._shape)} {x.dtype.name} on {x.device}; its value cannot be read: "
                    f"{error}>")
        parts = []
        if x.numel() == 0 and len(x._shape) != 1:
            parts.append(f"size={tuple(x._shape)}")
        usual = (default, _core.int64, _core.bool, default.to_complex())
        if x.dtype not in usual or (x.numel() == 0 and x.dtype != usual[0]):
            parts.append(f"dtype={x.dtype}")
        if x.device.type != "cpu":
            parts.append(f"device='{x.device}'")
    try:
        name = x.grad_fn.name() if x.requires_grad and x.grad_fn is not None else None
    except RuntimeError:  # a view whose history was cut
        name = "Invalid"
    if name:
        parts.append(f"grad_fn=<{name}>")
    elif x.requires_grad:
        parts.append("requires_grad=True")
    return text_with(head + body, parts, len("tensor("))


def text_with(text: str, parts: list[str], indent: int, new_line: bool = False) -> str:
    """Returns the text of a tensor with further parts and the closing bracket. Parts are appended to the
    last line while there is room; with new_line, the first of them begins a line."""
    column = len(text) - text.rfind("\n") + 1
    for part in parts:
        if new_line or column + len(part) + 2 > _options.linewidth:
            text += ",\n" + " " * indent + part
            column, new_line = indent + len(part), False
        else:
            text += ", " + part
            column += len(part) + 2
    return text + ")"
