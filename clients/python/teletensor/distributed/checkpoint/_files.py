"""A folder with the tensors of several ranks: one file for each rank, and an index of the contents of all
files.

A save writes its files under new names next to those of the previous save. At the end the index is
replaced, and then the previous files are removed: so the folder always contains one complete checkpoint.
"""

from __future__ import annotations

import json
import os
import secrets
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..._core import Tensor
from ..._files import safetensors as _safetensors
from ..._files.objects import decoded, dtype_name, encoded
from ..._files.replace import written
from ..._files.safetensors import Entry
from ..._files.serialize import reading
from ..._sessions.session import Session, beside, current_session
from ..._tensors.arrays import array_of
from ..._tensors.placed import InDaemon
from ...autograd import no_grad
from ...optim import Optimizer
from .. import all_gather_object, broadcast_object_list, is_initialized
from .._group import ProcessGroup, found
from ..fsdp._shards import ShardedParameter, Sharding
from ._optimizer_state import marked_state
from .filesystem import _Folder
from .stateful import Stateful

__all__ = ["CheckpointException", "async_save", "load", "save"]

INDEX = "index.json"
_KIND = "teletensor checkpoint 1"


class CheckpointException(Exception):
    """A rank could not save or load. The message contains the error of each such rank; all ranks raise this
    exception."""


class _Ranks:
    """The ranks that save or load together; a program without a world counts as one rank, and so does
    each rank if `alone`."""

    def __init__(self, group: Any, alone: bool = False) -> None:
        with_others = not alone and (is_initialized() or group is not None)
        self.group = found(group) if with_others else None
        self.rank = 0 if self.group is None else self.group.rank()
        self.size = 1 if self.group is None else self.group.size()

    def every(self, value: Any) -> list[Any]:
        """Returns the values of all ranks."""
        values: list[Any] = [value] * self.size
        if self.group is not None:
            all_gather_object(values, value, self.group)
        return values

    def together(self, what: str, act: Callable[[], Any]) -> list[Any]:
        """Returns the results of act() on all ranks. If it fails on any rank, all ranks raise
        CheckpointException."""
        result, error = None, ""
        try:
            result = act()
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        values = self.every([error, result])
        failed = [f"rank {rank}: {each[0]}" for rank, each in enumerate(values) if each[0]]
        if failed:
            raise CheckpointException(f"{what}: " + "; ".join(failed))
        return [each[1] for each in values]


class _Beside(_Ranks):
    """The same ranks with sessions of their own, whose collectives neither wait for those of the program
    nor are waited for by these. The last use of each rank is `with` this object, on any thread."""

    def __init__(self, ranks: _Ranks, name: str) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self.group: ProcessGroup | None = None
        self._session: Session | None = None
        group = ranks.group
        if group is None or group._session is None:
            return
        with group._session.as_current():
            self._session = beside()
        members = range(self.size)
        self.group = ProcessGroup(
            name, group.name(), members, self.rank, group._timeout, self._session
        )
        self._session._world = self.group

    def __enter__(self) -> _Beside:
        if self._session is not None:
            self._session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._session is not None:
            self._session.__exit__(*error)


# The last checkpoint that this process writes in another thread, by the session of the rank.
_written: weakref.WeakKeyDictionary[Session, Future[None]] = weakref.WeakKeyDictionary()


def _session_of(ranks: _Ranks) -> Session:
    session = None if ranks.group is None else ranks.group._session
    return current_session() if session is None else session


def _await_saves(ranks: _Ranks) -> None:
    """Waits until async_save has written what this rank has given to it before, because each save removes
    the files of the other checkpoints in its folder."""
    earlier = _written.get(_session_of(ranks))
    if earlier is not None:
        wait([earlier])


class _Part(NamedTuple):
    """A part of a tensor in a file: `rows` rows of dimension `dim`, starting with row `begin`."""

    file: str
    dim: int
    begin: int
    rows: int


