"""The world, that is the processes that compute together, each with a session of its own; and groups of
them."""

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
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from .. import cuda
from .._core import ops
from .._script import capturing as _capturing
from .._sessions.session import Session, current_session, open_session
from .._tensors.convert import tensor
from ..futures import Future
from ._environment import variable, world_name

__all__ = [
    "GroupMember", "ProcessGroup", "ReduceOp", "Work", "destroy_process_group", "get_backend",
    "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size",
    "group", "init_process_group", "is_available", "is_backend_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "members",
    "new_group", "set_timeout",
    "MeshGroups", "current_world", "found", "greet", "is_member", "meet", "rank_of", "replace_world",
    "site",
]  # fmt: skip

_BACKENDS = ("gloo", "nccl")
_PACKAGE = __name__.partition(".")[0]
_REPLICATED = ("all_reduce", "all_combine", "all_gather", "broadcast_from")
_CALLS = {"reduce_to": "reduce", "send_to": "send", "receive_from": "recv",
          "all_to_all": "all_to_all, gather and scatter"}  # fmt: skip


class ReduceOp(enum.Enum):
    """How the tensors of the ranks are reduced to one."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's name of the enumeration


class ProcessGroup:
    """A group of processes of the world, each with a rank. Created by `init_process_group` and
    `new_group`."""

    def __init__(
        self,
        name: str,
        backend: str,
        ranks: Sequence[int],
        rank: int,
        timeout: float,
        session: Session | None,
        elastic: bool = False,
    ) -> None:
        self._elastic = elastic
        self._lost: dict[int, str] = {}  # why the ranks without which the group continues are lost
        self._following: ProcessGroup | None = None  # its next incarnation, which waits for the lost ranks
        # the ranks that have the world's state, which this rank receives when it calls admit; none if this
        # rank has it
        self._holders: list[int] = []
        self._name, self._backend, self._timeout = name, backend, timeout
        self._ranks, self._rank, self._made = list(ranks), rank, 0
        self._barriers = 0  # the number of barriers with a timeout of their own
        self._session = session  # None: a group of one process, of which no daemon is told
        self._number = 0  # the number of the group in the session
        # the store of the world: given to init_process_group, or created at its first use
        self._store: Any = None
        self._where = ""  # for the world, the address in init_method
        self._life = 0  # for the world, a number that only the processes of its present incarnation know
        self._posted: list[Any] = []  # receives that have not begun
        self._sent = False  # whether the daemon may hold data that this rank has sent
        self._left = False  # by destroy_process_group
        self._parts: list[ProcessGroup] = []  # the groups of some of its ranks that this process is in
        self._mesh: MeshGroups | None = None  # the groups of the mesh if the session is a rank of one
        self.calls = 0  # the number of collectives that this rank has issued
        # the number of tensors sent, by the receiver's rank in the group
        self.sent_to: collections.Counter[int] = collections.Counter()
        # the number of receives, by the sender's rank in the group (-1: any rank)
        self.received_from: collections.Counter[int] = collections.Counter()
        if session is not None:
            _capturing.refuse("make a group of processes")
            self.join()
            session._before_close.append(self._finish)
            with session.as_current():
                self._zero = tensor([0.0])  # a placeholder for operations that need no operand

    def rank(self) -> int:
        """The rank of this process in the group."""
        return self._rank

    def size(self) -> int:
        """The number of processes."""
        return len(self._ranks)

    def name(self) -> str:
        """The backend: "gloo" or "nccl"."""
        return self._backend

    @property
    def group_name(self) -> str:
        """The name of the group, which is the same in all of its processes."""
        return self._name

    def __deepcopy__(self, memo: Any) -> ProcessGroup:
        """Returns the group itself, which a copy of a module uses too."""
        return self

    @property
    def elastic(self) -> bool:
        """Whether the group continues without ranks that are lost."""
        return self._elastic

    @property
    def enters(self) -> bool:
        """Whether this rank has come back to a world that runs, and waits for its state."""
        return bool(self._holders)

    @property
    def incarnation(self) -> int:
        """A number that changes when lost ranks have joined the group again."""
        return self._number

    def members(self) -> list[int]:
        """The ranks in the world of the processes in the group that are not lost: of those with which the
        collectives have been computed that this process has issued, for which it waits."""
        if self._elastic and self._session is not None:
            _capturing.refuse("ask for the members of a group")
            self._session.synchronize()
            _note_lost(self._session)
        return [each for rank, each in enumerate(self._ranks) if rank not in self._lost]

    def _lose(self, rank: int, why: str) -> None:
        if rank not in self._lost:
            self._lost[rank] = why
            left = [each for number, each in enumerate(self._ranks) if number not in self._lost]
            warnings.warn(
                f'group "{self._name}": rank {self._ranks[rank]} {why}; the group continues with the ranks '
                f"{', '.join(map(str, left))}",
                stacklevel=2,
            )

    def set_timeout(self, timeout: Any) -> None:
        """Sets the timeout of later collectives of this process: a timedelta or seconds. Raises
        ValueError as new_group does."""
        if timeout is None:
            raise TypeError("timeout must be a timedelta or a number of seconds, not None")
        seconds = _seconds(timeout)
        if self._session is not None:
            _capturing.refuse("change the timeout of a group")
            self._tell(seconds)
        self._timeout = seconds

    def issue(self, name: str, x: Any, *attributes: Any, line: str | None = None) -> Any:
        """Issues an op, that is a collective or a transfer of this group, with these further attributes;
        returns its result. `line` is the source line to report, by default the line of the program that is
        running. RuntimeError for an op that an elastic group does not have, and for a rank that has not
        received the state of a world to which it has come back."""
        if self._holders:
            raise RuntimeError(
                f"rank {self._rank} has come back to a world that runs: teletensor.distributed.admit must "
                f"be its first call, before {_CALLS.get(name, name)}"
            )
        if self._elastic and name not in _REPLICATED:
            raise RuntimeError(
                "a group with elastic=True has only all_reduce, all_gather, broadcast and barrier, whose "
                f"results are equal on all ranks, and not {_CALLS.get(name, name)}"
            )
        result = ops[name](x, self._number, *attributes, site() if line is None else line)

        def count() -> None:
            if name == "send_to":
                self.sent_to[attributes[0]] += 1
            elif name == "receive_from":
                self.received_from[attributes[0]] += 1
            elif name != "await_sends":
                self.calls += 1
            if self._elastic and self._session is not None:
                _note_lost(self._session)

        count()
        _capturing.on_call(count)
        return result

    def _part(
        self,
        lists: Sequence[list[int]],
        timeout: Any = None,
        backend: str | None = None,
        elastic: bool = False,
    ) -> ProcessGroup | None:
        """Creates the group of the list of ranks that contains this process; returns None if no list does.
        All processes of this group call it, in the same order."""
        if self._holders:
            raise RuntimeError(
                "this rank has come back to a world that runs: call teletensor.distributed.admit before a "
                "group is made of the world"
            )
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
                    elastic,
                )
                if self._mesh is not None:
                    self._mesh.add(part)
                self._parts = [each for each in self._parts if not each._left] + [part]
                return part
        return None

    def _for_barrier(self, timeout: Any) -> ProcessGroup:
        """Another group of the same ranks, for one barrier. All processes of this group call it."""
        self._barriers += 1
        name = f"{self._name} barrier {self._barriers}"
        return ProcessGroup(
            name, self._backend, self._ranks, self._rank, _seconds(timeout), self._session, self._elastic
        )

    def _finish(self) -> None:
        """Makes later commands of the session wait until everything that this rank has sent has been
        received."""
        if self._elastic:
            return  # it has no sends
        if self._session is not None and self._sent and not self._session._core.over:
            self._sent = False
            _ = self.issue("await_sends", self._zero)

    def join(self) -> None:
        """Adds this rank to the group."""
        if self._session is None:
            return
        self._number = next(_numbers)
        if self._elastic:
            _elastic_groups[self._number] = self
        self._tell(self._timeout)

    def _tell(self, timeout: float) -> None:
        assert self._session is not None
        self._session._core.join(
            self._number, self._name, self._rank, len(self._ranks), int(timeout * 1000), self._elastic
        )

    def leave(self) -> None:
        """Removes this rank from the group. It can join again."""
        number, self._number = self._number, 0
        if number and self._session is not None and not self._session._core.over:
            self._session._core.leave(number)
        self._posted.clear()
        self.sent_to.clear()
        self.received_from.clear()
        self.calls, self._sent = 0, False

    def _leave_all(self) -> None:
        """Leaves this group after all groups that were made of it."""
        for part in reversed(self._parts):
            part._leave_all()
        if not self._left:
            self._leave()

    def _follow(self) -> ProcessGroup:
        """This rank of the group's next incarnation, which forms when all ranks have joined it. The rank
        joins it again if the incarnation that it has joined is over."""
        if self._following is None:
            self._following = ProcessGroup(
                self._name, self._backend, self._ranks, self._rank, self._timeout, self._session, True
            )
        else:
            self._following._tell(self._timeout)
        return self._following

    def _drop_following(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following._leave()

    def _become_following(self) -> None:
        """Makes this group its next incarnation, and leaves the present one."""
        assert self._following is not None and self._session is not None
        following, self._following = self._following, None
        # the other object then leaves the present incarnation
        self._number, following._number = following._number, self._number
        self._lost, following._lost = following._lost, self._lost
        self._life = following._life
        _elastic_groups[self._number], _elastic_groups[following._number] = self, following
        following._leave()

    def _leave(self) -> None:
        self._drop_following()
        self._left = True
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
    """The handle that isend, and a collective with async_op=True, return.

    Later lines see the result without waiting, because the daemon runs an instruction that uses the result
    when the result is there. An error of the collective is raised when the program reads a value, with the
    line of the collective."""

    def __init__(self, results: Sequence[Any] = ()) -> None:
        self._results = list(results)

    def result(self) -> list[Any]:
        """The tensors to which the collective writes."""
        return list(self._results)

    def get_future(self) -> Future[list[Any]]:
        """A completed Future of result(): only reading one of the tensors waits."""
        future: Future[list[Any]] = Future()
        future.set_result(self.result())
        return future

    def wait(self, timeout: Any = None) -> bool:
        """Returns True at once: later lines see the result. The timeout has no effect; that of the group
        bounds the collective."""
        return True

    def is_completed(self) -> bool:
        """Returns True: later lines see the result."""
        return True

    def is_success(self) -> bool:
        """Returns True."""
        return True

    def exception(self) -> None:
        """Returns None: an error is raised when the program reads a value."""


class MeshGroups(Protocol):
    """The groups of a mesh, whose ranks are sessions of this process."""

    def add(self, group: ProcessGroup) -> None:
        """Registers a rank of the mesh as a member of this group."""

    def remove(self, group: ProcessGroup) -> None:
        """Unregisters a rank that has left the group."""

    def meet(self, group: ProcessGroup) -> None:
        """The barrier of one rank: it waits only if other threads issue the other ranks."""


class _World(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all processes; None before init_process_group."""
        return current_world()


