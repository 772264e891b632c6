"""Functions and switches of torch._dynamo. Switches and hints are accepted and have no effect."""

from __future__ import annotations

from typing import Any

from ._names import absent as _absent
from .backends._switches import Switches
from .compiler import allow_in_graph, assume_constant_result, compile, disable, is_compiling, reset

__all__ = [
    "allow_in_graph", "assume_constant_result", "config", "disable", "graph_break", "is_compiling",
    "mark_dynamic", "mark_static", "maybe_mark_dynamic", "optimize", "reset",
]  # fmt: skip

config = Switches(
    "_dynamo.config",
    accumulated_cache_size_limit=256,
    assume_static_by_default=True,
    automatic_dynamic_shapes=True,
    cache_size_limit=8,
    capture_dynamic_output_shape_ops=False,
    capture_scalar_outputs=False,
    error_on_recompile=False,
    inline_inbuilt_nn_modules=True,
    optimize_ddp=True,
    recompile_limit=8,
    suppress_errors=False,
    verbose=False,
)


def mark_dynamic(
    t: Any,
    index: Any,
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: Any = None,
) -> None:
    """Accepted without effect: a hint that a size varies. `compile` captures a function once per shape."""


def maybe_mark_dynamic(t: Any, index: Any, *, min: int | None = None, max: int | None = None) -> None:
    """Accepted without effect, as mark_dynamic."""


def mark_static(t: Any, index: Any = None) -> None:
    """Accepted without effect, as mark_dynamic."""


@disable
def graph_break(msg: str = "") -> None:
    """Does nothing outside of a captured function; raises RuntimeError inside of one, because a captured
    function is a single program."""


def optimize(backend: Any = None, **options: Any) -> Any:
    """A decorator: `compile(backend=backend, **options)`."""
    options = {"fullgraph" if name == "nopython" else name: value for name, value in options.items()}
    return compile(backend=backend, **options)


_absent.attach(globals())
