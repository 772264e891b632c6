"""vmap: converts a function of one sample to a function of a batch, which runs once for all samples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _core
from .._calls.tree import broadcast, flatten, unflatten
from .._core import Tensor, ops

__all__ = ["vmap"]

_RANDOMNESS = ("error", "same", "different")


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", repr(func))


def _in_dims(func: Callable[..., Any], in_dims: Any, args: tuple[Any, ...]) -> tuple[
        list[Any], Any, list[int | None], int]:
    name = _name(func)
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): expected `in_dims` to be int or a "
            f"(potentially nested) tuple matching the structure of inputs, got: {type(in_dims)}.")
    if not args:
        raise ValueError(f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or "
                         "you are trying to vmap over a function with no inputs. The latter is "
                         "unsupported.")
    leaves, spec = flatten(args)
    dims = broadcast(in_dims, args)
    if dims is None:
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): in_dims is not compatible with the "
            f"structure of inputs. in_dims has structure {in_dims} but inputs has structure "
            f"{type(args)}.")
    size: int | None = None
    for number, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
        if dim is None:
            continue
        if not isinstance(dim, int):
            raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for an "
                             "input but in_dim must be either an integer dimension or None.")
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for an input but "
                f"the input is of type {type(leaf)}. We cannot vmap over non-Tensor arguments, "
                "please use None as the respective in_dim")
        rank = leaf.dim()
        if dim < -rank or dim >= rank:
            raise ValueError(
                f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for some input, "
                f"but that input is a Tensor of dimensionality {rank} so expected in_dim to satisfy "
                f"-{rank} <= in_dim < {rank}.")
        dims[number] = dim % rank
        found = leaf.shape[dims[number]]
        if size is not None and found != size:
            raise ValueError(
                f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
                f"{[x.shape[d] for x, d in zip(leaves[:number], dims, strict=False) if d is not None]}"
                f" and {found} for the mapped dimension")
        size = found
    if size is None:
        raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): at least one in_dim must "
                         "not be None")
    return leaves, spec, dims, size


def _run(func: Callable[..., Any], leaves: list[Any], spec: Any, dims: list[int | None], size: int,
         out_dims: Any, randomness: str, kwargs: dict[str, Any]) -> tuple[list[Any], Any, list[Any]]:
    with _core.vmap_level(size, _RANDOMNESS.index(randomness)) as level:
        args = unflatten([x if d is None else _core.enter(x, d, level)
                          for x, d in zip(leaves, dims, strict=True)], spec)
        outputs = func(*args, **kwargs)
        found, out_spec = flatten(outputs)
        for each in found:
            if each is not None and not isinstance(each, Tensor):
                raise ValueError(f"vmap({_name(func)}, ...): `{_name(func)}` must only return Tensors, "
                                 f"got type {type(each)}. Did you mean to set out_dims= to None for "
                                 "output?")
        wanted = broadcast(out_dims, outputs)
        if wanted is None and isinstance(out_dims, tuple) and len(out_dims) == 1:
            wanted = broadcast(out_dims[0], outputs)
        if wanted is None:
            raise ValueError(f"vmap({_name(func)}, ..., out_dims={out_dims})(<inputs>): out_dims is not "
                             "compatible with the structure of `outputs`.")
        results: list[Any] = []
        for each, dim in zip(found, wanted, strict=True):
            if each is None:
                results.append(None)
            elif dim is None:
                if _core.is_batched(each, level):
                    raise ValueError(f"vmap({_name(func)}, ...): `{_name(func)}` can not return a "
                                     "BatchedTensor when out_dim is None")
                results.append(each)
            else:
                results.append(_core.leave(each, dim, level))
        return results, out_spec, wanted


def vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
         chunk_size: int | None = None) -> Callable[..., Any]:
    """Returns a function that maps `func` over dimension in_dims of its arguments.

    in_dims and out_dims are numbers, or tuples with the structure of the arguments and the outputs; None
    means that an argument is not mapped. randomness: the behaviour of random ops within func ("error", or
    the "same" or "different" numbers for the samples). chunk_size limits the number of samples that run at
    a time. An op without a batching rule is called once for each sample.
    """
    if randomness not in _RANDOMNESS:
        raise RuntimeError("Only allowed values for randomness are 'error', 'different', or 'same'. "
                           f"Got {randomness}")
    if chunk_size is not None and (chunk_size <= 0 or chunk_size != int(chunk_size)):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, spec, dims, size = _in_dims(func, in_dims, args)
        if chunk_size is None or chunk_size >= size:
            results, out_spec, _ = _run(func, leaves, spec, dims, size, out_dims, randomness, kwargs)
            return unflatten(results, out_spec)
        parts = []
        for start in range(0, size, chunk_size):
            length = min(chunk_size, size - start)
            chunk = [x if d is None else ops["slice"](x, d, start, length)
                     for x, d in zip(leaves, dims, strict=True)]
            parts.append(_run(func, chunk, spec, dims, length, out_dims, randomness, kwargs))
        joined = [
            each[0] if dim is None or each[0] is None else
            ops["cat"](list(each), dim if dim >= 0 else dim + each[0].dim())
            for each, dim in zip(zip(*(p[0] for p in parts), strict=True), parts[0][2], strict=True)]
        return unflatten(joined, parts[0][1])

    return wrapped
