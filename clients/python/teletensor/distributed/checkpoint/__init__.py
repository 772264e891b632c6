"""torch.distributed.checkpoint: the state of a program whose tensors are divided among ranks."""

from ... import _absent
from . import state_dict as state_dict

__all__ = ["state_dict"]

_absent.attach(globals())
