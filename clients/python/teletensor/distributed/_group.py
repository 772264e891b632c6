"""The world: the processes that compute together, each with a session of its own; groups of them."""

from __future__ import annotations

import collections
import datetime
import enum
import itertools
import math
import os
import secrets
import sys
import urllib.parse
from collections.abc import Sequence
from typing import Any, Protocol

from .. import _capturing, cuda
from .._convert import tensor
from .._core import ops
from .._session import Session, current_session, open_session
from ..futures import Future
from ._environment import variable, world_name

__all__ = [
    "GroupMember", "ProcessGroup", "ReduceOp", "Work", "destroy_process_group", "get_backend",
    "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size",
    "group", "init_process_group", "is_available", "is_backend_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "new_group",
    "set_timeout",
    "MeshGroups", "current_world", "found", "is_member", "meet", "rank_of", "replace_world", "site",
]  # fmt: skip

_BACKENDS = ("gloo", "nccl")
_PACKAGE = __name__.partition(".")[0]


class ReduceOp(enum.Enum):
    """How the tensors of the ranks become one."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class ProcessGroup:
    """Processes of the world, each with a rank. `init_process_group` and `new_group` make it."""

    def __init__(
        self,
        name: str,
        backend: str,
        ranks: Sequence[int],
        rank: int,
        timeout: float,
        session: Session | None,
    ) -> None:
        self._name, self._backend, self._timeout = name, backend, timeout
        self._ranks, self._rank, self._made = list(ranks), rank, 0
        self._barriers = 0  # with a timeout of their own
        self._session = session  # None: a group of one process, which tells no daemon
        self._number = 0  # of the group, in the session
        self._store: Any = None  # the world's: init_process_group was given it, or it is made when used
        self._where = ""  # of the world: init_method's address
        self._life = 0  # of the world: a number that only these processes have now
        self._posted: list[Any] = []  # receives that have not begun
        self._sent = False  # what the daemon may have kept for a rank
        self._mesh: MeshGroups | None = None  # of the mesh whose rank the session is
        self.calls = 0  # collectives that this rank has issued
        self.sent_to: collections.Counter[int] = collections.Counter()  # tensors, by rank in the group
        self.received_from: collections.Counter[int] = collections.Counter()  # -1: from any rank
        if session is not None:
            _capturing.refuse("make a group of processes")
            self.join()
            session._before_close.append(self._finish)
            with session.as_current():
                self._zero = tensor([0.0])  # an operand for what needs none

    def rank(self) -> int:
        """The rank of this process in the group."""
        return self._rank

    def size(self) -> int:
        """The number of processes."""
        return len(self._ranks)

    def name(self) -> str:
        """Its backend: "gloo" or "nccl"."""
        return self._backend

    def set_timeout(self, timeout: Any) -> None:
        """Of each later collective of this process: a timedelta or seconds. ValueError as new_group's."""
        if timeout is None:
            raise TypeError("timeout is a timedelta or seconds, not None")
        seconds = _seconds(timeout)
        if self._session is not None:
            _capturing.refuse("change the timeout of a group")
            self._tell(seconds)
        self._timeout = seconds

    def issue(self, name: str, x: Any, *attributes: Any, line: str | None = None) -> Any:
        """The result of the op: a collective or transfer of this group, whose other attributes are these.
        `line`: of the program, the one that runs where it is not given."""
        result = ops[name](x, self._number, *attributes, site() if line is None else line)

        def count() -> None:
            if name == "send_to":
                self.sent_to[attributes[0]] += 1
            elif name == "receive_from":
                self.received_from[attributes[0]] += 1
            elif name != "await_sends":
                self.calls += 1

        count()
        _capturing.on_call(count)
        return result

    def _part(
        self, lists: Sequence[list[int]], timeout: Any = None, backend: str | None = None
    ) -> ProcessGroup | None:
        """The group of those ranks of the world, among these lists, that has this process; None: none has.
        All processes of this group call it, in the same order."""
        self._made += 1
        mine = self._ranks[self._rank]
        for number, ranks in enumerate(lists):
            if mine in ranks:
                part = ProcessGroup(
                    f"{self._name} group {self._made}" + (f".{number}" if number else ""),
                    backend or self._backend,
                    ranks,
                    ranks.index(mine),
                    self._timeout if timeout is None else _seconds(timeout),
                    self._session if len(ranks) > 1 else None,
                )
                if self._mesh is not None:
                    self._mesh.add(part)
                return part
        return None

    def _for_barrier(self, timeout: Any) -> ProcessGroup:
        """The same ranks as another group, for one barrier. All processes of this group call it."""
        self._barriers += 1
        name = f"{self._name} barrier {self._barriers}"
        return ProcessGroup(name, self._backend, self._ranks, self._rank, _seconds(timeout), self._session)

    def _finish(self) -> None:
        """The session's later lines run when all that this rank has sent has been received."""
        if self._session is not None and self._sent and not self._session._core.over:
            self._sent = False
            _ = self.issue("await_sends", self._zero)

    def join(self) -> None:
        """This rank is in the group from now on."""
        if self._session is None:
            return
        self._number = next(_numbers)
        self._tell(self._timeout)

    def _tell(self, timeout: float) -> None:
        assert self._session is not None
        self._session._core.join(
            self._number, self._name, self._rank, len(self._ranks), int(timeout * 1000)
        )

    def leave(self) -> None:
        """This rank is in the group no longer. It can join anew."""
        number, self._number = self._number, 0
        if number and self._session is not None and not self._session._core.over:
            self._session._core.leave(number)
        self._posted.clear()
        self.sent_to.clear()
        self.received_from.clear()
        self.calls, self._sent = 0, False

    def _leave(self) -> None:
        session = self._session
        if session is None:
            return
        self._finish()
        self.leave()
        self._session = None
        if self._mesh is not None:
            self._mesh.remove(self)
        session._before_close.remove(self._finish)


