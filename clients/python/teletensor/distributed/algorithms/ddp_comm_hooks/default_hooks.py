"""Hooks that average gradients unchanged or as 16-bit numbers.

The state of these hooks is the process group, or None for the world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import _core
from ...._core import Tensor
from ....futures import Future
from ... import GradBucket, ReduceOp, all_reduce

__all__ = [
    "allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook",
    "fp16_compress_wrapper",
]  # fmt: skip

Hook = Callable[[Any, GradBucket], Future[Tensor]]


def _averaged(tensor: Tensor, group: Any) -> Future[Tensor]:
    """Averages the tensor over the ranks, in place; returns a Future of it."""
    work: Any = all_reduce(tensor, ReduceOp.AVG, group, async_op=True)
    future: Future[list[Tensor]] = work.get_future()
    return future.then(lambda done: done.value()[0])


def allreduce_hook(process_group: Any, bucket: GradBucket) -> Future[Tensor]:
    """Averages the gradients, as is done without a hook."""
    return _averaged(bucket.buffer(), process_group)


def _compressed(process_group: Any, bucket: GradBucket, dtype: Any) -> Future[Tensor]:
    buffer = bucket.buffer()
    return _averaged(buffer.to(dtype), process_group).then(lambda done: buffer.copy_(done.value()))


def fp16_compress_hook(process_group: Any, bucket: GradBucket) -> Future[Tensor]:
    """Averages the gradients as float16. The sum is computed in float32 and rounded once."""
    return _compressed(process_group, bucket, _core.float16)


def bf16_compress_hook(process_group: Any, bucket: GradBucket) -> Future[Tensor]:
    """Averages the gradients as bfloat16. The sum is computed in float32 and rounded once."""
    return _compressed(process_group, bucket, _core.bfloat16)


def _wrapper(hook: Hook, dtype: Any) -> Hook:
    def wrapped(hook_state: Any, bucket: GradBucket) -> Future[Tensor]:
        before = bucket.buffer()
        bucket.set_buffer(before.to(dtype))
        return hook(hook_state, bucket).then(lambda done: before.copy_(done.value()))

    return wrapped


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Wraps a hook so that it gets the gradients as float16; its result is cast back to the dtype of the
    gradients."""
    return _wrapper(hook, _core.float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Wraps a hook so that it gets the gradients as bfloat16; its result is cast back to the dtype of the
    gradients."""
    return _wrapper(hook, _core.bfloat16)
