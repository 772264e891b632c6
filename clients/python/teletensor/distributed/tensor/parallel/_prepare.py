"""Styles that convert the inputs and outputs of a module."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ...device_mesh import DeviceMesh
from .._dtensor import DTensor
from .._placements import Placement
from ._styles import ParallelStyle, as_dtensor

__all__ = ["PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput"]


def _several(layouts: Any) -> tuple[Any, ...] | None:
    return (layouts,) if isinstance(layouts, Placement) else None if layouts is None else tuple(layouts)


def _placed(
    value: Any, mesh: DeviceMesh, now: Placement | None, then: Placement | None, local: bool, what: Any
) -> Any:
    if now is None:
        return value
    found: DTensor = as_dtensor(value, mesh, now, what)
    if then is not None:
        found = found.redistribute(placements=[then])
    return found.to_local() if local else found


def _all_placed(
    values: Sequence[Any],
    mesh: DeviceMesh,
    now: tuple[Any, ...],
    then: tuple[Any, ...],
    local: bool,
    what: Any,
) -> tuple[Any, ...]:
    if len(values) != len(now):
        raise ValueError(
            f"{len(values)} values of {type(what).__name__} have {len(now)} layouts: one for each, or None"
        )
    return tuple(_placed(v, mesh, a, b, local, what) for v, a, b in zip(values, now, then, strict=True))


class PrepareModuleInput(ParallelStyle):
    """Converts the inputs of the module to DTensors with the placements in `input_layouts` (None: the input
    is not converted), and redistributes them to `desired_input_layouts`; for keyword arguments there are
    dicts by name. The module gets DTensors, or Tensors with use_local_output=True. ValueError for lists of
    different lengths."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts, self.desired_input_layouts = (
            _several(input_layouts),
            _several(desired_input_layouts),
        )
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        self.use_local_output = use_local_output
        if len(self.input_layouts or ()) != len(self.desired_input_layouts or ()):
            raise ValueError("input_layouts and desired_input_layouts should have same length!")
        if len(self.input_kwarg_layouts) != len(self.desired_input_kwarg_layouts):
            raise ValueError(
                "input_kwarg_layouts and desired_input_kwarg_layouts should have same length!"
            )

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        module.register_forward_pre_hook(functools.partial(self._before, device_mesh), with_kwargs=True)
        return module

    def _before(
        self, mesh: DeviceMesh, module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.input_layouts is not None:
            assert self.desired_input_layouts is not None
            inputs = _all_placed(
                inputs,
                mesh,
                self.input_layouts,
                self.desired_input_layouts,
                self.use_local_output,
                module,
            )
        named = {
            name: _placed(
                value,
                mesh,
                self.input_kwarg_layouts.get(name),
                self.desired_input_kwarg_layouts.get(name),
                self.use_local_output,
                module,
            )
            for name, value in kwargs.items()
        }
        return inputs, named


class PrepareModuleOutput(ParallelStyle):
    """Redistributes the outputs of the module, whose placements are `output_layouts`, to
    `desired_output_layouts`, as Tensors, or as DTensors with use_local_output=False. ValueError for lists
    of different lengths."""

    def __init__(
        self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True
    ) -> None:
        self.output_layouts, self.desired_output_layouts = (
            _several(output_layouts),
            _several(desired_output_layouts),
        )
        self.use_local_output = use_local_output
        if len(self.output_layouts or ()) != len(self.desired_output_layouts or ()):
            raise ValueError("output_layouts and desired_output_layouts should have same length!")

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        module.register_forward_hook(functools.partial(self._after, device_mesh))
        return module

    def _after(self, mesh: DeviceMesh, module: Any, inputs: Any, outputs: Any) -> Any:
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        assert self.output_layouts is not None and self.desired_output_layouts is not None
        found = _all_placed(
            values, mesh, self.output_layouts, self.desired_output_layouts, self.use_local_output, module
        )
        return found if isinstance(outputs, tuple) else found[0]


class PrepareModuleInputOutput(ParallelStyle):
    """Combines PrepareModuleInput and PrepareModuleOutput."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)
