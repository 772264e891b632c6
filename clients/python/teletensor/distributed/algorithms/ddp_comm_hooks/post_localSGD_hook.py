"""post_localSGD_hook: averages gradients over all ranks for some steps, and then over the ranks of a
smaller group.

From then on the program must average the parameters over all ranks from time to time; the hook does not do
so. As described in Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2018 (arXiv:1808.07217).
"""

from __future__ import annotations

from typing import Any

from ...._core import Tensor
from ...._script import capturing as _capturing
from ....futures import Future
from ... import GradBucket
from .default_hooks import allreduce_hook

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """The state of the hook: gradients are averaged over `process_group` (None for the world) until
    `start_localSGD_iter` steps are done, and then over `subgroup`, or not at all without
    `post_local_gradient_allreduce`.

    ValueError if `subgroup` is None but needed: create one by `distributed.new_group`."""

    def __init__(
        self,
        process_group: Any,
        subgroup: Any,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        if subgroup is None and post_local_gradient_allreduce:
            raise ValueError(
                "PostLocalSGDState: subgroup is None; make the group whose gradients are averaged later by "
                "distributed.new_group, or pass post_local_gradient_allreduce=False"
            )
        self.process_group, self.subgroup = process_group, subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Counts a step when its last bucket is processed."""
        self.iter += bucket.is_last()


def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Averages the gradients over the group that the number of steps selects."""
    _capturing.refuse("run post_localSGD_hook, whose state counts the steps")
    local = state.iter >= state.start_localSGD_iter
    state.maybe_increase_iter(bucket)
    if not local:
        return allreduce_hook(state.process_group, bucket)
    if state.post_local_gradient_allreduce:
        return allreduce_hook(state.subgroup, bucket)
    unchanged: Future[Tensor] = Future()
    unchanged.set_result(bucket.buffer())
    return unchanged
