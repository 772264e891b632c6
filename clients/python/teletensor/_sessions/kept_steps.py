"""A loop of training steps whose state is kept in the session, so that another process can continue the
training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .._core import Tensor
from .._tensors.convert import tensor
from ..random import get_rng_state, set_rng_state
from .session import Session, current_session

__all__ = ["kept_steps"]

_NAME = "kept_steps"


def kept_steps(steps: int, *, every: int = 1, **state: Any) -> Iterator[int]:
    """Yields the numbers of the remaining steps, from 0 to steps - 1, for a loop over them.

    `state` is everything that the steps change: modules, optimizers, schedulers, any object with
    `state_dict` and `load_state_dict`. At the end of each step, or of every `every`-th one, the session
    keeps a copy of the state on the daemon, together with the state of the generator that `tt.manual_seed`
    seeds. A process that has taken over the session by its name and calls this function with the same state
    continues after the last step that was kept, with the state of that step loaded. All ranks of
    `tt.distributed`'s world must call it, and they continue after the newest step that all of them have
    kept. If there is no such step the loop begins at 0 and leaves the state unchanged. The last two copies
    are kept, and count towards the session's memory quota.

    The copy is made when the step has been computed, so that an error of the step is raised here.
    ValueError for every < 1, TypeError for state that is not made of tensors, numbers, text, None, lists,
    tuples and dicts.
    """
    if every < 1:
        raise ValueError(f"kept_steps: every must be 1 or more, not {every}")
    copies = _Copies(current_session(), state)
    done = copies.load()
    for number in range(done, steps):
        yield number
        if (number + 1) % every == 0 or number + 1 == steps:
            copies.keep(number + 1)


class _Copies:
    """Two copies of the state, kept under different names. `step` is the last name that is set for a copy
    and the first that is removed: a client that is killed at any command leaves a complete copy."""

    def __init__(self, session: Session, state: dict[str, Any]) -> None:
        self._session, self._state = session, state
        kept = session.kept()
        self._steps = {int(kept[name].item()): copy for copy in (0, 1)
                       if (name := f"{_NAME}/{copy}/step") in kept}

    def load(self) -> int:
        """Loads the newest copy that all ranks have and returns its step, or 0 if there is none."""
        from .. import distributed as dist

        every: list[Any] = [list(self._steps)]
        if dist.is_initialized() and dist.get_world_size() > 1:
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, list(self._steps))
        done = max(set(self._steps).intersection(*every), default=None)
        for step in [step for step in self._steps if done is None or step > done]:
            self._drop(self._steps.pop(step))  # a copy that not all ranks have is discarded
        if done is None:
            self.keep(0)
            return 0
        kept, name = self._session.kept(), f"{_NAME}/{self._steps[done]}"
        text = json.loads(kept[f"{name}/structure"].numpy().tobytes())
        generator, state = _joined(text, lambda index: kept[f"{name}/{index}"].detach().clone())
        for each, value in state.items():
            if each in self._state:
                self._state[each].load_state_dict(value)
        set_rng_state(generator)
        return done

    def keep(self, step: int) -> None:
        """Waits for the end of the step and keeps a copy; an error of the step is raised, and nothing is
        kept then."""
        tensors: list[Tensor] = []
        state = {name: each.state_dict() for name, each in self._state.items()}
        text = json.dumps(_split((get_rng_state(), state), tensors))
        self._session.synchronize()
        copy = 1 - self._steps[max(self._steps)] if self._steps else 0
        self._drop(copy)
        self._steps = {each: at for each, at in self._steps.items() if at != copy}
        name, structure = f"{_NAME}/{copy}", np.frombuffer(text.encode(), np.uint8)
        numbered = {str(index): each for index, each in enumerate(tensors)}
        self._session.keep(name, {"structure": tensor(structure), **numbered})
        self._session.keep(f"{name}/step", tensor(step))
        self._steps[step] = copy

    def _drop(self, copy: int) -> None:
        self._session.keep(f"{_NAME}/{copy}/step", None)


def _split(value: Any, tensors: list[Tensor]) -> Any:
    """Converts the value to JSON with numbers in place of the tensors; appends copies of the tensors to
    `tensors`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        tensors.append(value.detach().clone())
        return ["tensor", len(tensors) - 1]
    if isinstance(value, Mapping):
        return ["dict", *([_split(key, tensors), _split(each, tensors)] for key, each in value.items())]
    if isinstance(value, (list, tuple)):
        return ["tuple" if isinstance(value, tuple) else "list", *(_split(each, tensors) for each in value)]
    raise TypeError("kept_steps: state_dict() holds tensors, numbers, text, None, lists, tuples and dicts, "
                    f"not {type(value).__name__}")


def _joined(plain: Any, tensor_of: Callable[[int], Tensor]) -> Any:
    """The inverse of `_split`: the value for this JSON."""
    if not isinstance(plain, list):
        return plain
    kind, *parts = plain
    if kind == "tensor":
        return tensor_of(parts[0])
    if kind == "dict":
        return {_joined(key, tensor_of): _joined(value, tensor_of) for key, value in parts}
    made = [_joined(part, tensor_of) for part in parts]
    return tuple(made) if kind == "tuple" else made
