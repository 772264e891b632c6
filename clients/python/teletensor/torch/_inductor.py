"""Inductor, the default backend of torch.compile, has no code for the device "tt".

Inductor asks the module of the device for its classes before it compiles its first graph, which may have
tensors of the CPU alone. These classes refuse a graph when Inductor begins to write code for the device.
Only Inductor's own request imports this module.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.scheduler import BaseScheduling


def _refuse() -> NoReturn:
    raise NotImplementedError("tt: torch.compile's own backend has no code for this device: use "
                              "torch.compile(..., backend=\"teletensor\")")


class Scheduling(BaseScheduling):  # type: ignore[misc]
    def __init__(self, scheduler: Any) -> None:
        _refuse()


class Wrapper(PythonWrapperCodegen):  # type: ignore[misc]
    @staticmethod
    def create(*arguments: Any, **options: Any) -> NoReturn:
        """Is called for a new graph. Raises NotImplementedError."""
        _refuse()


CLASSES = {"Scheduling": Scheduling, "PythonWrapperCodegen": Wrapper, "CppWrapperCodegen": Wrapper}

# Inductor raises KeyError for a device without overrides, before it uses the classes.
register_device_op_overrides("tt", DeviceOpOverrides())
