"""Hooks for DistributedDataParallel.register_comm_hook, which replace the averaging of the gradients."""

from __future__ import annotations

import enum
from typing import Any

from ...._names import absent as _absent
from .default_hooks import allreduce_hook, bf16_compress_hook, fp16_compress_hook
from .post_localSGD_hook import post_localSGD_hook as _post_localSGD
from .powerSGD_hook import batched_powerSGD_hook, powerSGD_hook as _powerSGD

__all__ = ["DDPCommHookType", "register_ddp_comm_hook"]


class DDPCommHookType(enum.Enum):
    """The hooks by name."""

    ALLREDUCE = "allreduce"
    FP16_COMPRESS = "fp16_compress"
    BF16_COMPRESS = "bf16_compress"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"
    POST_LOCAL_SGD = "post_local_sgd"


_HOOKS = {
    DDPCommHookType.ALLREDUCE: allreduce_hook,
    DDPCommHookType.FP16_COMPRESS: fp16_compress_hook,
    DDPCommHookType.BF16_COMPRESS: bf16_compress_hook,
    DDPCommHookType.POWER_SGD: _powerSGD,
    DDPCommHookType.BATCHED_POWER_SGD: batched_powerSGD_hook,
    DDPCommHookType.POST_LOCAL_SGD: _post_localSGD,
}


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Any = None) -> None:
    """Calls model.register_comm_hook with the hook of that name."""
    if comm_hook_type not in _HOOKS:
        raise ValueError(f"comm_hook_type must be a DDPCommHookType, not {comm_hook_type!r}")
    model.register_comm_hook(state, _HOOKS[comm_hook_type])


_absent.attach(globals())
