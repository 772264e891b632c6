"""Lets restarted processes join an elastic world again, under ranks that it has lost.

While the world continues without some ranks, the others have joined its next incarnation, which forms when
all ranks are there (docs/design/0026). They agree in the present one to use it, after its state has been
sent in the next one; whatever fails before that leaves the present one as it is.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from ... import random
from ..._core import Tensor
from ..._files.objects import encoded
from ..._functions.arrays.creation import empty
from ..._script import capturing as _capturing
from ..._sessions.errors import RankLostError
from ..._tensors.convert import tensor
from .._buckets import broadcast_all
from .._collectives import all_reduce
from .._group import ProcessGroup, ReduceOp, found, greet
from .._objects import broadcast_object_list
from .tree import joined, taken_apart

__all__ = ["admit"]

_BUCKET = 25 << 20  # bytes of tensors that are sent together


def admit(state: MutableMapping[str, Any]) -> list[int]:
    """Lets processes that have come back enter the elastic world, at this line of all processes, with the
    state of the others. Returns their ranks, the same on all ranks: usually none.

    All processes of the world call it at the boundary of two steps, with a dict of the same keys. Its
    values are what a step changes: objects with state_dict and load_state_dict (modules, optimizers,
    schedulers, samplers), tensors, and objects that `broadcast_object_list` can send, such as the number of
    the step. A process that is started again under a lost rank waits in init_process_group until the others
    call admit, creates its model and its optimizer, and calls admit before any other collective. It
    receives the state of the lowest rank that was there: load_state_dict is called, tensors are copied into
    those of its dict, and other values are replaced in its dict. The random generator gets that rank's
    state as well. In the other processes nothing changes.

    The lost ranks come back together: while one of them is absent, the world continues without all of them.
    If a process that comes back ends before it has the state, or cannot load it, the others continue
    without it. While ranks are lost, each call costs one all_reduce and a request to the daemon; otherwise
    it waits for the collectives that have been issued, as `members` does.

    TypeError for a value that cannot be sent. RuntimeError if the world is not elastic, or, in a process
    that comes back, if its state has other keys, tensors of other shapes or dtypes, or does not fit its
    modules; RankLostError if the world has ended, or if all ranks that had the state are lost. ValueError
    before init_process_group."""
    _capturing.refuse("admit ranks")
    world = found(None)
    if not world.elastic:
        raise RuntimeError("admit: the world is not elastic; give elastic=True to init_process_group")
    if not isinstance(state, MutableMapping):
        raise TypeError(f"admit: state must be a dict, not {type(state).__name__}")
    for value in state.values():
        if not _is_object(value) and not isinstance(value, Tensor):
            encoded(value)
    if world._session is None:
        return []
    with world._session.as_current():
        return _enter(world, state) if world.enters else _let_enter(world, state)


def _enter(world: ProcessGroup, state: MutableMapping[str, Any]) -> list[int]:
    holders, world._holders = world._holders, []
    try:
        _share(world, holders, state, receives=True)
    except BaseException:
        world._holders = holders
        raise
    return [rank for rank in range(world.size()) if rank not in holders]


def _let_enter(world: ProcessGroup, state: MutableMapping[str, Any]) -> list[int]:
    if len(world.members()) == world.size():
        return []
    following = world._follow()
    if not _all_agree(world, _has_formed(world)):
        return []
    shared = False
    holders: list[int] = []
    try:
        following._life, holders = greet(following, world._life, True)
        _share(following, holders, state, receives=False)
        shared = len(following.members()) == world.size()
    except RankLostError:  # a process that has come back is lost again, or cannot load the state
        pass
    except BaseException:
        world._drop_following()
        raise
    if not _all_agree(world, shared):
        world._drop_following()
        return []
    world._become_following()
    return [rank for rank in range(world.size()) if rank not in holders]


def _all_agree(group: ProcessGroup, agrees: bool) -> bool:
    every = tensor([int(agrees)])
    all_reduce(every, ReduceOp.MIN, group)
    return bool(every.item())


def _has_formed(world: ProcessGroup) -> bool:
    """Whether all ranks have joined the next incarnation of the world, as far as the daemon knows."""
    session = world._session
    assert session is not None
    session.synchronize()  # the daemon has this rank's request to join
    who = f'session "{session.name}"' if session.name else "a session without a name"
    here = {"rank": world.rank(), "daemon": "", "who": who}
    return any(
        group["name"] == world.group_name
        and group["state"] == "running"
        and len(group["members"]) == world.size()
        and any(here.items() <= member.items() for member in group["members"])
        for group in session._admin().groups()
    )


def _share(
    group: ProcessGroup, holders: list[int], state: MutableMapping[str, Any], receives: bool
) -> None:
    """Sends the state of the lowest holder to the ranks that receive it. If that is lost meanwhile, all
    ranks begin again with the next one. RankLostError if there is none."""
    failure: Exception | None = None
    for holder in holders:
        try:
            rest, tensors = _sent(group, holder, state, receives)
        except RankLostError as error:
            failure = error
            continue
        refusal = _load(state, rest, tensors) if receives else None
        accepted = _all_agree(group, refusal is None)
        if refusal is not None:
            raise refusal
        if not accepted:
            raise RankLostError("admit: a rank that has come back cannot load the state of the world")
        return
    raise RankLostError("admit: all ranks that had the state of the world are lost") from failure


def _sent(
    group: ProcessGroup, holder: int, state: MutableMapping[str, Any], receives: bool
) -> tuple[Any, list[Tensor]]:
    """The state of the holder as described by taken_apart(), on all ranks."""
    tensors: list[Tensor] = []
    message: list[Any] = [None]
    if group.rank() == holder:
        values = {key: value.state_dict() if _is_object(value) else value for key, value in state.items()}
        rest = taken_apart(values, tensors)
        tensors = [each.cpu() for each in tensors]  # so that all ranks have the same buckets
        kinds = [(list(each.shape), each.dtype) for each in tensors]
        counts = (group._made, group._barriers)
        message = [(rest, kinds, random.get_rng_state(), counts)]
    broadcast_object_list(message, group=group, group_src=holder)
    rest, kinds, random_state, counts = message[0]
    if group.rank() != holder:
        tensors = [empty(shape, dtype=dtype) for shape, dtype in kinds]
    broadcast_all(tensors, group, holder, _BUCKET)
    assert group._session is not None
    group._session.synchronize()
    if receives:
        random.set_rng_state(random_state)
        group._made, group._barriers = counts
    return rest, tensors


def _is_object(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _load(state: MutableMapping[str, Any], rest: Any, tensors: list[Tensor]) -> Exception | None:
    """Writes the holder's state into that of this rank. Returns the error if they do not fit."""
    theirs = joined(rest, tensors)
    if set(theirs) != set(state):
        return RuntimeError(
            f"admit: the state has the keys {sorted(state)}, that of the world {sorted(theirs)}"
        )
    for key, value in theirs.items():
        own = state[key]
        try:
            if _is_object(own):
                own.load_state_dict(value)
            elif isinstance(own, Tensor) and isinstance(value, Tensor):
                if own.shape != value.shape or own.dtype != value.dtype:
                    raise ValueError(f"{own.dtype}{list(own.shape)}, not {value.dtype}{list(value.shape)}")
                own.detach().copy_(value)
            else:
                state[key] = value
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            return RuntimeError(f"admit: the state of {key!r} does not fit that of the world: {error}")
    return None
