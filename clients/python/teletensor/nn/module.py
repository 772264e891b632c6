"""Module: the base class of networks and their layers.

Parameters, buffers and submodules are ordinary instance attributes; in addition a module keeps the *names*
of each kind in order of registration. Therefore reading `self.weight` in forward costs no more than reading
any attribute.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, overload

from .. import _api as tt, _core
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from ._hooks import Hooks, RemovableHandle, every
from ._private_names import PrivateNames
from ._state import IncompatibleKeys, StateHooks, load_own, load_state, save_own, save_state
from .parameter import Buffer, Parameter, UninitializedTensorMixin

__all__ = ["Module"]

T = TypeVar("T", bound="Module")
_BUFFERS = (Tensor, SparseTensor)


class _Registered(MutableMapping[str, Any]):
    """The parameters (or buffers, or submodules) of a module as a mapping. It is created at each use, so
    that no reference cycle keeps the memory of a model alive."""

    def __init__(self, attributes: dict[str, Any], names: dict[str, Any]) -> None:
        self._attributes = attributes
        self._names = names

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._attributes[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._names.setdefault(name, True)
        self._attributes[name] = value

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        del self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


class Module(PrivateNames):
    """Base class of all neural networks: it registers parameters, buffers and submodules that are assigned
    to it.

    Subclasses call `super().__init__()` first, assign layers and Parameters as attributes, and
    define `forward`. Calling the module calls `forward`.

    >>> class Net(tt.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden = tt.nn.Linear(1, 10)
    ...     def forward(self, x):
    ...         return self.hidden(x).sigmoid()
    >>> Net()
    Net(
      (hidden): Linear(in_features=1, out_features=10, bias=True)
    )
    """

    training: bool
    _version: int = 1  # of the layout of the state, which state_dict() writes into its metadata
    _state_hooks: StateHooks | None = None
    _hooks: Hooks | None = None
    _parameter_names: dict[str, Any]
    _buffer_names: dict[str, bool]  # name -> whether the buffer is part of state_dict
    _module_names: dict[str, Any]

    def __init__(self) -> None:
        self.__dict__.update(
            training=True, _parameter_names={}, _buffer_names={}, _module_names={}
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's result; every subclass defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._hooks and not every.ids:
            return self.forward(*args, **kwargs)
        return (self._hooks or Hooks()).call(self, args, kwargs)

    _call_impl = __call__

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls._call_impl is not Module._call_impl and cls.__call__ is Module.__call__:
            cls.__call__ = _through_call_impl  # type: ignore[method-assign]

    # ---- registration

    @property
    def _parameters(self) -> MutableMapping[str, Any]:
        return _Registered(self.__dict__, self._parameter_names)

    @property
    def _buffers(self) -> MutableMapping[str, Any]:
        return _Registered(self.__dict__, self._buffer_names)

    @property
    def _modules(self) -> MutableMapping[str, Any]:
        return _Registered(self.__dict__, self._module_names)

    def _check_new_name(self, kind: str, name: str, known: Mapping[str, Any]) -> None:
        if "_module_names" not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if hasattr(self, name) and name not in known:
            raise KeyError(f"attribute '{name}' already exists")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter as attribute `name`; None reserves the name (which `parameters()` and
        `state_dict()` then leave out).

        TypeError if `param` is not a Parameter, ValueError if it is not a leaf, KeyError if the name is in
        use, empty or contains a dot.
        """
        if isinstance(param, Tensor) and not isinstance(param, Parameter) or not (
            param is None or isinstance(param, Parameter)
        ):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' "
                f"(teletensor.nn.Parameter or None required){_conversion(param)}"
            )
        self._check_new_name("parameter", name, self.__dict__.get("_parameter_names", {}))
        if param is not None and not param.is_leaf:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be "
                "created explicitly; to express it as a function of another Tensor, compute the "
                "value in the forward() method."
            )
        self._parameter_names[name] = True
        self.__dict__[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is part of the state but not a parameter: it moves with `to` and has no
        gradient. With persistent=False it is left out of `state_dict()`.

        TypeError if it is neither a Tensor nor None, KeyError for an invalid name.
        """
        self._check_new_name("buffer", name, self.__dict__.get("_buffer_names", {}))
        if tensor is not None and not isinstance(tensor, _BUFFERS):
            raise TypeError(
                f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' "
                f"(teletensor.Tensor or None required){_conversion(tensor)}"
            )
        self._buffer_names[name] = persistent
        self.__dict__[name] = tensor

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a submodule as attribute `name`. TypeError if it is neither a Module nor None, KeyError for
        an invalid name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_new_name("module", name, self.__dict__.get("_module_names", {}))
        self._module_names[name] = True
        self.__dict__[name] = module

    register_module = add_module

    def _forget(self, name: str, *kinds: str) -> None:
        for kind in kinds:
            if name in self.__dict__.get(kind, ()):
                del self.__dict__[kind][name]
                del self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if isinstance(value, Parameter):
            self._forget(name, "_buffer_names", "_module_names")
            if name not in own.get("_parameter_names", ()):
                own.pop(name, None)
            self.register_parameter(name, value)
        elif name in own.get("_parameter_names", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as parameter '{name}' "
                    f"(teletensor.nn.Parameter or None expected){_conversion(value)}"
                )
            own[name] = None
        elif isinstance(value, Buffer):
            self._forget(name, "_module_names")
            if name not in own.get("_buffer_names", ()):
                own.pop(name, None)
            self.register_buffer(name, value, value.persistent)
        elif isinstance(value, Module):
            self._forget(name, "_buffer_names")
            if "_module_names" not in own:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._module_names[name] = True
            own[name] = value
        elif name in own.get("_module_names", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as child module '{name}' "
                    "(teletensor.nn.Module or None expected)"
                )
            own[name] = None
        elif name in own.get("_buffer_names", ()):
            if value is not None and not isinstance(value, _BUFFERS):
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as buffer '{name}' "
                    f"(teletensor.Tensor or None expected){_conversion(value)}"
                )
            own[name] = value
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        for kind in ("_parameter_names", "_buffer_names", "_module_names"):
            self.__dict__.get(kind, {}).pop(name, None)
        super().__delattr__(name)

    # ---- listing

    def _named_members(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else iter([(prefix, self)])
        )
        for module_prefix, module in modules:
            own = module.__dict__
            for name in own[kind]:
                value = own[name]
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield (f"{module_prefix}.{name}" if module_prefix else name), value

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and, with `recurse`, of all modules below it, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Pairs of dotted name and parameter, in order of registration."""
        return self._named_members("_parameter_names", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, of all modules below it, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Pairs of dotted name and buffer, in order of registration."""
        return self._named_members("_buffer_names", prefix, recurse, remove_duplicate)

    def children(self) -> Iterator[Module]:
        """The direct submodules, each once."""
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Pairs of name and direct submodule, each module once."""
        seen: set[int] = set()
        for name in self._module_names:
            module = self.__dict__[name]
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all modules below it, each once, parents first."""
        for _, module in self.named_modules():
            yield module

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Pairs of dotted name and module; the first is this module ("" or `prefix`). `memo` contains the
        ids of modules to leave out."""
        if memo is None:
            memo = set()
        if id(self) in memo:
            return
        if remove_duplicate:
            memo.add(id(self))
        yield prefix, self
        for name in self._module_names:
            module = self.__dict__[name]
            if module is not None:
                below = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, below, remove_duplicate)

    def get_submodule(self, target: str) -> Module:
        """The module with the dotted name `target` ("" is this module); AttributeError if there is none."""
        module: Any = self
        for name in target.split(".") if target else ():
            if name not in module._module_names or module.__dict__[name] is None:
                raise AttributeError(f"{type(module).__name__} has no submodule `{name}`")
            module = module.__dict__[name]
        return module  # type: ignore[no-any-return]

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with the dotted name `target`; AttributeError if there is none."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        value = module.__dict__[name] if name in module._parameter_names else None
        if not isinstance(value, Parameter):
            raise AttributeError(f"{type(module).__name__} has no parameter `{name}`")
        return value

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with the dotted name `target`; AttributeError if there is none."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        value = module.__dict__[name] if name in module._buffer_names else None
        if not isinstance(value, _BUFFERS):
            raise AttributeError(f"{type(module).__name__} has no buffer `{name}`")
        return value  # type: ignore[return-value]

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replaces the module with the dotted name `target`; unless `strict`, there need not be one yet.
        AttributeError if its parent does not exist, ValueError for an empty name."""
        path, _, name = target.rpartition(".")
        if not name:
            raise ValueError("Cannot set the submodule without a target name!")
        parent = self.get_submodule(path)
        if strict and name not in parent._module_names:
            raise AttributeError(f"{type(parent).__name__} has no submodule `{name}`")
        if not isinstance(module, Module):
            raise ValueError(f"`{type(module).__name__}` is not a Module")
        setattr(parent, name, module)

    # ---- operations on all parameters

    def train(self: T, mode: bool = True) -> T:
        """Sets training mode (in which, for example, dropout is active) on this module and all modules
        below it."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: T) -> T:
        """Sets evaluation mode on this module and all modules below it, as train(False)."""
        return self.train(False)

    def requires_grad_(self: T, requires_grad: bool = True) -> T:
        """Sets requires_grad of every parameter."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients of all parameters, or fills them with zeros."""
        for parameter in self.parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                if gradient.requires_grad:
                    parameter.grad = gradient = gradient.detach()
                gradient.zero_()

    def apply(self: T, fn: Callable[[Module], None]) -> T:
        """Calls `fn` on every submodule, and then on this module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def _apply(self: T, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> T:
        for module in self.children() if recurse else ():
            module._apply(fn)
        own = self.__dict__
        with tt.no_grad():
            for name in self._parameter_names:
                parameter = own[name]
                if parameter is None:
                    continue
                changed = fn(parameter)
                if changed is parameter:
                    continue
                gradient = parameter.grad
                if changed.is_meta != parameter.is_meta:
                    own[name] = parameter = _replaced(parameter, changed)
                else:
                    _stays(parameter, changed)
                    parameter.grad = None
                    parameter.data = changed
                if gradient is not None:
                    parameter.grad = fn(gradient).requires_grad_(gradient.requires_grad)
            for name in self._buffer_names:
                if own[name] is not None:
                    changed = fn(own[name])
                    _stays(own[name], changed)
                    own[name] = _replaced(own[name], changed)
        return self

    @overload
    def to(self: T, device: Any = ..., dtype: Any = ..., non_blocking: bool = ...) -> T: ...
    @overload
    def to(self: T, dtype: Any, non_blocking: bool = ...) -> T: ...
    @overload
    def to(self: T, tensor: Tensor, non_blocking: bool = ...) -> T: ...
    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """Moves parameters and buffers to a device and casts the floating-point ones to a dtype. Call it as
        `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)` or `to(memory_format=...)` (for tensors
        of 4 and 5 dims); it changes the module in place and returns it. TypeError for a dtype that is
        neither floating-point nor complex."""
        format = kwargs.pop("memory_format", None)
        device, dtype = _parse_to(args, kwargs)

        def convert(tensor: Tensor) -> Tensor:
            if tensor.is_meta and device is not None and tt.device(device).type != "meta":
                name = f"{_core.text_prefix()}.nn.Module"
                raise NotImplementedError(
                    f"Cannot copy out of meta tensor; no data! Please use {name}.to_empty() instead of "
                    f"{name}.to() when moving module from meta to a different device."
                )
            if dtype is not None and (tensor.is_floating_point() or tensor.dtype.is_complex):
                tensor = tensor.to(device=device, dtype=dtype) if device else tensor.to(dtype)
            elif device is not None:
                tensor = tensor.to(device)
            return tensor.to(memory_format=format) if tensor.dim() in (4, 5) else tensor

        return self._apply(convert)

    def share_memory(self: T) -> T:
        """Returns the module itself: the memory of its tensors belongs to the daemon (`teletensor.publish`
        shares it)."""
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Makes calls of the module run as captured programs, as `teletensor.compile` does with these
        options. Copies of the module are not compiled."""
        from ..jit import compile

        self._own_hooks().compiled = compile(self, *args, **kwargs)

    def to_empty(self: T, *, device: Any, recurse: bool = True) -> T:
        """Moves the module to a device without copying its values, which are unset afterwards. Parameters
        that move from or to the device meta are replaced by new ones."""
        return self._apply(lambda tensor: tt.empty_like(tensor, device=device), recurse)

    def cpu(self: T) -> T:
        """Moves the module to the daemon's CPU."""
        return self.to(device="cpu")

    def cuda(self: T, device: Any = None) -> T:
        """Moves the module to a GPU of the daemon, given by index or name."""
        if device is None:
            device = "cuda"
        return self.to(device=f"cuda:{device}" if isinstance(device, int) else device)

    def type(self: T, dst_type: Any) -> T:
        """Casts all parameters and buffers to a dtype."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def float(self: T) -> T:
        """Casts floating-point parameters and buffers to float32."""
        return self.to(dtype=tt.float32)

    def double(self: T) -> T:
        """Casts floating-point parameters and buffers to float64."""
        return self.to(dtype=tt.float64)

    def half(self: T) -> T:
        """Casts floating-point parameters and buffers to float16."""
        return self.to(dtype=tt.float16)

    def bfloat16(self: T) -> T:
        """Casts floating-point parameters and buffers to bfloat16."""
        return self.to(dtype=tt.bfloat16)

    # ---- hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, args)` before forward; a result that is not None replaces the arguments. With
        with_kwargs it calls `hook(module, args, kwargs)`, which returns (args, kwargs)."""
        hooks = self._own_hooks()
        return hooks.add(hooks.before, hook, prepend=prepend, with_kwargs=with_kwargs)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Calls `hook(module, args, result)` after forward; a result that is not None replaces the module's
        result. With with_kwargs it calls `hook(module, args, kwargs, result)`. With always_call the hook is
        also called, with None as result, if forward raised."""
        hooks = self._own_hooks()
        options = {"prepend": prepend, "with_kwargs": with_kwargs, "always_call": always_call}
        return hooks.add(hooks.after, hook, **options)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, grad_input, grad_output)` when the gradients of the module's positional
        tensor arguments are known; a result that is not None replaces grad_input."""
        hooks = self._own_hooks()
        return hooks.add(hooks.backward_after, hook, prepend=prepend)

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, grad_output)` when the gradients of the module's outputs are known, before
        its backward; a result that is not None replaces grad_output."""
        hooks = self._own_hooks()
        return hooks.add(hooks.backward_before, hook, prepend=prepend)

    def _own_hooks(self) -> Hooks:
        if self._hooks is None:
            self.__dict__["_hooks"] = Hooks()
        hooks = self._hooks
        assert hooks is not None
        return hooks

    # ---- state

    def _own_state_hooks(self) -> StateHooks:
        if self._state_hooks is None:
            self.__dict__["_state_hooks"] = StateHooks()
        hooks = self._state_hooks
        assert hooks is not None
        return hooks

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(module, prefix, keep_vars) before state_dict() collects the state of this module."""
        hooks = self._own_state_hooks()
        return hooks.add(hooks.save_before, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(module, state_dict, prefix, local_metadata) after state_dict() has collected the
        state; it may change the dictionary in place."""
        hooks = self._own_state_hooks()
        return hooks.add(hooks.save_after, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
        error_msgs) before load_state_dict; it may change the dictionary, which is a copy."""
        hooks = self._own_state_hooks()
        return hooks.add(hooks.load_before, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(module, incompatible_keys) after load_state_dict."""
        hooks = self._own_state_hooks()
        return hooks.add(hooks.load_after, hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """As register_state_dict_post_hook, but a result that is not None replaces the dictionary."""
        hooks = self._own_state_hooks()
        return hooks.add(hooks.save_after, hook, special=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        """As register_load_state_dict_pre_hook; the hook receives the module only if with_module."""
        hooks = self._own_state_hooks()
        return hooks.add(hooks.load_before, hook, special=not with_module)

    def get_extra_state(self) -> Any:
        """Returns state to be stored by state_dict() in addition to tensors. A subclass that defines this
        also defines set_extra_state."""
        raise RuntimeError("get_extra_state() is not defined by this module")

    def set_extra_state(self, state: Any) -> None:
        """Restores a result of get_extra_state()."""
        raise RuntimeError("set_extra_state() is not defined by this module")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Adds the state of this module without those below it; state_dict() calls it for each module."""
        save_own(self, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads the state of this module without those below it; load_state_dict() calls it for each
        module with a dictionary that it may change. `local_metadata` has the module's `_version` when the
        state was saved, if that is known."""
        load_own(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                 error_msgs)

    def state_dict(
        self,
        *args: Any,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name. They share memory with those of the module
        (clone them to keep a copy); without keep_vars they are detached. The result is an OrderedDict whose
        `_metadata` has the `_version` of each module."""
        for name, value in zip(("destination", "prefix", "keep_vars"), args, strict=False):
            if name == "destination":
                destination = value if destination is None else destination
            elif name == "prefix":
                prefix = prefix or value
            else:
                keep_vars = keep_vars or value
        state: dict[str, Any] = save_state(self, destination, prefix, keep_vars)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copies the values of a state_dict into this module's parameters and buffers.

        With `assign` the given tensors themselves become the parameters. RuntimeError names every missing
        and unexpected key (only if `strict`) and every shape that differs; the other tensors have been
        copied. Returns the missing and unexpected keys.
        """
        return load_state(self, state_dict, strict, assign)

    # ---- text

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """The layer's own part of its repr, for example "p=0.5"."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        head = extra.split("\n") if extra else []
        below = [
            f"({name}): {_indent(repr(self.__dict__[name]), 2)}" for name in self._module_names
        ]
        text = self._get_name() + "("
        if len(head) == 1 and not below:
            text += head[0]
        elif head or below:
            text += "\n  " + "\n  ".join(itertools.chain(head, below)) + "\n"
        return text + ")"


def _replaced(tensor: Tensor, changed: Tensor) -> Tensor:
    """The parameter or buffer that takes the place of `tensor`, with the contents of `changed`."""
    if isinstance(tensor, UninitializedTensorMixin) and changed is not tensor:
        return type(tensor)(tensor.requires_grad, changed.device, changed.dtype)
    return Parameter(changed, tensor.requires_grad) if isinstance(tensor, Parameter) else changed


def _stays(tensor: Tensor, changed: Tensor) -> None:
    """Raises RuntimeError for a tensor of another session, because a module stays in its session unless it
    moves from or to the device meta."""
    if changed._session is not tensor._session and changed.is_meta == tensor.is_meta:
        raise RuntimeError(
            "a module cannot move to another session: for a copy on another rank of a mesh use "
            "mesh[i].copy(module)"
        )


def _conversion(value: Any) -> str:
    """Returns the end of an error's text, which says how to convert a tensor of PyTorch or an array of
    NumPy; "" for other values."""
    told = _core.described(value)
    return f": it is a {told}" if ";" in told else ""


def _through_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a module whose class overrides `_call_impl`."""
    return self._call_impl(*args, **kwargs)


def _indent(text: str, spaces: int) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " * spaces + line for line in rest)])


def _parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    tensor = kwargs.get("tensor")
    for unknown in kwargs.keys() - {"device", "dtype", "tensor", "non_blocking"}:
        raise TypeError(f"to: unexpected argument '{unknown}'")
    for argument in args:
        if isinstance(argument, bool) or argument is None:
            continue  # non_blocking, or the device argument of to(None, dtype)
        if isinstance(argument, Tensor):
            tensor = argument
        elif isinstance(argument, tt.dtype):
            dtype = argument
        else:
            device = f"cuda:{argument}" if isinstance(argument, int) else argument
    if tensor is not None:
        device, dtype = tensor.device, tensor.dtype
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"to: only floating-point and complex dtypes are accepted, but got dtype={dtype}")
    return device, dtype
