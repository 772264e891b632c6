"""DataParallel on one GPU, and the functions from which PyTorch's DataParallel is made, for the devices of
a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _api as tt, cuda
from .._calls.tree import map_tree
from .._core import Tensor
from .module import Module

__all__ = ["DataParallel", "data_parallel", "gather", "parallel_apply", "replicate", "scatter"]


def _place(what: str, device_ids: Sequence[Any] | None, output_device: Any = None) -> Any:
    """Returns the one device to use, or None if the daemon has no GPU and the caller names none."""
    named = list(dict.fromkeys(cuda._device.index_of(each) for each in device_ids or ()))
    if not named and device_ids is None and cuda.is_available():
        named = list(range(cuda.device_count()))
    if len(named) > 1:
        raise NotImplementedError(
            f"{what} over {len(named)} GPUs is not supported yet: name one, as device_ids=[0]"
        )
    if output_device is not None and named and cuda._device.index_of(output_device) != named[0]:
        raise NotImplementedError(f"{what} with the output on another GPU is not supported yet")
    return None if not named else f"cuda:{named[0]}"


class DataParallel(Module):
    """Runs a module on one GPU, to which its inputs are moved. If the daemon has no GPU the module is
    called as it is, as in PyTorch. The parameters are those of `module`, so names in state_dict begin with
    "module.".

    NotImplementedError for more than one GPU, RuntimeError if a parameter is on another device."""

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        place = _place("DataParallel", device_ids, output_device)
        self.dim = dim
        self.module = module
        self.device_ids = [] if place is None else [int(place.rpartition(":")[2])]
        if place is not None:
            module.to(place)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Returns module(*inputs, **kwargs), computed on the GPU."""
        return data_parallel(self.module, inputs, self.device_ids or None, module_kwargs=kwargs)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Any = None,
) -> Any:
    """Returns module(*inputs, **module_kwargs), with the tensors among the arguments moved to the GPU, as
    DataParallel does."""
    place = _place("data_parallel", device_ids, output_device)
    given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if place is None:
        return module(*given, **(module_kwargs or {}))
    for each in (*module.parameters(), *module.buffers()):
        if str(each.device) != place:
            raise RuntimeError(
                f"module must have its parameters and buffers on device {place} (device_ids[0]) but "
                f"found one of them on device: {each.device}"
            )
    given, named = map_tree(
        lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, (given, module_kwargs or {})
    )
    return module(*given, **named)


# ---------------------------------------------------------------- parts of DataParallel


def _device(given: Any) -> Any:
    """A number is the index of a GPU."""
    return tt.device(f"cuda:{given}" if isinstance(given, int) else given)


def replicate(network: Module, devices: Sequence[Any], detach: bool = False) -> list[Any]:
    """Returns a copy of the module for each device. The parameters of the copies are the module's, moved to
    the device: gradients reach the module unless `detach` is True. The first copy has the module's own
    buffers, and each further copy has copies of them. ValueError without devices."""
    if not devices:
        raise ValueError("replicate: at least one device is needed")
    return [_copied(network, _device(each), detach, i == 0, {}) for i, each in enumerate(devices)]


def _copied(module: Module, place: Any, detach: bool, shares: bool, made: dict[Any, Any]) -> Any:
    """Returns the copy of the module for a device. `made` contains the copies of modules and tensors so
    far, by id."""
    if id(module) in made:
        return made[id(module)]
    copy = made[id(module)] = object.__new__(type(module))
    own = copy.__dict__
    own.update(module.__dict__)
    for names in ("_parameter_names", "_buffer_names", "_module_names"):
        own[names] = dict(own[names])

    def moved(tensor: Tensor, buffer: bool) -> Tensor:
        if id(tensor) not in made:
            result = tensor.to(place)
            fresh = buffer and not shares and result is tensor
            made[id(tensor)] = result.clone() if fresh else result.detach() if detach else result
        found: Tensor = made[id(tensor)]
        return found

    for registered, buffer in ((copy._parameter_names, False), (copy._buffer_names, True)):
        for name in registered:
            if own[name] is not None:
                own[name] = moved(own[name], buffer)
    for name in copy._module_names:
        if own[name] is not None:
            own[name] = _copied(own[name], place, detach, shares, made)
    return copy


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
    """Returns the parts of the inputs for each device, in chunks of about equal size along `dim`. For a
    tensor it is a tuple of tensors; for tuples, lists and dicts with tensors in them, a list of structures
    of the same kind. Any other object is in every part. Gradients reach the inputs. If a tensor has fewer
    rows than there are devices, there are fewer parts."""
    places = [_device(each) for each in target_gpus]
    if not places:
        raise ValueError("scatter: at least one device is needed")

    def parts(obj: Any) -> Any:
        if isinstance(obj, Tensor):
            rows = obj.chunk(len(places), dim)
            return tuple(row.to(place) for row, place in zip(rows, places, strict=False))
        if isinstance(obj, (tuple, list, dict)) and obj:
            rebuild, items = _structure(obj)
            return [rebuild(part) for part in zip(*map(parts, items), strict=False)]
        return [obj for _ in places]

    return parts(inputs)


def _structure(obj: Any) -> tuple[Callable[[Any], Any], list[Any]]:
    """Returns the items of a tuple, list or dict, and a function that makes an object of the same type from
    items."""
    if isinstance(obj, dict):
        keys = list(obj)
        return (lambda part: type(obj)(zip(keys, part, strict=True))), list(obj.values())
    kind: Any = type(obj)
    return getattr(kind, "_make", kind), list(obj)  # the classes of namedtuple() have _make


def gather(outputs: Sequence[Any], target_device: Any, dim: int = 0) -> Any:
    """Returns the results of several devices as one result on `target_device`: tensors are concatenated
    along `dim` (a 0-d tensor as a tensor of one element), within structures such as scatter() makes.
    ValueError for dicts of different lengths, TypeError for objects other than None, tensors and such
    structures."""
    if not outputs:
        raise ValueError("gather: at least one output is needed")
    first = outputs[0]
    if isinstance(first, Tensor):
        rows = [each.to(_device(target_device)) for each in outputs]
        return tt.cat([row.reshape(1) if row.dim() == 0 else row for row in rows], dim)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(len(each) != len(first) for each in outputs):
            raise ValueError("All dicts must have the same number of keys")
        joined = ((key, gather([each[key] for each in outputs], target_device, dim)) for key in first)
        return type(first)(joined)
    if isinstance(first, (tuple, list)):
        rebuild, _ = _structure(first)
        return rebuild(gather(each, target_device, dim) for each in zip(*outputs, strict=True))
    raise TypeError(f"gather: {type(first).__name__} is neither a tensor nor a structure of tensors")


def parallel_apply(
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[Any] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Returns the result of each module for its inputs (a tuple or list of arguments, or one argument). The
    calls are made one after the other, without threads, because they do not wait for the daemon's
    computations. `devices` has no effect: a module computes where its parameters are. ValueError for lists
    of different lengths."""
    given = [{}] * len(modules) if kwargs_tup is None else list(kwargs_tup)
    for name, several in (("inputs", inputs), ("kwargs_tup", given), ("devices", devices)):
        if several is not None and len(several) != len(modules):
            raise ValueError(f"parallel_apply: {len(several)} {name} for {len(modules)} modules")
    results = []
    for module, args, kwargs in zip(modules, inputs, given, strict=True):
        several = args if isinstance(args, (tuple, list)) else (args,)
        results.append(module(*several, **kwargs))
    return results
