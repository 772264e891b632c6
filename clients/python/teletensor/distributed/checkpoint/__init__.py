"""The interface of torch.distributed.checkpoint: stores the state of a program whose tensors are divided
among ranks in a folder.

See docs/distributed.md.
"""

from ..._names import absent as _absent
from . import state_dict as state_dict, stateful as stateful
from ._files import CheckpointException, async_save, load, save
from .filesystem import FileSystemReader, FileSystemWriter

__all__ = [
    "CheckpointException", "FileSystemReader", "FileSystemWriter", "async_save", "load", "save",
    "state_dict", "stateful",
]  # fmt: skip

_absent.attach(globals())
