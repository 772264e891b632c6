"""The interface of torch.distributed.checkpoint.filesystem: the folder of a checkpoint as an object."""

from __future__ import annotations

import os
from typing import Any

from ..._names import absent as _absent

__all__ = ["FileSystemReader", "FileSystemWriter"]


class _Folder:
    """A folder that is given to `save` or `load` instead of checkpoint_id. PyTorch's options of how its
    files are written have no effect."""

    def __init__(self, path: Any, *args: Any, **kwargs: Any) -> None:
        self.path = os.fsdecode(path)
        self.checkpoint_id = self.path


class FileSystemWriter(_Folder):
    """The folder to which `save(state_dict, storage_writer=...)` writes."""


class FileSystemReader(_Folder):
    """The folder that `load(state_dict, storage_reader=...)` reads."""


_absent.attach(globals())