class Work:
    """The handle that isend and a collective with async_op=True return.

    Later lines see the result without a wait, because the daemon runs what uses it when it is there. An
    error of the collective is raised where the program reads something, with the collective's line."""

    def __init__(self, results: Sequence[Any] = ()) -> None:
        self._results = list(results)

    def result(self) -> list[Any]:
        """The tensors that the collective writes."""
        return list(self._results)

    def get_future(self) -> Future[list[Any]]:
        """A Future of result(), which is done: reading one of the tensors waits."""
        future: Future[list[Any]] = Future()
        future.set_result(self.result())
        return future

    def wait(self, timeout: Any = None) -> bool:
        """True, at once: lines after it see the result."""
        return True

    def is_completed(self) -> bool:
        """True: lines after it see the result."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None: an error is raised where the program reads something."""


class MeshGroups(Protocol):
    """The groups of a mesh, whose ranks are sessions of this process."""

    def add(self, group: ProcessGroup) -> None:
        """A rank of the mesh is in this group from now on."""

    def remove(self, group: ProcessGroup) -> None:
        """A rank has left the group."""

    def meet(self, group: ProcessGroup) -> None:
        """A rank's barrier: it waits only where other threads issue the other ranks."""


class _World(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all processes; None before init_process_group."""
        return current_world()


class group(metaclass=_World):
    """`group.WORLD` is the group of all processes; None before init_process_group."""


class GroupMember(metaclass=_World):
    """`GroupMember.WORLD` is the group of all processes; others get NON_GROUP_MEMBER from new_group."""

    NON_GROUP_MEMBER = -100


_world: ProcessGroup | None = None  # of the process


def current_world() -> ProcessGroup | None:
    """The world of the current session, where that is a rank of a mesh; else the process's."""
    session = open_session()
    own: ProcessGroup | None = None if session is None else session._world
    return _world if own is None else own


_numbers = itertools.count(1)
_THIRTY_MINUTES = 1800.0
_ONE_YEAR = 365 * 86400.0  # the daemon's maximum


def is_available() -> bool:
    """True."""
    return True


def is_initialized() -> bool:
    """Has init_process_group been called, and not destroy_process_group since? True in the code of a rank
    of a mesh."""
    if _capturing.current is not None:
        _capturing.holds(("world",), current_world)
    return current_world() is not None


def is_backend_available(backend: str) -> bool:
    """ "gloo", and "nccl" where the daemon has GPUs."""
    name = backend.lower()
    return name == "gloo" or name == "nccl" and cuda.is_available()


def is_gloo_available() -> bool:
    """True."""
    return True


def is_nccl_available() -> bool:
    """Has the daemon GPUs?"""
    return is_backend_available("nccl")


def is_mpi_available() -> bool:
    """False."""
    return False


def is_torchelastic_launched() -> bool:
    """Was the program started by torchrun? It sets TORCHELASTIC_RUN_ID."""
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Makes the world of `world_size` processes, this one having `rank`, and waits for all of them. Both
    are given here, in the query of init_method ("tcp://host:port?rank=0&world_size=2"), or by the
    variables WORLD_SIZE and RANK as torchrun sets them; where neither is set, by those of mpirun or
    srun.

    The processes find each other on the daemon of their sessions, or on daemons that work together, and
    all have the same user there. Worlds of a user differ by group_name, and by `store`, or by init_method
    ("tcp://host:port", "file:///path"), or by MASTER_ADDR and MASTER_PORT ("env://", the default), or,
    where these are not set, by the job of mpirun or srun.
    No port is opened there. backend: "gloo" or "nccl", which make no
    difference. timeout: of each collective; a timedelta or seconds, 30 minutes by default. A collective
    that fails because a process is gone ends the world: call destroy_process_group and
    init_process_group again.

    In the code of a rank of a mesh (`connect_mesh`) the world is the mesh, and the call only checks a rank
    and a world_size that it is given.

    ValueError for a second call, an unknown backend or init_method, a store beside an init_method, or a
    rank outside the world; RankLostError where a process does not come."""
    global _world
    here = current_world()
    if here is not None and here._mesh is not None:
        if world_size not in (-1, here.size()) or rank not in (-1, here.rank()):
            raise ValueError(
                f"init_process_group: this is rank {here.rank()} of a mesh of {here.size()}, not rank "
                f"{rank} of {world_size}"
            )
        return
    if _world is not None:
        raise ValueError("trying to initialize the default process group twice!")
    name = (backend or "gloo").lower().rpartition(":")[2]
    if name not in _BACKENDS:
        raise ValueError(f"Invalid backend: {backend!r}; there are {', '.join(map(repr, _BACKENDS))}")
    url = urllib.parse.urlsplit(init_method or "")
    given = dict(urllib.parse.parse_qsl(url.query))
    size, place = _number("world_size", world_size, given), _number("rank", rank, given)
    if size < 1 or not 0 <= place < size:
        raise ValueError(
            f"init_process_group: rank {place} is not in a world of {size}: ranks begin with 0"
        )
    where = _address(store, init_method, group_name)
    title = urllib.parse.quote(f"{where} {group_name}".strip(), safe=":/ ")[:100]
    session = current_session() if size > 1 else None
    made = ProcessGroup(f"world {title}", name, range(size), place, _seconds(timeout), session)
    made._store, made._where = store, where
    if session is not None:
        try:
            made._life = meet(made, secrets.randbits(62) if place == 0 else 0)
        except BaseException:
            made._leave()
            raise
    _world = made


def _address(store: Any, init_method: str | None, group_name: str) -> str:
    """A text that is the same in all processes of the world, and differs from that of any other world."""
    from ._stores import Store

    if store is not None:
        if init_method is not None:
            raise ValueError("Cannot specify both init_method and store.")
        if not isinstance(store, Store):
            raise TypeError(f"init_process_group: store is a Store, not {type(store).__name__}")
        key = f"teletensor/world/{group_name}"
        return "store " + store.compare_set(key, "", secrets.token_hex(16)).decode()
    url = urllib.parse.urlsplit(init_method or "env://")
    if url.scheme not in ("tcp", "file", "env"):
        raise ValueError(f"init_process_group: init_method begins with tcp://, file:// or env://, "
                         f"not {init_method!r}")
    if url.netloc + url.path:
        return url.netloc + url.path
    return world_name()


def _seconds(timeout: Any) -> float:
    if timeout is None:
        return _THIRTY_MINUTES
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    if not 0 < seconds < math.inf:
        raise ValueError(f"timeout is more than 0 seconds, not {timeout}")
    return min(float(seconds), _ONE_YEAR)


def site() -> str:
    """The program's line that calls a function of the package, as errors on other ranks show it."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def meet(group: ProcessGroup, number: int = 0) -> int:
    """Waits until all processes of the group have come here; the sum of their numbers."""
    if group._session is None:
        return number
    _capturing.refuse("call a barrier, or make a group: these wait for the other processes")
    with group._session.as_current():
        return int(group.issue("all_reduce", tensor([number]), False).item())


def _number(name: str, value: int, query: dict[str, str]) -> int:
    if value != -1:
        return value
    found = query.get(name, variable(name.upper()))
    if found is None:
        raise ValueError(
            f"init_process_group: {name} is not given, and the environment variable {name.upper()} "
            "expected, but not set"
        )
    return int(found)


def destroy_process_group(group: Any = None) -> None:
    """Ends the world (without an argument, or given it), or a group of new_group: this process leaves it,
    once what it has sent is received. The world of a mesh ends with the mesh, not here."""
    global _world
    ended = found(group)
    if ended._mesh is not None and ended is current_world():
        return
    ended._leave()
    if ended is _world:
        _world = None


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Any:
    """A group of these ranks of the world, or of all; GroupMember.NON_GROUP_MEMBER where this process is
    not one of them. All processes of the world call it, in the same order. ValueError for ranks outside
    the world, a rank twice, no rank at all."""
    world = found(None)
    chosen = list(range(world.size())) if ranks is None else list(ranks)
    if not chosen:
        raise ValueError("a group has at least one rank: new_group of no ranks")
    for rank in chosen:
        if not isinstance(rank, int):
            raise TypeError(f"ranks of a group are integers, not {type(rank).__name__}")
    if any(not 0 <= rank < world.size() for rank in chosen):
        raise ValueError(
            f"the new group's rank should be within the world_size set by init_process_group: {chosen}"
        )
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"a rank is in a group once: {chosen}")
    if sort_ranks:
        chosen.sort()
    made = world._part([chosen], timeout, backend)
    return GroupMember.NON_GROUP_MEMBER if made is None else made


