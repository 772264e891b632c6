"""Mesh: several sessions as the ranks of one group, driven by one program."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from ... import _core
from ..._core import Tensor, described
from ..._sessions.errors import RankLostError, SessionLostError, TeletensorError
from ..._sessions.session import Session, connect
from ..._tensors.convert import tensor
from .._group import ProcessGroup, _seconds
from .._stores.stores import HashStore
from ._compiled import MeshCompiled
from ._copies import copied, replicated
from ._groups import Groups
from ._per_rank import PerRank, of_rank
from ._rank import Rank, current_rank, named
from ._threads import in_threads

__all__ = ["Mesh", "connect_mesh"]

_MEET_SECONDS = 30.0  # seconds that the daemons of a new mesh have to find each other
# matches ADDRESS/DEVICE; the "/" before the device must not be that of "tls://"
_DEVICE = re.compile(r"(.*[^/])/(cpu|(?:cuda|sim):\d+)")


class Mesh:
    """Several sessions on one or several daemons, each of which is a rank, driven by one program. Created
    by `connect_mesh`.

    `mesh[i]` is rank i (a `Rank`), and `mesh["dp"]` the groups along that dimension: a PerRank of
    `device_mesh.DeviceMesh`. `len` and iteration are over the ranks. `with mesh:` closes it."""

    def __init__(
        self,
        sessions: Sequence[Session],
        devices: Sequence[_core.device],
        names: tuple[str, ...],
        shape: tuple[int, ...],
        name: str,
        timeout: float,
    ) -> None:
        self.names, self.shape, self.name = names, shape, name
        self._ranks = [Rank(self, i, *each) for i, each in enumerate(zip(sessions, devices, strict=True))]
        self._closed = self._dropped = False
        self._groups = Groups()
        self._timeout = timeout
        # A named mesh has the same group name in each program: a rank that joins the group again ends the
        # operations that an earlier program has left unfinished in it.
        title = f"mesh {name or secrets.token_hex(8)}"
        worlds = [self._group(title, rank, timeout) for rank in self]
        for rank in self:
            if rank.session.taken_over:
                rank.session.clear_errors()
        self._meet(title)
        store = HashStore()
        for rank, world in zip(self, worlds, strict=True):
            world._store = store
            rank.session._world = world
            self._groups.add(world)
            self._groups.watch(rank.session)
        self._dimensions: PerRank | None = None

    def _group(self, title: str, rank: Rank, timeout: float) -> ProcessGroup:
        session = rank.session if len(self) > 1 else None
        return ProcessGroup(title, "gloo", range(len(self)), rank.index, timeout, session)

    def _meet(self, title: str) -> None:
        """RankLostError if the daemons are not connected to each other."""
        if len(self) == 1:
            return
        groups = [self._group(f"{title} meets", rank, _MEET_SECONDS) for rank in self]
        sums = []
        for group, rank in zip(groups, self, strict=True):
            with rank.session.as_current():
                sums.append(group.issue("all_reduce", group._zero, False))
        try:
            for each in sums:
                each.item()
        except RankLostError as error:
            raise RankLostError(
                f"{error}; the ranks of a mesh must have one user, and their daemons must know "
                "each other (--peers)"
            ) from None
        finally:
            for group in groups:
                group._leave()

    # ---- the ranks

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    @overload
    def __getitem__(self, key: int) -> Rank: ...
    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> PerRank: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (str, tuple)):
            return PerRank(self, [each[key] for each in self.device_mesh])
        return self._ranks[operator.index(key)]

    @property
    def device_mesh(self) -> PerRank:
        """A `device_mesh.DeviceMesh` on each rank, with the shape and names of the mesh."""
        if self._dimensions is None:
            from ..device_mesh import init_device_mesh

            self._dimensions = self._each(
                lambda index: init_device_mesh(
                    self[index].device.type, self.shape, mesh_dim_names=self.names
                )
            )
        return self._dimensions

    def _title(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True))
        return f"mesh {self.name!r} ({sizes})" if self.name else f"mesh ({sizes})"

    def __repr__(self) -> str:
        daemons = list(dict.fromkeys(rank.session.address for rank in self))
        state = "closed" if self._closed else f"{len(self)} ranks on {', '.join(daemons)}"
        return f"<{self._title()}, {state}>"

    @property
    def taken_over(self) -> bool:
        """Returns whether all sessions of the mesh existed already and were taken over from an earlier
        program."""
        return all(rank.session.taken_over for rank in self)

    # ---- running code

    def run(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> PerRank:
        """Calls f once for each rank in turn, as the code of that rank: tensors that it creates belong to
        the rank, and collectives are called by the rank. Nothing waits; the daemons compute in parallel.
        Each rank gets its own element of every PerRank among the arguments. Returns a PerRank of the
        results.

        A line of f that waits for a value after a collective that later ranks have not issued yet is
        refused (RuntimeError): read the value after run(), or use spawn(). An error of f is raised with its
        rank; collectives that not all ranks have issued then end with RankLostError."""
        return self._each(lambda index: f(*of_rank(args, index), **of_rank(kwargs, index)))

    def _each(self, f: Callable[[int], Any]) -> PerRank:
        self._check()
        results = []
        with self._together():
            for rank in self:
                try:
                    with rank.as_current():
                        results.append(f(rank.index))
                except Exception as error:
                    self._raised(error, rank)
                    raise
        return PerRank(self, results)

    def _raised(self, error: Exception, rank: Rank) -> None:
        """Adds the rank to an error, and clears the errors of other ranks, because one error of a rank may
        cause late errors in all."""
        named(error, rank)
        if not isinstance(error, SessionLostError) and self._groups.even():
            for each in self:
                with contextlib.suppress(SessionLostError):
                    each.session.clear_errors()

    def spawn(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> PerRank:
        """Calls f on each rank in a separate thread, like a separate program: lines of f may wait for other
        ranks. Each rank gets its own element of every PerRank among the arguments. Returns a PerRank of the
        results when all calls have ended.

        The first error of a rank is raised, with the rank; the remaining ranks are stopped, and their
        queued commands are cancelled. NotImplementedError for ranks on different devices."""
        self._check()
        devices = {str(rank.device): rank.device for rank in self}
        if len(devices) > 1:  # the default device is the same in all threads
            raise NotImplementedError(
                f"mesh.spawn: the ranks are on {', '.join(devices)}: it needs them on one device, and "
                "mesh.run does not"
            )
        with self._together(), self._groups.during_threads(), contextlib.ExitStack() as stack:
            for device in devices.values():
                if device.type != "cpu":
                    with self[0].session.as_current():  # the session whose daemon has the device
                        stack.enter_context(device)
            return PerRank(self, in_threads(self, f, args, kwargs, self._stop))

    def _stop(self) -> None:
        """Ends everything for which the threads wait."""
        self._drop()
        self._groups.leave()

    def compile(self, function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
        """Returns a function that each rank runs as a captured program (`teletensor.compile`). If it is
        called outside of a rank's code it runs on all ranks, as run() does; `repeat(n, ...)` runs it n
        times. Also a decorator. The function must not read values, and the modules that it uses are
        PerRank."""
        if function is None:
            return functools.partial(self.compile, name=name)
        return MeshCompiled(self, function, name)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """A context that, after an exception in it, ends the collectives that not all ranks have issued."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self._drop()
            if current_rank(self) is None and (self._dropped or not self._groups.even()):
                self._begin_again()
            raise

    # ---- tensors and modules

    def replicate(self, *values: Any) -> Any:
        """Returns a PerRank of copies of a tensor, a module, an optimizer, or of a tuple of these; for
        several arguments, a tuple of PerRank. The tensors are sent to rank 0 if they are not there, and
        from rank 0 to all ranks through the daemons. Rank 0 has the object itself if its tensors are there.
        If objects share a tensor, as a module and its optimizer do, the copies on each rank share it
        too."""
        self._check()
        with self._together():
            if len(values) == 1:
                return replicated(self, values[0])
            each = replicated(self, values)
        return tuple(PerRank(self, [own[i] for own in each]) for i in range(len(values)))

    def shard(self, value: Any, dim: int = 0) -> Any:
        """Returns a PerRank of the parts along `dim` of a tensor or NumPy array, whose size in that
        dimension must be a multiple of the number of ranks (ValueError); for a tuple or list, returns a
        tuple of PerRank."""
        self._check()
        if isinstance(value, (tuple, list)):
            return tuple(self.shard(each, dim) for each in value)
        if not len(getattr(value, "shape", ())):
            raise TypeError(
                f"shard: expects a tensor or array with a dimension to divide, not {described(value)}; "
                "replicate() gives each rank the whole value"
            )
        size = value.shape[dim]
        if size % len(self):
            raise ValueError(
                f"shard: {size} elements of dimension {dim} do not split equally for {len(self)} ranks"
            )
        part = size // len(self)
        where = [slice(None)] * (dim % len(value.shape))
        parts = [value[(*where, slice(i * part, (i + 1) * part))] for i in range(len(self))]
        with self._together():
            return PerRank(
                self, [self._placed(each, rank) for each, rank in zip(parts, self, strict=True)]
            )

    def _placed(self, value: Any, rank: Rank) -> Tensor:
        if isinstance(value, Tensor):
            found: Tensor = copied(value.detach(), rank)
            return found
        with rank.as_current():
            return tensor(value, device=rank.device)

    def keep(self, name: str, value: Any) -> None:
        """Calls Session.keep on each rank, with the rank's own element of a PerRank, for the next program
        that connects by the mesh's name."""
        self._each(lambda index: self[index].session.keep(name, of_rank(value, index)))

    def kept(self) -> PerRank:
        """A PerRank of the tensors that the ranks keep, by name: Session.kept."""
        return PerRank(self, [rank.session.kept() for rank in self])

    # ---- all sessions together

    def synchronize(self) -> None:
        """Waits until everything that was issued on all ranks has run. The first late error is raised, with
        its rank; all further ones are cleared."""
        self._check()
        for rank in self:
            try:
                rank.session.synchronize()
            except Exception as error:
                self._raised(error, rank)
                raise

    def cancel(self) -> None:
        """Cancels the queued commands of all ranks: Session.cancel on each. Tensors keep their last values,
        and the groups of the mesh are created again."""
        self._check()
        self._drop()
        self._begin_again()

    def _drop(self) -> None:
        self._dropped = True
        for rank in self:
            with contextlib.suppress(TeletensorError):
                rank.session.cancel()

    def begin_again(self) -> None:
        """Ends the groups of the mesh, with collectives that still wait, and creates them again; call it
        after a RankLostError. Late errors of the ranks are cleared, and tensors are not changed."""
        self._check()
        self._begin_again()

    def _begin_again(self) -> None:
        self._dropped = True
        with self._groups.during_threads():
            self._groups.begin_again()
            for rank in self:
                with contextlib.suppress(SessionLostError):
                    rank.session.clear_errors()
        self._dropped = False

    def _check(self) -> None:
        if self._closed:
            raise SessionLostError(f"{self._title()} is closed", "closed")
        # an exception has interrupted the previous _begin_again()
        if self._dropped and current_rank(self) is None:
            self._begin_again()

    def close(self) -> None:
        """Ends all sessions. Raises the first late error that has not been raised yet."""
        if self._closed:
            return
        self._closed = True
        errors: list[BaseException] = []
        # A rank that leaves ends the transfers of other ranks whose data it has not received: so all
        # transfers are completed first, if that is possible.
        whole = not self._dropped and self._groups.even() and self._groups.received()
        with self._groups.during_threads():
            if whole:
                self._groups.finish()
                self._of_all(lambda rank: rank.session.synchronize(), errors)
            self._groups.end()
            for rank in self:
                rank.session._world = None
            self._of_all(lambda rank: rank.session.close(), errors)
        if errors:
            raise errors[0]

    def _of_all(self, action: Callable[[Rank], object], errors: list[BaseException]) -> None:
        for rank in self:
            try:
                action(rank)
            except SessionLostError:
                pass
            except Exception as error:
                named(error, rank)
                errors.append(error)

    def detach(self) -> None:
        """Leaves all sessions on their daemons, for a later program that connects by the mesh's name."""
        if self._closed:
            return
        self._closed = True
        for rank in self:
            rank.session._world = None
            rank.session.detach()

    def __enter__(self) -> Mesh:
        self._check()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Exception):
            self._drop()
            self.close()


