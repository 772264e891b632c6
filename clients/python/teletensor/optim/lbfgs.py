"""The optimizer LBFGS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .. import _api as tt
from .._tensors.tensor import Tensor
from .optimizer import Optimizer, _check_rate

__all__ = ["LBFGS"]


class _Point(NamedTuple):
    """A point on the search line: the step t, and the function's value, gradient and slope there."""

    t: float
    value: float
    gradient: Tensor
    slope: float


def _cubic_minimum(a: _Point, b: _Point, low: float, high: float) -> float:
    """The minimum, within [low, high], of the cubic through two points with their slopes. Source: Nocedal,
    Wright 2006, eq. 3.59."""
    if a.t > b.t:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    divisor = b.slope - a.slope + 2 * d2
    if divisor == 0:
        return high
    return min(max(b.t - (b.t - a.t) * ((b.slope + d2 - d1) / divisor), low), high)


def _strong_wolfe(
    evaluate: Callable[[float], _Point],
    start: _Point,
    t: float,
    direction_norm: float,
    tolerance: float,
    limit: int,
    c1: float = 1e-4,
    c2: float = 0.9,
) -> tuple[_Point, int]:
    """Returns a point that satisfies the strong Wolfe conditions, and the number of evaluations. Source:
    Nocedal, Wright 2006, algorithms 3.5 and 3.6, with the safeguards of minFunc."""

    def too_high(point: _Point) -> bool:
        return point.value > start.value + c1 * point.t * start.slope

    before, new = start, evaluate(t)
    evaluations, rounds = 1, 0
    bracket: list[_Point] = []
    while rounds < limit:
        if too_high(new) or (rounds > 1 and new.value >= before.value) or (
            not abs(new.slope) <= -c2 * start.slope and new.slope >= 0
        ):
            bracket = [before, new]
            break
        if abs(new.slope) <= -c2 * start.slope:
            return new, evaluations
        t = _cubic_minimum(before, new, new.t + 0.01 * (new.t - before.t), new.t * 10)
        before, new = new, evaluate(t)
        evaluations += 1
        rounds += 1
    if rounds >= limit:
        bracket = [start, new]

    stuck = False
    low, high = (0, 1) if bracket[0].value <= bracket[1].value else (1, 0)
    while rounds < limit:
        left, right = sorted((bracket[0].t, bracket[1].t))
        if (right - left) * direction_norm < tolerance:
            break
        t = _cubic_minimum(bracket[0], bracket[1], left, right)
        # A step close to an end makes little progress: the second such step is moved inwards.
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:
            if stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        new = evaluate(t)
        evaluations += 1
        rounds += 1
        if too_high(new) or new.value >= bracket[low].value:
            bracket[high] = new
            low, high = (0, 1) if bracket[0].value <= bracket[1].value else (1, 0)
            continue
        done = abs(new.slope) <= -c2 * start.slope
        if not done and new.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = new
        if done:
            break
    return bracket[low], evaluations


def _flat(x: Tensor) -> Tensor:
    """The elements as a vector; those of a complex tensor as their real and imaginary parts."""
    flat: Tensor = (tt.view_as_real(x) if x.is_complex() else x).reshape(-1)
    return flat


