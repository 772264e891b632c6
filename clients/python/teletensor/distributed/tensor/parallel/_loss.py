"""loss_parallel: the cross entropy of scores whose classes are divided among the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from .... import _api as tt, distributed as _d
from ...._core import Tensor
from ....autograd import no_grad
from .._dtensor import DTensor, rules
from .._placements import Partial, Placement, Replicate, Shard, sizes

__all__ = ["loss_parallel"]


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """A context in which `cross_entropy` and CrossEntropyLoss take a DTensor of scores [N, C, ...] or [C]
    whose classes (dimension 1, or 0 of [C]) are divided along one dimension of the mesh. Each rank computes
    with its classes and only maxima and sums are exchanged, so that no rank needs all scores. Other
    dimensions of the mesh are Replicate, or divide another dimension of the scores. The backward may be
    inside the context or after it.

    target: the classes, as a DTensor of the placements of the scores with Replicate for the classes, or as
    a Tensor that all ranks have if no other dimension is divided. weight: a Tensor that all ranks have, or
    a DTensor that is Replicate. The result is a DTensor. It is Replicate, except along dimensions of the
    mesh that divide samples: there it is Partial for reduction="sum", and divided for "none".

    ValueError or RuntimeError for other placements; NotImplementedError for label_smoothing, for targets
    that are probabilities, and for reduction="mean" with a mesh of several dimensions."""
    with rules({"cross_entropy": _cross_entropy}):
        yield


def _cross_entropy(
    scores: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> DTensor:
    if not isinstance(scores, DTensor):
        raise TypeError(f"loss_parallel(): the input must be a DTensor, not {type(scores).__name__}")
    dim = 1 if scores.ndim >= 2 else 0
    mesh, where = scores.device_mesh, _divided(scores.placements, dim)
    if size_average is not None or reduce is not None:
        raise NotImplementedError("loss_parallel() needs reduction in place of size_average and reduce")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if label_smoothing != 0:
        raise NotImplementedError("loss_parallel() does not support label_smoothing")
    if target.dtype.is_floating_point:
        raise NotImplementedError("loss_parallel() does not support class probabilities as target")
    if target.dtype not in (tt.int64, tt.uint8):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.dtype}")
    if tuple(target.shape) != tuple(_others(scores.shape, dim)):
        raise ValueError(
            f"loss_parallel(): the target is {tuple(target.shape)}, and must be "
            f"{tuple(_others(scores.shape, dim))} for an input of {tuple(scores.shape)}"
        )
    of_target = tuple(_without(each, dim) for each in scores.placements)
    classes = _local("target", target, of_target, mesh).long()
    whole = (Replicate(),) * mesh.ndim
    if reduction == "mean" and mesh.ndim > 1:
        raise NotImplementedError(
            "loss_parallel() with reduction='mean' is only supported on one-dimensional DeviceMesh; got "
            f"mesh with ndim={mesh.ndim}. Use reduction='sum' or 'none' instead."
        )
    count = scores.shape[dim]
    given = None if weight is None else _local("weight", weight, whole, mesh)
    weights = tt.ones(count, device=scores.device) if given is None else given
    counted = classes != ignore_index
    # Replaces ignored classes, which need not exist; any other class that does not exist is an error.
    known = tt.where(counted, classes, 0).flatten()
    own_weights = weights.gather(0, known).view(classes.shape) * counted
    loss = own_weights * _negative_log(scores, classes, dim, where)
    layout = [Partial() if isinstance(each, Shard) else Replicate() for each in of_target]
    if reduction == "none":
        return DTensor.from_local(
            loss.to(scores.dtype), mesh, of_target, shape=_others(scores.shape, dim)
        )
    result = loss.sum()
    if reduction == "mean":
        result = result / own_weights.sum()
    return DTensor.from_local(result.to(scores.dtype), mesh, layout)


def _divided(placements: Sequence[Placement], dim: int) -> int:
    """The dimension of the mesh that divides the classes."""
    found = [i for i, each in enumerate(placements) if each == Shard(dim)]
    if len(found) != 1:
        raise ValueError(
            f"loss_parallel() requires exactly one mesh dim to shard tensor dimension {dim}, but got "
            f"placements {tuple(placements)} with {len(found)} such mesh dim(s)."
        )
    for i, each in enumerate(placements):
        if isinstance(each, Partial):
            raise ValueError(
                f"loss_parallel() expects non-TP mesh dims to be Shard or Replicate, got {each} at dim {i}."
            )
    return found[0]


def _without(placement: Placement, dim: int) -> Placement:
    """The placement of a tensor that lacks the dimension `dim` of the scores."""
    if not isinstance(placement, Shard) or placement.dim < dim:
        return placement
    return Replicate() if placement.dim == dim else Shard(placement.dim - 1)


def _others(shape: Sequence[int], dim: int) -> list[int]:
    return [size for i, size in enumerate(shape) if i != dim]


def _local(name: str, value: Any, placements: tuple[Placement, ...], mesh: Any) -> Tensor:
    """This rank's part of a target or of weights, which must have these placements."""
    if isinstance(value, DTensor):
        if value.placements != placements:
            raise RuntimeError(f"Expected {placements} but got {value.placements}.")
        return value.to_local()
    if not isinstance(value, Tensor):
        raise TypeError(f"loss_parallel(): {name} must be a tensor, not {type(value).__name__}")
    if any(isinstance(each, Shard) for each in placements):
        raise ValueError(
            f"loss_parallel() requires a DTensor (not a plain Tensor) as {name} when its placements "
            f"{placements} contain Shard: wrap it with DTensor.from_local or distribute_tensor."
        )
    return value


def _negative_log(scores: DTensor, classes: Tensor, dim: int, where: int) -> Tensor:
    """-log_softmax(scores, dim) at the classes, for the samples of this rank."""
    mesh = scores.device_mesh
    x = scores.to_local()
    x = x.float() if x.dtype in (tt.float16, tt.bfloat16) else x
    mine, shape = x.shape[dim], _others(x.shape, dim)

    def added(part: Tensor) -> Tensor:
        """The sum over the ranks, whose gradient every rank has."""
        placed: list[Placement] = [Replicate()] * mesh.ndim
        placed[where] = Partial()
        of_samples = DTensor.from_local(part, mesh, placed)
        return of_samples.redistribute(placements=[Replicate()] * mesh.ndim).to_local()

    with no_grad():
        largest = x.detach().amax(dim) if mine else tt.full(shape, -float("inf"), dtype=x.dtype,
                                                            device=x.device)  # fmt: skip
        _d.all_reduce(largest, _d.ReduceOp.MAX, mesh.get_group(where))
    shifted = x - largest.unsqueeze(dim)
    total = added(shifted.exp().sum(dim))
    most = sizes(scores.shape[dim], mesh.size(where))[0]
    at = classes - most * mesh.get_local_rank(where)
    own = (at >= 0) & (at < mine)
    if mine:
        picked = shifted.gather(dim, tt.where(own, at, 0).unsqueeze(dim)).squeeze(dim)
        picked = tt.where(own, picked, 0)
    else:
        picked = shifted.sum(dim)  # zeros
    return total.log() - added(picked)