class group(metaclass=_World):
    """`group.WORLD` is the group of all processes; None before init_process_group."""


class GroupMember(metaclass=_World):
    """`GroupMember.WORLD` is the group of all processes; new_group returns NON_GROUP_MEMBER to processes
    that are not in the group."""

    NON_GROUP_MEMBER = -100


_world: ProcessGroup | None = None  # the world of the process


def current_world() -> ProcessGroup | None:
    """The world of the current session if that is a rank of a mesh, and otherwise that of the process."""
    session = open_session()
    own: ProcessGroup | None = None if session is None else session._world
    return _world if own is None else own


_numbers = itertools.count(1)
_elastic_groups: weakref.WeakValueDictionary[int, ProcessGroup] = weakref.WeakValueDictionary()
_THIRTY_MINUTES = 1800.0
_ONE_YEAR = 365 * 86400.0  # the daemon's maximum


def _note_lost(session: Session) -> None:
    """Tells elastic groups which of their ranks the daemon has reported as lost."""
    for number, rank, why in session._core.take_lost_ranks():
        group = _elastic_groups.get(number)
        if group is not None:
            group._lose(rank, why)


def is_available() -> bool:
    """Returns True."""
    return True


def is_initialized() -> bool:
    """Returns whether init_process_group has been called, without a later destroy_process_group. True in
    the code of a rank of a mesh."""
    if _capturing.current is not None:
        _capturing.holds(("world",), current_world)
    return current_world() is not None


