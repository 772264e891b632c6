"""PyTorch's device "tt": unmodified PyTorch programs that compute on a teletensor daemon.

    import torch
    import teletensor.torch

    model = torch.nn.Linear(4, 2).to("tt")
    loss = model(torch.randn(8, 4, device="tt")).square().mean()
    loss.backward()

Modules, autograd and optimizers are PyTorch's own; tensors lie on the daemon, and each operator is one
or more of its instructions. An operator that the device does not have runs on the CPU of this process, with
one warning for each name: `fallbacks` lists them, and `strict` makes them errors.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any as _Any

import torch as _torch

from .. import _core
from .._sessions.errors import OutOfMemoryError
from . import _build, _capture, _device, _printing, _trace

__all__ = ["capture", "fallbacks", "strict", "synchronize"]

capture = _capture.capture
synchronize = _device.synchronize
_bridge: _Any = None  # the extension


def _begin() -> None:
    name = _torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise ImportError(f"this process has the PyTorch backend {name!r} already: PyTorch has room for "
                          "one backend of this kind, and 'tt' is such a backend")
    global _bridge
    _bridge = _trace.bridge = _build.load(_torch)
    _core.pass_over(str(Path(_torch.__file__).parent))
    _torch.utils.rename_privateuse1_backend("tt")
    _bridge.begin(_core.torch_bridge(), OutOfMemoryError)
    _device.default_generator = _bridge.default_generator()
    _torch._register_device_module("tt", _device)
    _torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # A backward runs in the thread that calls it: its commands have the line of that call.
    _torch.autograd.set_multithreading_enabled(False)
    _printing.install(_torch)
    if _torch.distributed.is_available():
        importlib.import_module("..integrations.torch_backend", __name__)  # registers it


_begin()


def fallbacks(clear: bool = False) -> dict[str, int]:
    """The operators that have run on the CPU of this process, and how often. `clear` resets the counts."""
    found: dict[str, int] = _bridge.fallbacks(clear)
    return found


@contextlib.contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """In the block an operator that the device does not have raises NotImplementedError."""
    before = _bridge.set_strict(on)
    try:
        yield
    finally:
        _bridge.set_strict(before)