def connect_mesh(
    addresses: Sequence[str],
    names: Sequence[str] = ("dp",),
    shape: Sequence[int] | None = None,
    name: str | None = None,
    *,
    token: str | None = None,
    memory: int = 0,
    ca: str | os.PathLike[str] | None = None,
    cert: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    timeout: Any = None,
) -> Mesh:
    """Opens one session for each address, as the ranks of one group that this program drives.

    An address has the form for `connect`, followed by a slash and a device if the rank's tensors should not
    be on the CPU: "box2:7420/cuda:1". It may occur several times, for several ranks on one daemon.
    Different daemons must be connected to each other (docs/distributed.md). `names` are the names of the
    mesh's dimensions and `shape` their sizes, whose product is the number of ranks; for one dimension it
    can be left out.

    `name`: if this user has a mesh of this name on these daemons, its sessions are taken over, and the
    tensors that they keep are in `Mesh.kept()`. A mesh with a name outlives its program; `Mesh.close` ends
    it. `token`, `memory`, `ca` and `cert` are those of `connect`, the same for all sessions. `timeout`: for
    each collective, a timedelta or seconds, 30 minutes by default.

    ValueError for a shape that does not fit, the errors of `connect`, and RankLostError if daemons are not
    connected to each other."""
    if isinstance(addresses, str) or not addresses:
        raise ValueError("connect_mesh: addresses must be a list of one address for each rank")
    names = (names,) if isinstance(names, str) else tuple(names)
    sizes = (len(addresses),) if shape is None and len(names) == 1 else tuple(shape or ())
    if len(sizes) != len(names) or math.prod(sizes) != len(addresses) or len(set(names)) != len(names):
        raise ValueError(
            f"connect_mesh: {len(addresses)} addresses do not fill a mesh of names {names} and shape "
            f"{sizes}"
        )
    seconds = _seconds(timeout)
    sessions: list[Session] = []
    devices: list[_core.device] = []
    try:
        for rank, address in enumerate(addresses):
            found = _DEVICE.fullmatch(os.fsdecode(address))
            where, device = (found.group(1), found.group(2)) if found else (address, "cpu")
            session = connect(
                where,
                token=token,
                memory=memory,
                ca=ca,
                cert=cert,
                name=None if name is None else f"{name}.{rank}",
            )
            if session._world is not None:
                raise ValueError(f"connect_mesh: this program has already connected the mesh {name!r}")
            sessions.append(session)
            devices.append(session.check_device(_core.device(device)))
        return Mesh(sessions, devices, names, sizes, name or "", seconds)
    except BaseException:
        for session in sessions:
            with contextlib.suppress(Exception):
                session.detach() if session.taken_over else session.close()
        raise