def is_backend_available(backend: str) -> bool:
    """Returns True for "gloo", and for "nccl" if the daemon has GPUs."""
    name = backend.lower()
    return name == "gloo" or name == "nccl" and cuda.is_available()


def is_gloo_available() -> bool:
    """Returns True."""
    return True


def is_nccl_available() -> bool:
    """Returns whether the daemon has GPUs."""
    return is_backend_available("nccl")


def is_mpi_available() -> bool:
    """Returns False."""
    return False


def is_torchelastic_launched() -> bool:
    """Returns whether the program was started by torchrun, which sets TORCHELASTIC_RUN_ID."""
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
    elastic: bool = False,
) -> None:
    """Creates the world of `world_size` processes, in which this process has the rank `rank`, and waits for
    all of them. Both are given as arguments, in the query of init_method
    ("tcp://host:port?rank=0&world_size=2"), or by the variables WORLD_SIZE and RANK as torchrun sets them;
    if neither is set, by the variables of mpirun or srun.

    The processes must use the same daemon, or daemons that are connected to each other, as the same user.
    The worlds of a user are distinguished by group_name, and by `store`, or by init_method
    ("tcp://host:port", "file:///path"), or by MASTER_ADDR and MASTER_PORT ("env://", the default), or, if
    these are not set, by the job of mpirun or srun. No port is opened at such an address. backend: "gloo"
    or "nccl", without any difference. timeout: for each collective; a timedelta or seconds, 30 minutes by
    default. A collective that fails because a process has ended also ends the world: call
    destroy_process_group and then init_process_group again.

    With `elastic`, which all processes give, the world continues when a process ends, is killed or is
    interrupted: later collectives are those of the remaining processes, and averages divide by their
    number. Ranks and world_size stay the same; `members` lists the remaining ranks, and a warning names the
    lost one. Such a world has only all_reduce, all_gather, broadcast and barrier. A process that is started
    under a lost rank waits here until the others call `admit`, and then calls `admit` as well.

    In the code of a rank of a mesh (`connect_mesh`) the world is the mesh, and the call only checks a given
    rank and world_size.

    ValueError for a second call, an unknown backend or init_method, a store together with an init_method,
    or a rank outside of the world; RankLostError if a process does not arrive."""
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
    made = ProcessGroup(f"world {title}", name, range(size), place, _seconds(timeout), session, elastic)
    made._store, made._where = store, where
    if session is not None:
        try:
            if elastic:
                made._life, made._holders = greet(made, secrets.randbits(62), False)
            else:
                made._life = meet(made, secrets.randbits(62) if place == 0 else 0)
        except BaseException:
            made._leave()
            raise
    _world = made


