"""The interface of torch.distributed.optim: an optimizer whose state is divided among the ranks."""

from ..._names import absent as _absent
from ._zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]

_absent.attach(globals())