def _leaves(tree: Any, prefix: str, found_leaves: dict[str, Any]) -> dict[str, Any]:
    """The tensors and other values in nested dicts, by their keys joined by dots."""
    for key, value in tree.items():
        if not isinstance(key, (str, int)):
            raise TypeError(
                f"a state_dict's keys are str or int, not {type(key).__name__}, in {prefix!r}"
            )
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            _leaves(value, name + ".", found_leaves)
        elif name in found_leaves:
            raise ValueError(f"two values of the state_dict have the name {name!r}")
        else:
            found_leaves[name] = value
    return found_leaves


def _states(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the state_dict, with the states of its Stateful values in their place."""
    states = dict(state_dict)
    for key, value in state_dict.items():
        if isinstance(value, Optimizer):
            states[key] = marked_state(value)
        elif isinstance(value, Stateful):
            states[key] = value.state_dict()
    return states


def _folder(checkpoint_id: Any, storage: Any) -> str:
    if storage is not None and not isinstance(storage, _Folder):
        raise TypeError(
            f"a storage is a FileSystemWriter or a FileSystemReader, not a {type(storage).__name__}"
        )
    if checkpoint_id is None and storage is not None:
        checkpoint_id = storage.path
    if checkpoint_id is None:
        raise ValueError("checkpoint_id is missing: give the path of a folder")
    return os.fsdecode(checkpoint_id)


def _refuse(what: str, **options: Any) -> None:
    """NotImplementedError if an option is given that only PyTorch's format of checkpoints has."""
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError(f"{what}: {name}={value!r} is not supported")


def save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> None:
    """Writes a state_dict, whose values may be nested dicts and Stateful objects, to the folder
    `checkpoint_id`. All ranks of the group (or the world) must have access to this folder; it is created if
    it does not exist. All ranks call this function with the same names. Each rank writes its shards to a
    file of its own; all other tensors and values are taken from rank 0. A previous checkpoint in the folder
    stays complete until the new one is. storage_writer: a FileSystemWriter instead of checkpoint_id.
    no_dist=True: this process saves alone.

    Shards are recognised in modules and optimizers that are values of state_dict, in model.state_dict() of
    a sharded module, and in the result of get_optimizer_state_dict. The tensors in the result of an
    optimizer's own state_dict() are not marked as parts.

    CheckpointException on all ranks if one of them cannot write, or has a different dtype, shape or set of
    names. NotImplementedError for a planner and use_collectives=False."""
    _refuse("save", planner=planner, use_collectives=None if use_collectives else False)
    folder, ranks = _folder(checkpoint_id, storage_writer), _Ranks(process_group, no_dist)
    _await_saves(ranks)
    token = _token(ranks)

    def write() -> dict[str, Any]:
        entries, own = _contents(state_dict, token, ranks.rank)
        _write(folder, token, ranks.rank, {name: _lazy(value) for name, value in own.items()})
        return entries

    every = ranks.together("save", write)
    ranks.together("save", lambda: _finish(folder, token, ranks.rank, every))


def async_save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    async_checkpointer_type: Any = None,
    async_stager: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Future[None]:
    """Saves as `save` does, but returns once the values of this rank are in the memory of this process; a
    thread writes them. So the checkpoint has the values at the time of the call, whatever the program does
    with its tensors afterwards. Returns a concurrent.futures.Future, whose result() waits until the
    checkpoint of all ranks is complete. All ranks call this function, but they need not wait for its result
    in the same order as they call collectives, because the threads have sessions of their own.

    A later save or load of the same rank waits until this one has ended, and so does the end of the
    program. If the client runs on the daemon's machine, large values are not copied: the daemon keeps them,
    charged to the session, until they are written. async_checkpointer_type has no effect.

    CheckpointException on all ranks if one of them has a value that cannot be saved, or no session for its
    thread; all other errors of `save` are raised by result(). NotImplementedError for a planner, an
    async_stager and use_collectives=False."""
    _refuse(
        "async_save", planner=planner, async_stager=async_stager,
        use_collectives=None if use_collectives else False,
    )  # fmt: skip
    folder, ranks = _folder(checkpoint_id, storage_writer), _Ranks(process_group, no_dist)
    token = _token(ranks)
    values: dict[str, Entry] = {}
    made: list[_Beside] = []

    def stage() -> dict[str, Any]:
        entries, own = _contents(state_dict, token, ranks.rank)
        values.update({name: _fetched(value) for name, value in own.items()})
        made.append(_Beside(ranks, f"checkpoint {token}"))
        return entries

    try:
        every = ranks.together("async_save", stage)
    except BaseException:
        for own in made:
            with own:
                pass
        raise
    session = _session_of(ranks)
    earlier = _written.get(session)

    def work() -> None:
        with made[0] as own:
            if earlier is not None:
                wait([earlier])
            own.together("async_save", lambda: _write(folder, token, own.rank, values))
            own.together("async_save", lambda: _finish(folder, token, own.rank, every))

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="teletensor-checkpoint")
    _written[session] = saving = thread.submit(work)
    thread.shutdown(wait=False)
    return saving


