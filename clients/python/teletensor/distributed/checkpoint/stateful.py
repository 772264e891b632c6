"""The interface of torch.distributed.checkpoint.stateful: objects that a checkpoint can save and load."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from ..._names import absent as _absent

__all__ = ["Stateful", "StatefulT"]


@runtime_checkable
class Stateful(Protocol):
    """An object with state_dict() and load_state_dict(), such as a module, an optimizer, or a class of the
    program. isinstance() checks only that both methods exist."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that `save` writes. `load` calls it too, and reads into its tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state that `load` has read."""
        ...


StatefulT = TypeVar("StatefulT", bound=Stateful)

_absent.attach(globals())
