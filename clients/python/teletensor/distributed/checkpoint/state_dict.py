"""The interface of torch.distributed.checkpoint.state_dict: the state of sharded modules and their
optimizers, as whole tensors or as the parts of this rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ... import _api as tt
from ..._core import Tensor
from ..._files.objects import dtype_name
from ..._names import absent as _absent
from ...autograd import no_grad
from ...nn.module import Module
from ...nn.parallel import DistributedDataParallel
from ...optim import Optimizer
from .. import broadcast, broadcast_object_list
from .._group import found
from ..fsdp._shards import ShardedParameter, alias
from ._optimizer_state import initialise

__all__ = [
    "StateDictOptions", "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict",
    "set_model_state_dict", "set_optimizer_state_dict", "set_state_dict",
]  # fmt: skip


@dataclass
class StateDictOptions:
    """How the functions of this module return and accept states.

    full_state_dict: whole tensors instead of this rank's shards. All ranks must call the function.
    cpu_offload: tensors on the CPU; whole tensors are returned on rank 0 of the world only, and all other
        ranks get an empty dict.
    ignore_frozen_params: leaves out parameters that do not require grad.
    strict: the argument of load_state_dict.
    keep_submodule_prefixes: with `submodules`, whether names begin with the path of the submodule.
    broadcast_from_rank0: rank 0 of the world passes the whole tensors; those of all other ranks are
        ignored. Requires full_state_dict."""

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False


def _checked(options: StateDictOptions | None) -> StateDictOptions:
    options = StateDictOptions() if options is None else options
    if options.broadcast_from_rank0 and not options.full_state_dict:
        raise ValueError("full_state_dict must be True when broadcast_from_rank0 is True.")
    return options


class _Titles:
    """The names of a model's state in a checkpoint: those of state_dict() without the "module." that a
    DistributedDataParallel adds, so that a program with another number of ranks can load it."""

    def __init__(self, model: Module) -> None:
        wrappers = [
            name for name, each in model.named_modules() if isinstance(each, DistributedDataParallel)
        ]
        # The inner wrappers come first.
        self._added = [f"{name}.module." if name else "module." for name in reversed(wrappers)]

    def of(self, name: str) -> str:
        """The title of a name in state_dict() or named_parameters()."""
        for added in self._added:
            if name.startswith(added):
                name = added[: -len("module.")] + name[len(added) :]
        return name

    def names(self, model: Module) -> dict[str, str]:
        """The names in model.state_dict() by their titles."""
        return {self.of(name): name for name in model.state_dict()} if self._added else {}


def _names(model: Module) -> dict[int, list[str]]:
    """The titles of each parameter, by the id of the parameter."""
    titles = _Titles(model)
    found_names: dict[int, list[str]] = {}
    for name, parameter in _parameters(model):
        found_names.setdefault(id(parameter), []).append(titles.of(name))
    return found_names


class _Selection:
    """The part of a model's state that `submodules` selects; everything if that is empty."""

    def __init__(self, model: Module, submodules: Any, options: StateDictOptions) -> None:
        chosen, self._keeps = set(submodules or ()), options.keep_submodule_prefixes
        self._all, titles = not chosen, _Titles(model)
        self._prefixes = [
            titles.of(name + ".") if name else "" for name, each in model.named_modules() if each in chosen
        ]
        if len(self._prefixes) != len(chosen):
            raise ValueError("submodules has a module that is not one of the model's")

    def title(self, name: str) -> str | None:
        """The title to return for one of the whole model; None if it is not selected."""
        if self._all:
            return name
        prefix = next((each for each in self._prefixes if name.startswith(each)), None)
        return None if prefix is None else name if self._keeps else name[len(prefix) :]


def _parameters(model: Module) -> list[tuple[str, Any]]:
    return list(model.named_parameters(remove_duplicate=False))


def _shown(value: Any, options: StateDictOptions, sharded: ShardedParameter | None) -> Any:
    """A tensor in the form that `options` select. `sharded` is the parameter that is divided in the same
    way."""
    if not isinstance(value, Tensor):
        return value
    if sharded is not None and options.full_state_dict:
        value = sharded.sharding.gather_full(value)
    placed = value.cpu() if options.cpu_offload else value
    if sharded is None or options.full_state_dict or isinstance(placed, ShardedParameter):
        return placed
    return alias(placed, sharded, sharded.name)