def set_timeout(timeout: Any, group: Any = None) -> None:
    """The timeout of later collectives of the world, or of a group of new_group: a timedelta or seconds.
    It is of this process; what has been issued keeps the earlier one. ValueError where the process is not
    in the group, and for a timeout that is not more than 0 seconds."""
    if not is_member(group):
        raise ValueError("Invalid process group specified")
    found(group).set_timeout(timeout)


def replace_world(made: ProcessGroup) -> ProcessGroup:
    """Makes a group of some ranks the world. This process leaves the former one."""
    global _world
    former = found(None)
    if former._mesh is not None:
        made._leave()
        raise ValueError("the world of a mesh's rank has all ranks of the mesh: it cannot shrink")
    made._ranks, made._where = list(range(made.size())), former._where
    made._life = meet(made, secrets.randbits(62) if made.rank() == 0 else 0)
    former._leave()
    _world = made
    return made


def found(group: Any) -> ProcessGroup:
    world = current_world()
    if world is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    if group is not None and not isinstance(group, ProcessGroup):
        raise TypeError(f"group is a ProcessGroup, not {type(group).__name__}")
    own: ProcessGroup = world if group is None else group
    if _capturing.current is not None:
        _capturing.holds(("world",), current_world)
        _capturing.holds(("group", own), lambda: own._session)  # None: it was left
    return own


