"""The base class of optimizers whose step is one instruction over lists of parameters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from .. import _api as tt, _core
from .._script import capturing as _capturing
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor
from .optimizer import Optimizer, _check_range, _check_rate

__all__ = ["ListOptimizer", "check_common", "options", "reals"]


def options(**values: Any) -> dict[str, Any]:
    """The defaults of an optimizer: the given arguments, without the arguments of its constructor that are
    not options."""
    return {key: value for key, value in values.items() if key not in ("self", "params", "__class__")}


def check_common(group: dict[str, Any]) -> None:
    """ValueError for a learning rate, epsilon, betas or weight decay out of range."""
    _check_rate(group["lr"])
    if "eps" in group:
        _check_range("epsilon value", group["eps"], group["eps"] >= 0.0)
    betas = group.get("betas", ())
    if len({isinstance(beta, Tensor) for beta in betas}) > 1:
        raise ValueError("betas must be either both floats or both Tensors")
    for i, beta in enumerate(betas):
        _check_range(f"beta parameter at index {i}", beta, 0.0 <= beta < 1.0)
    for name in ("weight_decay", "momentum_decay", "lr_decay", "momentum", "lambd"):
        if name in group:
            _check_range(f"{name} value", group[name], group[name] >= 0.0)


def reals(lists: list[list[Tensor]]) -> list[list[Tensor]]:
    """The lists of parameters, gradients and states, in which complex tensors are replaced by views as
    pairs of real numbers: their real and imaginary parts are optimized as separate parameters."""
    if not _core.any_complex(lists[0]):
        return lists
    return [[tt.view_as_real(x) if x.is_complex() else x for x in each] for each in lists]


class ListOptimizer(Optimizer):
    """Base class of optimizers whose step is one op over lists of parameters, gradients and states.

    Subclasses define which states there are (`_states`; None for a list that stays empty), their initial
    values (`_begin`), the numbers of a step (`_advance`; parameters with equal numbers share an
    instruction), and the op (`_apply`).
    """

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)

    def _states(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        raise NotImplementedError

    def _begin(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def _advance(self, group: dict[str, Any], state: dict[str, Any]) -> Hashable:
        step = state["step"] = int(state["step"]) + 1
        return step

    def _apply(self, group: dict[str, Any], lists: list[list[Tensor]], numbers: Any) -> None:
        raise NotImplementedError

    # ---- steps that the daemon may skip

    # Whether a skipped step affects nothing but the number of steps.
    counts_only = True
    # 0-d tensors on the daemon: whether the current step is skipped, and how many steps were skipped so
    # far.
    _skip: Tensor | float = 0
    _skipped: Tensor | None = None

    def can_skip(self) -> bool:
        """Returns whether step_unless() can skip a step without waiting for a value. A step with a sparse
        gradient it cannot skip."""
        return self.counts_only and not self._has_sparse()

    def _has_sparse(self) -> bool:
        return any(isinstance(p.grad, SparseTensor) for group in self.param_groups for p in group["params"])

    def step_unless(self, found_inf: Tensor) -> Any:
        """Runs step(), which the daemon skips if found_inf (0-d) is not 0. Does not wait for any value."""
        self._skip = found_inf
        try:
            return self.step()
        finally:
            self._skip = 0
            skipped = found_inf != 0
            self._skipped = skipped.to(found_inf.dtype) + (
                0 if self._skipped is None else self._skipped
            )

    def _count(self, step: int) -> Any:
        """The number of this step as an operand; skipped steps are not counted."""
        return step if self._skipped is None else step - self._skipped

    def _settle(self) -> None:
        """Updates the step numbers in the state: waits for the number of skipped steps."""
        if self._skipped is not None:
            skipped, self._skipped = int(self._skipped.item()), None
            for state in self.state.values():
                if "step" in state:
                    state["step"] = int(state["step"]) - skipped

    def state_dict(self) -> dict[str, Any]:
        """As Optimizer.state_dict. Waits for a number if the daemon may have skipped steps."""
        self._settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As Optimizer.load_state_dict."""
        self._skipped = None
        super().load_state_dict(state_dict)

    def _update(self, group: dict[str, Any]) -> None:
        if self._skipped is not None and not all(self.state[p] for p in group["params"]):
            self._settle()  # so that skipped steps of the past do not count for the loaded state
        names = self._states(group)
        kept = [(i, name) for i, name in enumerate(names, 2) if name is not None]
        calls: dict[Hashable, list[list[Tensor]]] = {}
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if isinstance(gradient, SparseTensor):
                self._sparse_step(group, parameter, gradient)
                continue
            state = self.state[parameter]
            if not state:
                self._begin(group, parameter, state)
            if _capturing.current is not None:
                with _capturing.repeated:
                    numbers = self._advance(group, state)
            else:
                numbers = self._advance(group, state)
            lists = calls.get(numbers)
            if lists is None:
                lists = calls[numbers] = [[] for _ in range(2 + len(names))]
            lists[0].append(parameter)
            lists[1].append(gradient)
            for i, name in kept:
                lists[i].append(state[name])
        for numbers, lists in calls.items():
            if _capturing.current is not None:
                numbers = _capturing.advanced(self, group, lists[0], numbers)
                self._apply(_capturing.group(group), reals(lists), numbers)
            else:
                self._apply(group, reals(lists), numbers)
