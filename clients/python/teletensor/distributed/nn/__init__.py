"""torch.distributed.nn: collectives with gradients."""

from ..._names import absent as _absent
from .functional import *  # noqa: F403
from .functional import __all__ as _names

__all__ = list(_names)

_absent.attach(globals())