def _is_told(options: StateDictOptions) -> bool:
    return not (options.full_state_dict and options.cpu_offload) or found(None).rank() == 0


def get_model_state_dict(
    model: Module, *, submodules: Iterable[Module] | None = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Returns model.state_dict(), with shards or, with options.full_state_dict, with whole tensors. The
    names have no "module." of a DistributedDataParallel. submodules: the modules of the model whose state
    is returned, by default all; ValueError for other modules."""
    options = _checked(options)
    titles, selection = _Titles(model), _Selection(model, submodules, options)
    frozen = {name for name, p in _parameters(model) if not p.requires_grad}
    state: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        title = selection.title(titles.of(name))
        if title is None or (options.ignore_frozen_params and name in frozen):
            continue
        state[title] = _shown(value, options, value if isinstance(value, ShardedParameter) else None)
    return state if _is_told(options) else {}


def set_model_state_dict(
    model: Module, model_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None
) -> Any:
    """Calls model.load_state_dict() with the result of get_model_state_dict with the same options. Returns
    the missing and the unexpected keys. Raises the errors of load_state_dict before anything is changed."""
    options = _checked(options)
    names = _Titles(model).names(model)

    def named(state: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(title, title): value for title, value in state.items()}

    if not options.full_state_dict:
        return model.load_state_dict(named(model_state_dict), strict=options.strict)
    state = named(model_state_dict)
    own = model.state_dict()
    if options.broadcast_from_rank0:
        state = _from_rank0(state, {k: v.device for k, v in own.items() if isinstance(v, Tensor)})
    parts = {}
    for name, value in state.items():
        target = own.get(name)
        if isinstance(target, ShardedParameter) and isinstance(value, Tensor):
            value = _part(name, value, target)
        parts[name] = value
    return model.load_state_dict(parts, strict=options.strict)


def _part(name: str, value: Tensor, parameter: ShardedParameter) -> Tensor:
    """This rank's part of a whole tensor."""
    if tuple(value.shape) != parameter.sharding.full_shape:
        raise RuntimeError(
            f"size mismatch for {name}: a whole tensor of {parameter.sharding.full_shape} is expected for "
            f"full_state_dict, not one of {tuple(value.shape)}"
        )
    return parameter.sharding.full_part(value)


def _from_rank0(state: dict[str, Any], devices: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of rank 0 on all ranks, on these devices."""
    names: list[Any] = [list(state)]
    broadcast_object_list(names, 0)
    result: dict[str, Any] = {}
    for name in names[0]:
        mine = state.get(name)
        kinds: list[Any] = [_kind(mine)]
        broadcast_object_list(kinds, 0)
        if kinds[0][0] != "tensor":
            result[name] = kinds[0][1]
            continue
        result[name] = _sent(mine, kinds[0], devices.get(name, "cpu"))
    return result


def _kind(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return ["tensor", list(value.shape), dtype_name(value.dtype)]
    return ["value", value]


def _sent(mine: Any, kind: list[Any], device: Any) -> Tensor:
    if found(None).rank() == 0:
        made: Tensor = mine.detach().to(device).contiguous()
    else:
        made = tt.empty(tuple(kind[1]), dtype=getattr(tt, kind[2]), device=device)
    broadcast(made, 0)
    return made


# ---------------------------------------------------------------- optimizers


def _optimizers(optimizers: Any) -> list[Optimizer]:
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)


def get_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: Iterable[Module] | None = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:
    """Returns the state of optimizers of the model's parameters, with the names of the parameters in place
    of numbers. An optimizer that has made no step is initialised first, by a step with a learning rate and
    gradients of zero, so that a checkpoint can be loaded into the result. submodules: as in
    get_model_state_dict. ValueError for an optimizer of other parameters. NotImplementedError for
    full_state_dict if a state has neither the shape of its parameter nor a single element."""
    options = _checked(options)
    names, selection = _names(model), _Selection(model, submodules, options)
    whole: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer in _optimizers(optimizers):
        initialise(optimizer)
        for group in optimizer.param_groups:
            selected = [
                (title, each)
                for each in group["params"]
                if (title := selection.title(_title(names, each))) is not None
            ]
            if not selected:
                continue
            rest = {
                key: value for key, value in group.items() if key not in ("params", "param_names")
            }
            whole["param_groups"].append({**rest, "params": [title for title, _ in selected]})
            for title, parameter in selected:
                if parameter in optimizer.state:
                    state = optimizer.state[parameter]
                    whole["state"][title] = {
                        key: _shown(value, options, _of(parameter, title, key, value, options))
                        for key, value in state.items()
                    }
    return whole if _is_told(options) else {}


def _title(names: dict[int, list[str]], parameter: Any) -> str:
    if id(parameter) not in names:
        raise ValueError(
            "the optimizer has a parameter that is not the model's: make it after fully_shard"
        )
    return names[id(parameter)][0]


def _of(parameter: Any, title: str, key: str, value: Any, options: StateDictOptions) -> Any:
    """The sharded parameter if its state `value` is divided in the same way; None if it is not."""
    if not isinstance(parameter, ShardedParameter) or not isinstance(value, Tensor):
        return None
    if value.shape == parameter.shape:
        return parameter
    if value.numel() != 1 and options.full_state_dict:
        raise NotImplementedError(
            f"full_state_dict: {key} of {title} has {tuple(value.shape)}, not the shape of its parameter's "
            f"shard, {tuple(parameter.shape)}"
        )
    return None


def set_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    optim_state_dict: Mapping[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Restores the result of get_optimizer_state_dict with the same options, for optimizers of the same
    parameters in the same groups. ValueError if a group or a parameter is missing."""
    options = _checked(options)
    names = _names(model)
    given = dict(optim_state_dict)
    if options.broadcast_from_rank0:
        given = _optimizer_from_rank0(given)
    groups = {tuple(sorted(group["params"])): group for group in given.get("param_groups", [])}
    loaded = []
    for optimizer in _optimizers(optimizers):
        state: dict[str, Any] = {"state": {}, "param_groups": []}
        number = 0
        for group in optimizer.param_groups:
            titles = [_title(names, each) for each in group["params"]]
            saved = groups.get(tuple(sorted(titles)))
            if saved is None:
                raise ValueError(
                    f"optim_state_dict has no group of the parameters {', '.join(titles[:8])}"
                )
            numbers = list(range(number, number + len(titles)))
            number += len(titles)
            state["param_groups"].append({**saved, "params": numbers})
            for i, title, parameter in zip(numbers, titles, group["params"], strict=True):
                if title in given["state"]:
                    state["state"][i] = {
                        key: _taken(f"{key} of {title}", value, parameter, options)
                        for key, value in given["state"][title].items()
                    }
        loaded.append((optimizer, state))
    for optimizer, state in loaded:
        optimizer.load_state_dict(state)


def _taken(name: str, value: Any, parameter: Any, options: StateDictOptions) -> Any:
    if not options.full_state_dict or not isinstance(value, Tensor):
        return value
    if isinstance(parameter, ShardedParameter) and (value.dim() or value.numel() != 1):
        return _part(name, value, parameter).to(parameter.device)
    return value


def _optimizer_from_rank0(given: dict[str, Any]) -> dict[str, Any]:
    groups: list[Any] = [given.get("param_groups", [])]
    broadcast_object_list(groups, 0)
    flat = {
        f"{title}\0{key}": v
        for title, each in given.get("state", {}).items()
        for key, v in each.items()
    }
    state: dict[str, Any] = {}
    for name, value in _from_rank0(flat, {}).items():
        title, _, key = name.partition("\0")
        state.setdefault(title, {})[key] = value
    return {"state": state, "param_groups": groups[0]}


def get_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: Iterable[Module] | None = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (get_model_state_dict(), get_optimizer_state_dict())."""
    chosen = None if submodules is None else list(submodules)
    model_state = get_model_state_dict(model, submodules=chosen, options=options)
    optimizer_state = get_optimizer_state_dict(model, optimizers, submodules=chosen, options=options)
    return model_state, optimizer_state


def set_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: Mapping[str, Any],
    optim_state_dict: Mapping[str, Any],
    options: StateDictOptions | None = None,
) -> Any:
    """Calls set_optimizer_state_dict and then set_model_state_dict, whose result it returns."""
    with no_grad():
        set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
        return set_model_state_dict(model, model_state_dict, options=options)


_absent.attach(globals())
