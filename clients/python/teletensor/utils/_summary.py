"""A table of a model's modules: the shapes that each returns and its number of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _functions as f
from .._calls.tree import flatten
from .._core import Tensor, default_dtype
from .._tools.admin import bytes_text
from ..autograd._modes import no_grad
from ..nn.module import Module

__all__ = ["ModuleRow", "Summary", "summary"]


@dataclass(frozen=True)
class ModuleRow:
    """The row of one module of a model."""

    name: str  # its path within the model, "" for the model itself
    kind: str  # the name of its class
    depth: int  # its nesting depth in the model
    outputs: tuple[tuple[int, ...], ...]  # the shapes of the tensors that its first call returned
    parameters: int  # the number of parameters in it and in its submodules, each counted once
    trainable: int  # the number of those that have requires_grad
    calls: int  # the number of calls of its forward

    @property
    def text(self) -> tuple[str, str, str, str]:
        """The columns of the table: the module, its output shapes, its parameters, its calls."""
        label = f"{self.name.rpartition('.')[2]}: {self.kind}" if self.depth else self.kind
        shapes = ", ".join(str(list(shape)) for shape in self.outputs)
        return ("  " * self.depth + label, shapes, f"{self.parameters:,}" if self.parameters else "",
                str(self.calls) if self.calls > 1 else "")


@dataclass(frozen=True)
class Summary:
    """The result of `summary`; it is shown as a table if it is printed or is the last value of a notebook
    cell."""

    rows: tuple[ModuleRow, ...]  # the model first, then its modules in order
    parameters: int
    trainable: int
    parameter_bytes: int
    buffer_bytes: int

    def __str__(self) -> str:
        head = ("module", "output shape", "parameters", "calls")
        cells = [row.text for row in self.rows]
        used = [i for i in range(len(head)) if i == 0 or any(row[i] for row in cells)]
        widths = [max(len(row[i]) for row in [head, *cells]) for i in used]
        lines = []
        for row in [head, *cells]:
            parts = [row[i].rjust(width) if i >= 2 else row[i].ljust(width)
                     for i, width in zip(used, widths, strict=True)]
            lines.append("  ".join(parts).rstrip())
        lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
        memory = f"{bytes_text(self.parameter_bytes)} of parameters"
        if self.buffer_bytes:
            memory += f", {bytes_text(self.buffer_bytes)} of buffers"
        counts = f"{self.parameters:,} parameters, {self.trainable:,} of them trainable"
        lines += [lines[1], f"{counts}; {memory}"]
        return "\n".join(lines)

    __repr__ = __str__


def _modules(model: Module, name: str, depth: int, most: int | None,
             seen: set[int]) -> Iterator[tuple[str, int, Module]]:
    """The modules down to a depth; a shared module is listed at its first position."""
    if id(model) in seen:
        return
    seen.add(id(model))
    yield name, depth, model
    if most is not None and depth == most:
        return
    for child, module in model.named_children():
        yield from _modules(module, f"{name}.{child}" if name else child, depth + 1, most, seen)


def _shapes(result: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(leaf.shape) for leaf in flatten(result)[0] if isinstance(leaf, Tensor))


def _zeros(model: Module, input_size: Any, dtypes: Any, device: Any) -> list[Tensor]:
    """Zeros of these sizes as inputs, on the device of the model's first parameter unless a device is
    given."""
    sizes = [input_size] if all(isinstance(n, int) for n in input_size) else list(input_size)
    kinds = [default_dtype()] * len(sizes) if dtypes is None else list(dtypes)
    if len(kinds) != len(sizes):
        raise ValueError(f"summary: {len(sizes)} input sizes do not match {len(kinds)} dtypes")
    if device is None:
        first = next(iter(model.parameters()), None)
        device = None if first is None else first.device
    return [f.zeros(*size, dtype=kind, device=device) for size, kind in zip(sizes, kinds, strict=True)]


def _call(model: Module, modules: list[Module], inputs: Sequence[Any],
          kwargs: dict[str, Any]) -> tuple[dict[int, Any], dict[int, int]]:
    """Runs the model in evaluation mode without gradients; returns the output shapes and the number of
    calls for each module."""
    outputs: dict[int, Any] = {}
    calls: dict[int, int] = {}

    def note(module: Module, _: Any, result: Any) -> None:
        outputs.setdefault(id(module), _shapes(result))
        calls[id(module)] = calls.get(id(module), 0) + 1

    modes = [(module, module.training) for module in model.modules()]
    hooks = [module.register_forward_hook(note) for module in modules]
    try:
        model.eval()
        with no_grad():
            model(*inputs, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return outputs, calls


def summary(model: Module, input_size: Any = None, input_data: Any = None, *, depth: int | None = 3,
            dtypes: Sequence[Any] | None = None, device: Any = None, **kwargs: Any) -> Summary:
    """Returns a table of the model's modules, down to `depth` levels (None for all).

    With input_size (a shape including the batch, or several shapes) the model is called with zeros of these
    shapes and `dtypes`; with input_data (a tensor, or a sequence of arguments) it is called with that;
    kwargs are passed to the model as well. The call is made in evaluation mode without gradients, and
    restores buffers, modes and the random generator. Without inputs the table has no shapes. ValueError if
    both are given.

    >>> model = tt.nn.Sequential(tt.nn.Linear(4, 8), tt.nn.ReLU(), tt.nn.Linear(8, 2))
    >>> print(tt.utils.summary(model, (1, 4)))
    module       output shape  parameters
    -------------------------------------
    Sequential   [1, 2]                58
      0: Linear  [1, 8]                40
      1: ReLU    [1, 8]
      2: Linear  [1, 2]                18
    -------------------------------------
    58 parameters, 58 of them trainable; 232 B of parameters
    """
    if not isinstance(model, Module):
        raise TypeError(f"summary: a Module is expected, not {type(model).__name__}")
    if input_size is not None and input_data is not None:
        raise ValueError("summary: give input_size or input_data, not both")
    found = list(_modules(model, "", 0, depth, set()))
    outputs: dict[int, Any] = {}
    calls: dict[int, int] = {}
    inputs: Sequence[Any] | None = None
    if input_size is not None:
        inputs = _zeros(model, input_size, dtypes, device)
    elif input_data is not None:
        inputs = list(input_data) if isinstance(input_data, (list, tuple)) else [input_data]
    if inputs is not None:
        outputs, calls = _call(model, [module for _, _, module in found], inputs, kwargs)
    rows = []
    for name, level, module in found:
        own = list(module.parameters())
        rows.append(ModuleRow(name, type(module).__name__, level, outputs.get(id(module), ()),
                              sum(p.numel() for p in own),
                              sum(p.numel() for p in own if p.requires_grad), calls.get(id(module), 0)))
    return Summary(tuple(rows), rows[0].parameters, rows[0].trainable,
                   sum(p.numel() * p.element_size() for p in model.parameters()),
                   sum(b.numel() * b.element_size() for b in model.buffers()))