def is_member(group: Any) -> bool:
    """Does a collective of that group do anything here?"""
    if group == GroupMember.NON_GROUP_MEMBER and is_initialized():
        return False
    return found(group) is not None


def get_rank(group: Any = None) -> int:
    """This process's rank, or -1 where it is not in the group. ValueError before init_process_group."""
    return found(group).rank() if is_member(group) else -1


def get_world_size(group: Any = None) -> int:
    """The number of processes, or -1 where this one is not in the group. ValueError before
    init_process_group."""
    return found(group).size() if is_member(group) else -1


def get_backend(group: Any = None) -> str:
    """ "gloo" or "nccl", as init_process_group was told."""
    return found(group).name()


def get_process_group_ranks(group: Any) -> list[int]:
    """The ranks in the world of the group's processes, in the order of their ranks in the group."""
    return list(found(group)._ranks)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The rank in the world of a rank of the group. ValueError for a rank that the group has not."""
    ranks = found(group)._ranks
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"group rank {group_rank} is not in a group of {len(ranks)} processes")
    return ranks[group_rank]


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in the group of a rank of the world. ValueError for a rank that is not in the group."""
    ranks = found(group)._ranks
    if global_rank not in ranks:
        raise ValueError(f"global rank {global_rank} is not in the group of ranks {ranks}")
    return ranks.index(global_rank)


def rank_of(group: Any, what: str, rank: int | None, group_rank: int | None) -> int:
    """The rank in the group that a collective names by its rank in the world or in the group."""
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{what} is given either as {what}, by its rank in the world, or as group_{what}")
    if group_rank is not None:
        get_global_rank(group, group_rank)
        return group_rank
    assert rank is not None
    return get_group_rank(group, rank)
