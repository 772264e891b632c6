"""Parameters that are computed from other parameters at each use: register_parametrization inserts modules
between a parameter and its name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ... import _api as tt
from ..._sessions.scopes import Restoring
from ..._tensors.tensor import Tensor
from .._layers.containers import ModuleDict, ModuleList
from ..module import Module
from ..parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

_cache: dict[tuple[int, str], Tensor] = {}
_caching = 0


def cached() -> Restoring:
    """Context in which every parametrized tensor is computed only once."""
    def put(depth: int) -> None:
        global _caching
        _caching = depth
        if not depth:
            _cache.clear()

    return Restoring(lambda: _caching, lambda: put(_caching + 1), put)


class ParametrizationList(ModuleList):
    """The modules that compute the value of a parametrized attribute from its original tensors (`original`,
    or `original0`, `original1`, ... if the first module takes several)."""

    def __init__(
        self, modules: Sequence[Module], original: Tensor | Parameter, unsafe: bool = False
    ) -> None:
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = tuple(original.shape), original.dtype
        with tt.no_grad():
            new: Any = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with contextlib.suppress(NotImplementedError):
                        new = module.right_inverse(new)
        self.is_tensor = isinstance(new, Tensor)
        if self.is_tensor:
            if new is not original:
                with tt.no_grad():
                    original.data = new.detach().clone()
            self._register("original", original)
        else:
            if not isinstance(new, Sequence):
                raise ValueError(
                    "'right_inverse' must return a Tensor or a Sequence of tensors (list, "
                    f"tuple...). Got {type(new).__name__}"
                )
            self.ntensors = len(new)
            for i, each in enumerate(new):
                if not isinstance(each, Tensor):
                    raise ValueError("'right_inverse' must return a Tensor or a Sequence of tensors. "
                                     f"Got element {i} of the sequence of {type(each).__name__}")
                if isinstance(original, Parameter):
                    each = Parameter(each.detach().clone(), original.requires_grad)
                self._register(f"original{i}", each)
        if not unsafe:
            result = self()
            if not isinstance(result, Tensor) or result.dtype != dtype:
                raise ValueError(
                    "Registering a parametrization may not change the dtype of the tensor, unless "
                    "the `unsafe` flag is enabled."
                )
            if tuple(result.shape) != shape:
                raise ValueError(
                    "Registering a parametrization may not change the shape of the tensor, unless "
                    f"the `unsafe` flag is enabled: {shape} and {tuple(result.shape)}"
                )

    def _register(self, name: str, tensor: Tensor) -> None:
        if isinstance(tensor, Parameter):
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)

    def originals(self) -> list[Tensor]:
        """The tensors from which the value is computed."""
        if self.is_tensor:
            return [self.__dict__["original"]]
        return [self.__dict__[f"original{i}"] for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Changes the originals so that the attribute becomes `value`. RuntimeError if one of the modules
        has no right_inverse."""
        with tt.no_grad():
            new: Any = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                new = module.right_inverse(new)
            for original, each in zip(
                self.originals(), [new] if self.is_tensor else new, strict=True
            ):
                original.copy_(each)

    def forward(self) -> Tensor:
        modules = list(self)
        x: Tensor = modules[0](*self.originals())
        for module in modules[1:]:
            x = module(x)
        return x


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Returns whether the module has a parametrized tensor (with that name, if one is given)."""
    lists = module.__dict__.get("parametrizations")
    if not isinstance(lists, ModuleDict):
        return False
    return len(lists) > 0 if tensor_name is None else tensor_name in lists


def _attribute(name: str) -> property:
    def get(self: Module) -> Tensor:
        parametrization: Module = self.__dict__["parametrizations"][name]
        if not _caching:
            computed: Tensor = parametrization()
            return computed
        key = (id(self), name)
        if key not in _cache:
            _cache[key] = parametrization()
        return _cache[key]

    def put(self: Module, value: Tensor) -> None:
        self.__dict__["parametrizations"][name].right_inverse(value)

    return property(get, put)


def _check_further(parametrization: Module, before: ParametrizationList) -> None:
    """ValueError unless forward and right_inverse of a further parametrization keep the shape and the
    dtype."""
    with tt.no_grad():
        value = before()
        found = [("a parametrization", parametrization(value))]
        if hasattr(parametrization, "right_inverse"):
            with contextlib.suppress(NotImplementedError):
                found.append(("right_inverse", parametrization.right_inverse(found[0][1])))
    for what, each in found:
        if not isinstance(each, Tensor):
            raise ValueError(f"{what} must return a tensor, not {type(each).__name__}")
        if each.shape != value.shape or each.dtype != value.dtype:
            raise ValueError(f"Registering a parametrization may not change shape or dtype, unless the "
                             f"`unsafe` flag is enabled: {what} makes {list(each.shape)} {each.dtype} of "
                             f"{list(value.shape)} {value.dtype}")


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Makes `module.tensor_name` the result of parametrization(original); several parametrizations are
    applied one after the other. The original is "parametrizations.<name>.original" in state_dict(). A
    right_inverse of the parametrization computes the original from the initial value and from assigned
    values. ValueError if the module has no tensor of this name, or (unless `unsafe`) if the shape or dtype
    would change."""
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        before = module.__dict__["parametrizations"][tensor_name]
        if not unsafe:
            _check_further(parametrization, before)
        before.append(parametrization)
        return module
    if tensor_name not in module._parameter_names and tensor_name not in module._buffer_names:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    original = module.__dict__[tensor_name]
    built = ParametrizationList([parametrization], original, unsafe=unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        kind = type(module)
        made = type(f"Parametrized{kind.__name__}", (kind,), {"__doc__": kind.__doc__})
        object.__setattr__(module, "__class__", made)
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _attribute(tensor_name))
    module.__dict__["parametrizations"][tensor_name] = built
    return module


def type_before_parametrizations(module: Module) -> type[Module]:
    """The class of the module before its first parametrization."""
    return type(module).__mro__[1] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Makes to_module share parametrizations of from_module and their originals: all of them, or those of
    one tensor. Returns to_module, which stays unchanged if from_module has none; KeyError for a tensor that
    is not parametrized."""
    if not is_parametrized(from_module):
        return to_module
    lists = from_module.__dict__["parametrizations"]
    for name in list(lists) if tensor_name is None else [tensor_name]:
        source: ParametrizationList = lists[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach()))
        for parametrization in source:
            register_parametrization(to_module, name, parametrization)
        target = to_module.__dict__["parametrizations"][name]
        names = ["original"] if source.is_tensor else [
            f"original{i}" for i in range(source.ntensors)]
        for each, original in zip(names, source.originals(), strict=True):
            setattr(target, each, original)
    return to_module


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Makes the tensor an ordinary one again, with its present value or with the value of the original."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    lists = module.__dict__["parametrizations"]
    built: ParametrizationList = lists[tensor_name]
    tensor = built.originals()[0]
    if leave_parametrized:
        with tt.no_grad():
            value = built()
        if built.is_tensor:
            tensor.data = value.clone()
        else:
            tensor = (
                Parameter(value, tensor.requires_grad) if isinstance(tensor, Parameter) else value
            )
    elif not built.is_tensor:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del lists[tensor_name]
    if isinstance(tensor, Parameter):
        module.register_parameter(tensor_name, tensor)
    else:
        module.register_buffer(tensor_name, tensor)
    if len(lists) == 0:
        delattr(module, "parametrizations")
        object.__setattr__(module, "__class__", type(module).__mro__[1])
    return module