def _token(ranks: _Ranks) -> str:
    """A random text that rank 0 chooses, by which the files of a checkpoint are known."""
    tokens: list[Any] = [secrets.token_hex(6) if ranks.rank == 0 else ""]
    if ranks.group is not None:
        broadcast_object_list(tokens, group=ranks.group, group_src=0)
    return str(tokens[0])


def _file(token: str, rank: int) -> str:
    return f"{token}.{rank}.safetensors"


def _contents(
    state_dict: Mapping[str, Any], token: str, rank: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The descriptions of all values of this rank, and the tensors that it writes."""
    own: dict[str, Tensor] = {}
    entries: dict[str, Any] = {}
    for name, value in _leaves(_states(state_dict), "", {}).items():
        entries[name] = _entry(value, _file(token, rank), rank)
        if entries[name].get("part") is not None:
            own[name] = value
    return entries, own


def _lazy(value: Tensor) -> Entry:
    """The tensor in a file; its values are read when they are written."""
    return Entry(value.dtype.name, tuple(value.shape), lambda: array_of(value)[1])


def _fetched(value: Tensor) -> Entry:
    """The tensor in a file, with its present values."""
    array = array_of(value)[1]
    return Entry(value.dtype.name, tuple(value.shape), lambda: array)


def _write(folder: str, token: str, rank: int, values: Mapping[str, Entry]) -> None:
    """Writes the file of this rank."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _file(token, rank))
    with written(path) as file:
        _safetensors.write(file, values, {"format": "pt"})
    _sync(path)


def _finish(folder: str, token: str, rank: int, every: list[dict[str, Any]]) -> None:
    """Makes the checkpoint the folder's: replaces the index and removes the files of earlier ones."""
    if rank != 0:
        return
    index = {"kind": _KIND, "entries": _joined(every)}
    with written(os.path.join(folder, INDEX)) as out:
        out.write(json.dumps(index).encode())
    _sync(folder)
    _clean(folder, token)


def _entry(value: Any, file: str, rank: int) -> dict[str, Any]:
    """The description of a value of this rank. "part" is the part of a tensor that this rank writes."""
    sharding = _sharding(value)
    if sharding is not None:
        part = [file, sharding.dim, sharding.begin, sharding.rows]
        return {"shape": list(sharding.shape), "dtype": dtype_name(value.dtype), "sharded": True,
                "part": part if value.numel() else None}  # fmt: skip
    if isinstance(value, Tensor):
        whole = [file, 0, 0, value.shape[0] if value.dim() else 1]
        return {"shape": list(value.shape), "dtype": dtype_name(value.dtype), "sharded": False,
                "part": whole if rank == 0 else None}  # fmt: skip
    return {"object": encoded(value)}


def _sharding(value: Any) -> Sharding | None:
    """How the tensor is divided; None for a whole tensor. NotImplementedError if it is a part of a part."""
    if not isinstance(value, ShardedParameter):
        return None
    if value.sharding.outer is not None:
        raise NotImplementedError(
            f"{value.name} is divided by parallelize_module and by fully_shard: save and load the state of "
            "get_state_dict with StateDictOptions(full_state_dict=True)"
        )
    return value.sharding


def _joined(every: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the entries of all ranks into those of the index. ValueError if they do not fit together."""
    entries: dict[str, Any] = {}
    for rank, theirs in enumerate(every):
        if list(theirs) != list(every[0]):
            other = sorted(set(theirs) ^ set(every[0]))[:4]
            raise ValueError(f"rank {rank} has other names than rank 0, or another order: {other}")
    for name, first in every[0].items():
        if "object" in first:
            entries[name] = first
            continue
        facts = [{k: v for k, v in theirs[name].items() if k != "part"} for theirs in every]
        different = [rank for rank, each in enumerate(facts) if each != facts[0]]
        if different:
            raise ValueError(
                f"{name} is {facts[0]} on rank 0, and {facts[different[0]]} on rank {different[0]}"
            )
        parts = [theirs[name]["part"] for theirs in every if theirs[name]["part"]]
        # Ranks of different groups may have the same rows.
        once = {tuple(part[1:]): part for part in reversed(parts)}
        entries[name] = {
            "shape": first["shape"],
            "dtype": first["dtype"],
            "parts": list(once.values()),
        }
    return entries


def _sync(path: str) -> None:
    """Waits until the file is on the disk, so that it survives a crash of the machine."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _clean(folder: str, token: str) -> None:
    """Removes the files of previous checkpoints."""
    for name in os.listdir(folder):
        pieces = name.split(".")
        if (
            len(pieces) == 3
            and pieces[2] == "safetensors"
            and len(pieces[0]) == 12
            and pieces[0] != token
        ):
            os.unlink(os.path.join(folder, name))


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
) -> None:
    """Reads a checkpoint of `save` into the tensors of a state_dict, in place; other values are replaced,
    except empty dicts for which the checkpoint has none. A Stateful value gets what was read by its
    load_state_dict(); an optimizer without state is initialised first, as get_optimizer_state_dict does.
    The number of ranks may differ from that of the save: each rank reads the rows of its own shards, and
    all ranks read whole tensors. Names that are only in the checkpoint are ignored. All ranks of the group
    (or the world) call this function. storage_reader: a FileSystemReader instead of checkpoint_id.
    no_dist=True: this process loads alone.

    CheckpointException on all ranks, with nothing changed, if on any rank a name is missing, a shape or
    dtype differs, or a file is missing or damaged. NotImplementedError for a planner."""
    _refuse("load", planner=planner)
    folder, ranks = _folder(checkpoint_id, storage_reader), _Ranks(process_group, no_dist)
    _await_saves(ranks)
    read: list[tuple[Tensor, Tensor]] = []
    objects: list[tuple[str, Any]] = []
    states: dict[str, Any] = {}

    def fetch() -> None:
        entries = _index(folder)
        states.update(_states(state_dict))
        # An empty dict asks for nothing.
        wanted = {
            name: value
            for name, value in _leaves(states, "", {}).items()
            if name in entries or not isinstance(value, Mapping)
        }
        missing = [name for name in wanted if name not in entries]
        if missing:
            raise KeyError(f"the checkpoint in {folder} has no {', '.join(missing[:8])}")
        with ExitStack() as opened:
            files = _Files(folder, opened)
            for name, value in wanted.items():
                if isinstance(value, Tensor):
                    read.append((value, files.tensor(name, value, entries[name])))
                elif "object" in entries[name]:
                    objects.append((name, decoded(entries[name]["object"])))
                else:
                    raise ValueError(
                        f"{name} is a tensor in the checkpoint, not a {type(value).__name__}"
                    )

    ranks.together("load", fetch)
    with no_grad():
        for target, source in read:
            target.detach().copy_(source)
    for name, value in objects:
        _put(states, "", name, value)
    for key, value in states.items():
        if isinstance(state_dict[key], Stateful):
            state_dict[key].load_state_dict(value)
        else:
            state_dict[key] = value


def _index(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, INDEX)
    with open(path, "rb") as file:
        try:
            index = json.loads(file.read())
        except ValueError:
            raise ValueError(f"{path} is not the index of a checkpoint") from None
    if (
        not isinstance(index, dict)
        or index.get("kind") != _KIND
        or not isinstance(index.get("entries"), dict)
    ):
        raise ValueError(f"{path} is not the index of a checkpoint")
    entries: dict[str, Any] = index["entries"]
    return entries


class _Files:
    """The tensors in the files of a checkpoint. `opened` closes the files."""

    def __init__(self, folder: str, opened: ExitStack) -> None:
        self._folder, self._opened = folder, opened
        self._read_files: dict[str, dict[str, Any]] = {}  # by name of the file, its contents

    def tensor(self, name: str, like: Tensor, entry: dict[str, Any]) -> Tensor:
        """The values in the checkpoint for the tensor `like`."""
        sharding = _sharding(like)
        shape = tuple(like.shape) if sharding is None else sharding.shape
        dtype = dtype_name(like.dtype)
        if "object" in entry or tuple(entry["shape"]) != shape or entry["dtype"] != dtype:
            saved = (
                "no tensor" if "object" in entry else f"{entry['dtype']} of {tuple(entry['shape'])}"
            )
            raise ValueError(f"{name} is {saved} in the checkpoint, and {dtype} of {shape} here")
        parts = [_Part(*part) for part in entry["parts"]]
        made = like.detach().new_empty(tuple(like.shape))
        if not made.numel():
            return made
        if not shape:
            return made.copy_(self._read(name, parts[0].file))
        filled = 0
        for part in parts:
            dim = part.dim
            if sharding is not None and sharding.dim == dim:
                begin, rows = sharding.begin, sharding.rows
            else:
                begin, rows = 0, shape[dim]
            first, last = max(begin, part.begin), min(begin + rows, part.begin + part.rows)
            if first >= last:
                continue
            source = self._read(name, part.file).narrow(dim, first - part.begin, last - first)
            if sharding is not None and sharding.dim != dim:
                source = source.narrow(sharding.dim, sharding.begin, sharding.rows)
            made.narrow(dim, first - begin, last - first).copy_(source)
            filled += source.numel()
        if filled != made.numel():
            raise ValueError(
                f"{name}: the checkpoint's parts have {filled} of {made.numel()} elements"
            )
        return made

    def _read(self, name: str, file: str) -> Any:
        if os.path.basename(file) != file or not file.endswith(".safetensors"):
            raise ValueError(f"the index names {file[:80]!r}, which cannot be a file beside it")
        path = os.path.join(self._folder, file)
        if file not in self._read_files:
            source = self._opened.enter_context(reading(path))
            self._read_files[file] = _safetensors.read(source.file, source.size)[1]
        stored = self._read_files[file]
        if name not in stored:
            raise ValueError(f"{path} does not hold {name[:80]!r}, as the index says")
        return InDaemon().tensor(stored[name], False)


def _put(tree: dict[str, Any], prefix: str, name: str, value: Any) -> None:
    for key, old in tree.items():
        if f"{prefix}{key}" == name and not (isinstance(old, Mapping) and old):
            tree[key] = value
            return
        if isinstance(old, dict) and old and name.startswith(f"{prefix}{key}."):
            _put(old, f"{prefix}{key}.", name, value)