class LBFGS(Optimizer):
    """Limited-memory BFGS: `step(closure)` makes up to max_iter iterations in directions that are computed
    from the last history_size changes of the gradient. Source: Nocedal, Wright 2006, algorithm 7.5.

    The closure zeroes the gradients, computes the loss, calls backward and returns the loss; it is called
    up to max_eval times (max_iter * 5 / 4 by default) per step. line_search_fn is None (steps of length lr)
    or "strong_wolfe". Each iteration waits for the numbers that decide how it continues: the loss, the
    directional derivative, norms. Only one parameter group is allowed. The state, of the first parameter,
    has "func_evals", "n_iter" and PyTorch's other names.
    """

    _needs_whole = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
                "maximize": maximize,
            },
        )
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def _check_group(self, group: dict[str, Any]) -> None:
        _check_rate(group["lr"])

    @property
    def _params(self) -> list[Tensor]:
        params: list[Tensor] = self.param_groups[0]["params"]
        return params

    def _flat_gradient(self) -> Tensor:
        parts = [
            _flat(tt.zeros_like(p) if p.grad is None else p.grad.to_dense()) for p in self._params
        ]
        flat = tt.cat(parts).detach()
        return -flat if self.param_groups[0]["maximize"] else flat

    def _move(self, t: float, direction: Tensor) -> None:
        begin = 0
        for parameter in self._params:
            real = tt.view_as_real(parameter) if parameter.is_complex() else parameter
            end = begin + real.numel()
            real.add_(direction[begin:end].reshape(tuple(real.shape)) * t)
            begin = end

    def _direction(self, state: dict[str, Any], gradient: Tensor, history: int) -> Tensor:
        """The two-loop recursion, after adding the change since the previous iteration to the history."""
        change = gradient - state["prev_flat_grad"]
        step = state["d"] * state["t"]
        curvature = (change * step).sum()
        scale = curvature / (change * change).sum()
        changes, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        if curvature.item() > 1e-10:
            if len(changes) == history:
                for values in (changes, steps, inverses):
                    values.pop(0)
            changes.append(change)
            steps.append(step)
            inverses.append(1.0 / curvature)
            state["H_diag"] = scale
        q = -gradient
        factors: list[Any] = [None] * len(changes)
        for i in range(len(changes) - 1, -1, -1):
            factors[i] = (steps[i] * q).sum() * inverses[i]
            q = q - changes[i] * factors[i]
        direction: Tensor = q * state["H_diag"]
        for i in range(len(changes)):
            factor = (changes[i] * direction).sum() * inverses[i]
            direction = direction + steps[i] * (factors[i] - factor)
        return direction

    def step(self, closure: Callable[[], Any]) -> Any:
        """Makes one optimization step of several iterations; returns the first result of the closure."""
        group = self.param_groups[0]
        sign = -1.0 if group["maximize"] else 1.0

        def loss_of(result: Any) -> float:
            return sign * float(result)

        def call() -> Any:
            with tt.enable_grad():
                return closure()

        with tt.no_grad():
            first = call()
            if self._params:
                self._iterate(group, call, loss_of, loss_of(first))
        return first

    def _iterate(
        self,
        group: dict[str, Any],
        call: Callable[[], Any],
        loss_of: Callable[[Any], float],
        loss: float,
    ) -> None:
        lr, max_iter, max_eval = float(group["lr"]), group["max_iter"], group["max_eval"]
        search, tolerance = group["line_search_fn"], group["tolerance_change"]
        if search not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        state["func_evals"] += 1
        evaluations, iterations = 1, 0
        gradient = self._flat_gradient()
        if gradient.abs().max().item() <= group["tolerance_grad"]:
            return
        while iterations < max_iter:
            iterations += 1
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
                direction = -gradient
                total = gradient.abs().sum().item()
                t = (1.0 / total if total > 1.0 else 1.0) * lr
            else:
                direction = self._direction(state, gradient, group["history_size"])
                t = lr
            loss_before = loss
            state.update(d=direction, t=t, prev_flat_grad=gradient, prev_loss=loss)
            slope = (gradient * direction).sum().item()
            if slope > -tolerance:
                break
            if search is None:
                self._move(t, direction)
                if iterations != max_iter:
                    loss = loss_of(call())
                    gradient = self._flat_gradient()
                    evaluations += 1
                    state["func_evals"] += 1
            else:
                held = [parameter.clone() for parameter in self._params]

                def evaluate(t: float, held: list[Tensor] = held, d: Tensor = direction) -> _Point:
                    self._move(t, d)
                    value = loss_of(call())
                    flat = self._flat_gradient()
                    for parameter, old in zip(self._params, held, strict=True):
                        parameter.copy_(old)
                    return _Point(t, value, flat, (flat * d).sum().item())

                found, count = _strong_wolfe(
                    evaluate,
                    _Point(0.0, loss, gradient, slope),
                    t,
                    direction.abs().max().item(),
                    1e-9,
                    max_eval - evaluations,
                )
                t, loss, gradient = found.t, found.value, found.gradient
                self._move(t, direction)
                state["t"] = t
                evaluations += count
                state["func_evals"] += count
            if iterations == max_iter or evaluations >= max_eval:
                break
            sizes = tt.stack([gradient.abs().max(), (direction * t).abs().max()]).tolist()
            if sizes[0] <= group["tolerance_grad"] or sizes[1] <= tolerance:
                break
            if abs(loss - loss_before) < tolerance:
                break
