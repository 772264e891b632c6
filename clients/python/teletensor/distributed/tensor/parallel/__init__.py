"""The interface of torch.distributed.tensor.parallel: modules whose parameters and activations are divided
among the ranks."""

from ...._names import absent as _absent
from ._loss import loss_parallel
from ._plan import parallelize_module
from ._prepare import PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput
from ._styles import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "loss_parallel",
    "parallelize_module",
]

_absent.attach(globals())
