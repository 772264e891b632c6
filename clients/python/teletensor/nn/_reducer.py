"""The part of DistributedDataParallel that gives all processes the same parameters, buffers and averaged
gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from .. import distributed as _distributed
from .._core import Tensor
from .._script import capturing as _capturing
from .._tensors.convert import tensor
from ..autograd import no_grad
from ..autograd._backward import follow, followers
from ..distributed import GradBucket, ReduceOp
from ..distributed._buckets import broadcast_all, flat, grouped, parts_of
from ..distributed._collectives import reduced
from ..distributed._group import found
from ..futures import Future
from ..sparse import SparseTensor
from .module import Module

Hook = Callable[[Any, GradBucket], Future[Tensor]]


class _Registrations:
    """The parameters and submodules that a module has registered."""

    def __init__(self, module: Module) -> None:
        self.own = module.__dict__
        names = [*self.own["_parameter_names"], *self.own["_module_names"]]
        self._values = [(name, self.own[name]) for name in names]

    def hold(self) -> bool:
        """Returns whether the module has registered the same objects still, and no others."""
        own = self.own
        count = len(own["_parameter_names"]) + len(own["_module_names"])
        return count == len(self._values) and all(own.get(name) is each for name, each in self._values)


class Reducer:
    """Averages the gradients of a module over the ranks of a group after a backward, in buckets of about
    `bucket_bytes`. Each forward of the module sets one of two flags and clears the other: `armed` if its
    backward is to average the gradients, and `gathers` if a later backward is to average them.

    If several Reducers have the same parameter, the last one to call start() averages its gradients, and
    the earlier ones refuse to."""

    def __init__(
        self, module: Module, group: Any, bucket_bytes: int, find_unused: bool, static_graph: bool
    ) -> None:
        self.armed = self.gathers = False
        self.dtype: Any = None  # of the gradients while they are averaged; None means their own
        self.hook: Hook | None = None  # reduces a bucket instead of the all_reduce
        self.hook_state: Any = None
        # the number of ranks by which sums are divided if some have joined; None means all ranks
        self.active: Any = None
        self._module, self._group = module, group
        self._bucket_bytes, self._find_unused = bucket_bytes, find_unused
        self._static_graph = static_graph
        # if static_graph, after the first average: the parameters that the backward of any rank reaches
        self._settled: list[Any] | None = None
        self._settled_in = 0  # the incarnation of the group that has agreed on them
        self._settled_reach: tuple[bool, ...] | None = None  # which of them this rank's backward reaches
        self._named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        self._structure = [_Registrations(each) for each in module.modules()]
        self._requires = [(each, each.requires_grad) for each in module.parameters()]
        # whether a backward since the last average reached each parameter
        self._reached = (False,) * len(self._named)
        self._taken: str | None = None  # the name of a parameter that another Reducer averages

    def start(self) -> None:
        """Makes this Reducer, and no other one, average the gradients of its parameters from now on."""
        own = {id(each) for _, each in self._named}
        for other in followers():
            if isinstance(other, Reducer):
                shared = next((name for name, each in other._named if id(each) in own), None)
                if shared is not None:
                    other._taken, other.armed, other.gathers = shared, False, False
        follow(self)

    def broadcast_initial_state(self, buffers: bool) -> None:
        """Copies the parameters of rank 0, and with `buffers` its buffers, to all ranks. A rank that has
        come back to an elastic world receives them in `admit`. RuntimeError names the first one whose name,
        shape or dtype differs between ranks."""
        if self._group.enters:
            return
        named: list[tuple[str, Any]] = list(self._module.named_parameters())
        if buffers:
            named += self._module.named_buffers()
        own = [[name, list(each.shape), str(each.dtype)] for name, each in named]
        every: list[Any] = [None] * _distributed.get_world_size(self._group)
        _distributed.all_gather_object(every, own, self._group)
        there = {rank: theirs for rank, theirs in enumerate(every) if theirs is not None}
        first = min(there)
        for rank, theirs in there.items():
            for a, b in itertools.zip_longest(there[first], theirs, fillvalue=["nothing", [], ""]):
                if a != b:
                    raise RuntimeError(
                        f"DistributedDataParallel: rank {first} has {a[0]} {a[2]}{a[1]} where rank {rank} "
                        f"has {b[0]} {b[2]}{b[1]}"
                    )
        self.broadcast((each.detach() for _, each in named), self.first)

    @property
    def first(self) -> int | None:
        """The rank whose buffers all ranks get: 0, or None for the lowest rank of an elastic group that
        is not lost."""
        return None if self._group.elastic else 0

    def broadcast(self, tensors: Iterable[Any], root: int | None) -> None:
        """Copies the tensors of rank `root` of the group to all ranks. None is the lowest rank of an
        elastic group that is not lost."""
        broadcast_all(tensors, self._group, root, self._bucket_bytes)

    def check_parameters(self) -> None:
        """RuntimeError if another Reducer averages one of the parameters, if a parameter has been replaced
        since the module was wrapped, or if its requires_grad has changed; with find_unused a parameter may
        have been frozen."""
        if self._taken is not None:
            raise RuntimeError(
                f"the gradients of parameter {self._taken} are averaged by a DistributedDataParallel that "
                "has wrapped it since: call that one"
            )
        if self._unchanged() and all(each.requires_grad is then for each, then in self._requires):
            return
        wrapped, now = dict(self._named), dict(self._module.named_parameters())
        for name in [*wrapped, *(name for name in now if name not in wrapped)]:
            then, each = wrapped.get(name), now.get(name)
            if then is None:
                change = "requires grad" if each is not None and each.requires_grad else ""
            elif each is not then:
                change = "was replaced" if each is not None else "was removed"
            else:
                change = "" if each.requires_grad or self._find_unused else "does not require grad any more"
            if change:
                raise RuntimeError(
                    f"parameter {name} {change} since DistributedDataParallel wrapped the module: wrap the "
                    "module again, on all ranks"
                )

    def _unchanged(self) -> bool:
        """Returns whether the module still has the submodules and parameters that it had when it was
        wrapped. Finding them by name takes as long as a small forward."""
        return all(each.hold() for each in self._structure)

    def buffers(self) -> list[Any]:
        """The buffers of the module, each once."""
        if self._unchanged() and not any(each.own["_buffer_names"] for each in self._structure):
            return []
        return list(self._module.buffers())

    def state(self) -> tuple[Any, ...]:
        """The facts on which the next step depends, for a capture of the step."""
        hook = id(self.hook), id(self.hook_state)
        return self.armed, self.gathers, self._reached, self._taken, hook, self._agreed is None

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Sets the state that a captured step has left."""
        self.armed, self.gathers, self._reached = state[:3]

    # ---- autograd's Follower

    def follows(self, core: Any) -> bool:
        """Returns whether the gradients of the next backward are to be averaged, then or later. This is
        false if the backward runs in another session than the module's."""
        return (self.armed or self.gathers) and self._named[0][1]._session is core

    def gradients_before(self) -> list[int | None]:
        """The versions of the gradients."""
        return [None if each.grad is None else each.grad._version for _, each in self._named]

    def gradients_after(self, before: list[int | None]) -> None:
        """Averages the gradients if this backward is to and has reached a parameter of the module."""
        reached = [now != then for now, then in zip(self.gradients_before(), before, strict=True)]
        if not any(reached):
            return
        ever = tuple(now or earlier for now, earlier in zip(reached, self._reached, strict=True))
        averages, self.armed = self.armed, False
        self._reached = (False,) * len(reached) if averages else ever
        if not averages:
            return
        asks = self.asks()
        for _, parameter in self._named:
            if isinstance(parameter.grad, SparseTensor):
                parameter.grad = parameter.grad.to_dense()  # ranks have different rows
        self._average(self._used(ever))
        if self._settled is not None:
            self._check_graph(ever)
            return
        unused = [name for (name, _), each in zip(self._named, reached, strict=True) if not each]
        if unused and not asks:
            raise RuntimeError(
                f"the backward has not reached {len(unused)} parameters of the module that "
                f"DistributedDataParallel averages: {', '.join(unused[:8])}; use them in the loss, or pass "
                "find_unused_parameters=True"
            )

    def _check_graph(self, reached: tuple[bool, ...]) -> None:
        """RuntimeError if a backward of a static graph has not reached the same parameters as the first."""
        first = self._settled_reach = self._settled_reach or reached
        changed = [name for (name, _), a, b in zip(self._named, first, reached, strict=True) if a != b]
        if changed:
            raise RuntimeError(
                "Your training graph has changed in this iteration, which DistributedDataParallel("
                f"static_graph=True) does not allow: {', '.join(changed[:8])} was used in only one of the "
                "first iteration and this one"
            )

    def shadow(self) -> None:
        """Takes part in the averages of the other ranks with gradients of zero. The averages also become
        the gradients of this rank."""
        for _, each in self._named:
            each.grad = None
        self._average(self._used((False,) * len(self._named)))

    def asks(self) -> bool:
        """Returns whether the next average reads from the other ranks which parameters they have used. The
        first step of a static graph that is captured does not: it must reach all parameters. They ask again
        when lost ranks have come back to the group."""
        if self._static_graph and not self._find_unused:
            return self._agreed is None and _capturing.current is None
        return self._find_unused and self._agreed is None

    @property
    def _agreed(self) -> list[Any] | None:
        """The parameters on which the present ranks of the group have agreed; None if they have not."""
        return self._settled if self._settled_in == self._group.incarnation else None

    def _used(self, reached: tuple[bool, ...]) -> list[Any]:
        """The parameters that the backward of any rank has reached if the ranks ask each other; those of
        the first backward if the graph is static; all parameters if not."""
        parameters = [each for _, each in self._named]
        if not self.asks():
            return parameters if self._agreed is None else self._agreed
        anywhere = tensor([int(each) for each in reached])
        _distributed.all_reduce(anywhere, ReduceOp.MAX, self._group)
        used = [each for each, use in zip(parameters, anywhere.tolist(), strict=True) if use]
        if self._static_graph:
            self._settled, self._settled_in = used, self._group.incarnation
        return used

    def _average(self, used: list[Any]) -> None:
        """Averages the gradients of these parameters. A hook always gets the gradients of all parameters,
        in the same buckets."""
        chosen = {id(each) for each in used}
        parameters = used if self.hook is None else [each for _, each in self._named]
        with no_grad():
            buckets = grouped(reversed(parameters), self._bucket_bytes)
            begun = [self._begin(i, bucket, i + 1 == len(buckets)) for i, bucket in enumerate(buckets)]
            for bucket, result in zip(buckets, begun, strict=True):
                averages = parts_of(result if self.hook is None else self._value(result), bucket)
                for parameter, average in zip(bucket, averages, strict=True):
                    if id(parameter) not in chosen:
                        continue
                    if parameter.grad is None:
                        parameter.grad = average.to(parameter.dtype).clone()
                    else:
                        parameter.grad.copy_(average)

    def _begin(self, index: int, bucket: list[Any], last: bool) -> Any:
        """Starts to average the gradients of a bucket. Returns the averages, or what the hook returns."""
        buffer = flat(each.new_zeros(each.shape) if each.grad is None else each.grad for each in bucket)
        if self.hook is not None:
            return self.hook(self.hook_state, GradBucket(index, last, buffer, bucket))
        buffer = buffer if self.dtype is None else buffer.to(self.dtype)
        op = ReduceOp.AVG if self.active is None else ReduceOp.SUM
        averages = reduced(buffer, op, found(self._group)).to(buffer.device)
        return averages if self.active is None else averages.div_(self.active)

    def _value(self, future: Any) -> Any:
        """The tensor of a hook's Future. TypeError if the result is not a tensor."""
        name = getattr(self.hook, "__name__", "the hook")
        if not isinstance(future, Future):
            raise TypeError(
                f"{name} of register_comm_hook returns a teletensor.futures.Future, not "
                f"{type(future).__name__}"
            )
        value = future.wait()
        value = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the Future of {name} has one tensor of the bucket's size, not {type(value).__name__}"
            )
        return value
