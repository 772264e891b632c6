"""PowerSGD: approximates gradients by products of two thin matrices, so that only these are sent.

As described in Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", 2019 (arXiv:1905.13727).
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from .... import _api as tt, linalg, random
from ...._core import Tensor
from ...._script import capturing as _capturing
from ....futures import Future
from ... import GradBucket, ReduceOp, all_reduce
from ..._buckets import flat, parts_of
from .default_hooks import allreduce_hook

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]

_LOG = logging.getLogger(__name__)


class PowerSGDState:
    """The options of the hooks, and the data that they keep from step to step.

    process_group: None for the world. matrix_approximation_rank: the number of columns of the two matrices;
    more columns approximate the gradient better. start_powerSGD_iter: the step before which gradients are
    averaged without compression. min_compression_rate: a gradient whose matrices are not smaller by this
    factor is sent uncompressed. use_error_feedback: the error of the compression is added to the gradients
    of the next step. warm_start: a step starts with the matrices of the previous step.
    orthogonalization_epsilon: added to the norm of each column; with 0, columns are orthonormalised by a QR
    decomposition. random_seed: for the first matrices. compression_stats_logging_frequency: the number of
    steps between two log messages. batch_tensors_with_same_shape has no effect.

    ValueError for error feedback or warm start with a start_powerSGD_iter below 2, as in PyTorch. Pickling
    keeps everything except the group."""

    def __init__(
        self,
        process_group: Any,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, "
                "because PowerSGD can only be applied after the first two iterations in DDP."
            )
        if matrix_approximation_rank < 1:
            raise ValueError(
                f"matrix_approximation_rank must be at least 1, not {matrix_approximation_rank}"
            )
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback, self.warm_start = use_error_feedback, warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        self.rng = np.random.RandomState(random_seed)
        self.error_dict: dict[int, Tensor] = {}  # the errors of compression, by the bucket's index
        self.q_memory_dict: dict[int, list[Tensor]] = {}
        self.iter = 0
        self.total_numel_before_compression = 0
        self.total_numel_after_compression = 0
        self.compression_stats_logging_frequency = max(1, compression_stats_logging_frequency)
        self.next_stats_report = 0

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "process_group"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = None
        vars(self).update(state)

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Counts a step when its last bucket is processed."""
        self.iter += bucket.is_last()

    def compression_stats(self) -> tuple[float, int, int]:
        """The compression rate so far, and the numbers of elements before and after compression."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after else 0, before, after)

    def _report(self, bucket: GradBucket) -> None:
        if bucket.is_last() and self.iter >= self.next_stats_report:
            rate, before, after = self.compression_stats()
            _LOG.info(
                "PowerSGD, step %d: %d elements travelled as %d, rate %.3g", self.iter, before, after, rate
            )
            self.next_stats_report = self.iter + self.compression_stats_logging_frequency

    def _first_qs(self, shapes: list[tuple[int, int]], like: Tensor) -> list[Tensor]:
        """Random matrices, which are the same on all ranks and different at each step."""
        with random.fork_rng():
            tt.manual_seed(int(self.rng.randint(1_000_000_000)))
            return [tt.randn(*shape, dtype=like.dtype).to(like.device) for shape in shapes]


def _orthonormal(matrix: Tensor, epsilon: float) -> Tensor:
    """The matrix with its columns orthonormalised, computed in at least float32."""
    wide = matrix.float() if matrix.element_size() < 4 else matrix
    if epsilon == 0:
        return linalg.qr(wide)[0].to(matrix.dtype)
    columns: list[Tensor] = []
    for column in wide.unbind(1):
        for before in columns:
            column = column - (before * column).sum() * before
        columns.append(column / (column.norm() + epsilon))
    return tt.stack(columns, 1).to(matrix.dtype)


def _sums(matrices: list[Tensor], group: Any, op: ReduceOp) -> list[Tensor]:
    """The sums (or averages) over the ranks of the matrices, which are sent together."""
    if not matrices:
        return []
    buffer = flat(matrices)
    all_reduce(buffer, op, group)
    return parts_of(buffer, matrices)


def _low_rank(state: PowerSGDState, index: int, matrices: list[Tensor]) -> list[Tensor]:
    """Low-rank products P Q^T that approximate the averages of the matrices over the ranks."""
    group, epsilon = state.process_group, state.orthogonalization_epsilon
    remembered = state.q_memory_dict.get(index) if state.warm_start else None
    if remembered is None:
        shapes = [(m.shape[1], min(*m.shape, state.matrix_approximation_rank)) for m in matrices]
        remembered = state._first_qs(shapes, matrices[0]) if matrices else []
    qs = [_orthonormal(q, epsilon) for q in remembered]
    ps = _sums([m @ q for m, q in zip(matrices, qs, strict=True)], group, ReduceOp.SUM)
    ps = [_orthonormal(p, epsilon) for p in ps]
    qs = _sums([m.t() @ p for m, p in zip(matrices, ps, strict=True)], group, ReduceOp.AVG)
    if state.warm_start:
        state.q_memory_dict[index] = qs
    return [p @ q.t() for p, q in zip(ps, qs, strict=True)]


def _with_error(state: PowerSGDState, index: int, gradients: Tensor) -> Tensor:
    """The gradients, plus the error of the compression in the previous step."""
    error = state.error_dict.get(index) if state.use_error_feedback else None
    return gradients if error is None else gradients + error


def _finish(state: PowerSGDState, bucket: GradBucket, wanted: Tensor, found: Tensor) -> Future[Tensor]:
    if state.use_error_feedback:
        state.error_dict[bucket.index()] = wanted - found
    state.maybe_increase_iter(bucket)
    future: Future[Tensor] = Future()
    future.set_result(found)
    return future


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Compresses the gradient of each parameter separately, as a matrix of its first dimension and all
    further ones; one-dimensional gradients, and those that would not become smaller, are averaged
    uncompressed."""
    _capturing.refuse("run powerSGD_hook, whose state changes at each step")
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    wanted = _with_error(state, bucket.index(), bucket.buffer())
    gradients = parts_of(wanted, bucket.parameters())
    matrices: dict[int, Tensor] = {}  # by the index of the gradient
    for i, gradient in enumerate(gradients):
        before = after = gradient.numel()
        if gradient.dim() > 1:
            matrix = gradient.reshape(gradient.shape[0], -1)
            size = sum(matrix.shape) * min(*matrix.shape, state.matrix_approximation_rank)
            if size * state.min_compression_rate < before:
                matrices[i], after = matrix, size
        state.total_numel_before_compression += before
        state.total_numel_after_compression += after
    state._report(bucket)
    rest = [i for i in range(len(gradients)) if i not in matrices]
    averages = _sums([gradients[i] for i in rest], state.process_group, ReduceOp.AVG)
    products = _low_rank(state, bucket.index(), list(matrices.values()))
    whole = dict(zip([*rest, *matrices], [*averages, *products], strict=True))
    return _finish(state, bucket, wanted, flat(whole[i] for i in range(len(gradients))))


def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Compresses all gradients of the bucket together, as one square matrix: this needs less work than
    powerSGD_hook and approximates the gradients less well."""
    _capturing.refuse("run batched_powerSGD_hook, whose state changes at each step")
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    wanted = bucket.buffer()
    length = wanted.numel()
    side = math.isqrt(length - 1) + 1 if length else 0
    state.total_numel_before_compression += length
    state.total_numel_after_compression += 2 * side * state.matrix_approximation_rank
    state._report(bucket)
    padded = _with_error(state, bucket.index(), tt.cat([wanted, wanted.new_zeros(side * side - length)]))
    (product,) = _low_rank(state, bucket.index(), [padded.reshape(side, side)])
    future = _finish(state, bucket, padded, product.reshape(-1))
    return future.then(lambda done: done.value()[:length])
