"""torch.distributed.algorithms: uneven inputs (`join`), and hooks that compress gradients
(`ddp_comm_hooks`)."""

from ..._names import absent as _absent
from .join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]

_absent.attach(globals())