def _address(store: Any, init_method: str | None, group_name: str) -> str:
    """A text that is the same in all processes of the world, and differs from that of any other world."""
    from ._stores.stores import Store

    if store is not None:
        if init_method is not None:
            raise ValueError("Cannot specify both init_method and store.")
        if not isinstance(store, Store):
            raise TypeError(f"init_process_group: store must be a Store, not {type(store).__name__}")
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
        raise ValueError(f"timeout must be above 0 seconds, not {timeout}")
    return min(float(seconds), _ONE_YEAR)


def site() -> str:
    """The source line of the program that calls a function of this package, for error messages on other
    ranks."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def meet(group: ProcessGroup, number: int = 0) -> int:
    """Waits until all processes of the group have called it; returns the sum of their numbers."""
    if group._session is None:
        return number
    _capturing.refuse("call a barrier, or make a group: these wait for the other processes")
    with group._session.as_current():
        return int(group.issue("all_reduce", tensor([number]), False).item())


def greet(group: ProcessGroup, life: int, holds: bool) -> tuple[int, list[int]]:
    """Waits until all processes of the elastic group have called it. Returns the number `life` of the
    lowest rank with the state of the world, or of the lowest rank if no rank `holds` it; and the ranks that
    do."""
    assert group._session is not None
    with group._session.as_current():
        rows = group.issue("all_gather", tensor([1 + int(holds), life]), group.size()).tolist()
    holders = [rank for rank, (kind, _) in enumerate(rows) if kind == 2]
    first = holders[0] if holders else next(rank for rank, (kind, _) in enumerate(rows) if kind)
    return int(rows[first][1]), holders


def _number(name: str, value: int, query: dict[str, str]) -> int:
    if value != -1:
        return value
    found = query.get(name, variable(name.upper()))
    if found is None:
        raise ValueError(
            f"init_process_group: {name} is not given, and the environment variable {name.upper()} "
            "expected, but not set"
        )
    try:
        return int(found)
    except ValueError:
        raise ValueError(f"init_process_group: {name.upper()} must be an integer, not {found!r}") from None


def destroy_process_group(group: Any = None) -> None:
    """Ends the world (without an argument, or if it is given) with all groups that were made of it, or
    makes this process leave a group of new_group, after everything that it has sent has been received. The
    world of a mesh ends with the mesh, and not by this call."""
    global _world
    ended = found(group)
    if ended._mesh is not None and ended is current_world():
        return
    if ended is _world:
        ended._leave_all()
        _world = None
    else:
        ended._leave()


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
    elastic: bool = False,
) -> Any:
    """Creates a group of these ranks of the world, or of all ranks; returns GroupMember.NON_GROUP_MEMBER if
    this process is not one of them. All processes of the world call it, in the same order. `elastic` is
    that of init_process_group. ValueError for ranks outside of the world, a rank that is given twice, or no
    ranks."""
    world = found(None)
    chosen = list(range(world.size())) if ranks is None else list(ranks)
    if not chosen:
        raise ValueError("new_group: ranks is empty; a group has at least one rank")
    for rank in chosen:
        if not isinstance(rank, int):
            raise TypeError(f"ranks of a group must be integers, not {type(rank).__name__}")
    if any(not 0 <= rank < world.size() for rank in chosen):
        raise ValueError(
            f"the new group's rank should be within the world_size set by init_process_group: {chosen}"
        )
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"new_group: a rank occurs more than once in {chosen}")
    if sort_ranks:
        chosen.sort()
    made = world._part([chosen], timeout, backend, elastic)
    return GroupMember.NON_GROUP_MEMBER if made is None else made


def members(group: Any = None) -> list[int]:
    """The ranks in the world of the processes in the world, or in a group, that are not lost, ascending by
    their ranks in the group. All ranks if the group is not elastic. Waits for the collectives that this
    process has issued, because the answer is that of the last one. ValueError before
    init_process_group."""
    return found(group).members()


def set_timeout(timeout: Any, group: Any = None) -> None:
    """The timeout of later collectives of the world, or of a group of new_group: a timedelta or seconds.
    It is of this process; what has been issued keeps the earlier one. ValueError where the process is not
    in the group, and for a timeout that is not more than 0 seconds."""
    if not is_member(group):
        raise ValueError("Invalid process group specified")
    found(group).set_timeout(timeout)


def replace_world(made: ProcessGroup) -> ProcessGroup:
    """Makes a group of some ranks the world. This process leaves the previous world."""
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
        raise TypeError(f"group must be a ProcessGroup, not {type(group).__name__}")
    own: ProcessGroup = world if group is None else group
    if own._left:
        raise ValueError("Invalid process group specified or has been destroyed.")
    if _capturing.current is not None:
        _capturing.holds(("world",), current_world)
        # the session is None if the process has left the group
        _capturing.holds(("group", own), lambda: (own._session, own._number))
    return own


def is_member(group: Any) -> bool:
    """Returns whether a collective of that group does anything in this process."""
    if group == GroupMember.NON_GROUP_MEMBER and is_initialized():
        return False
    return found(group) is not None


def get_rank(group: Any = None) -> int:
    """The rank of this process, or -1 if it is not in the group. ValueError before init_process_group."""
    return found(group).rank() if is_member(group) else -1


def get_world_size(group: Any = None) -> int:
    """The number of processes, or -1 if this process is not in the group. ValueError before
    init_process_group."""
    return found(group).size() if is_member(group) else -1


def get_backend(group: Any = None) -> str:
    """"gloo" or "nccl", as given to init_process_group."""
    return found(group).name()


def get_process_group_ranks(group: Any) -> list[int]:
    """The ranks in the world of the processes in the group, in the order of their ranks in the group."""
    return list(found(group)._ranks)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The rank in the world of a rank of the group. ValueError for a rank that is not in the group."""
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
    """The rank in the group of the rank that is given to a collective, either as a rank in the world or as
    one in the group."""
    if (rank is None) == (group_rank is None):
        raise ValueError(f"{what} is given either as {what}, by its rank in the world, or as group_{what}")
    if group_rank is not None:
        get_global_rank(group, group_rank)
        return group_rank
    assert rank is not None
    return get_group_rank(group, rank)
