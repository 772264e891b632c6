"""GradScaler, which scales losses so that float16 gradients do not become zero."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _api as tt
from .._names import ops as _ops
from .._tensors.tensor import Tensor
from ..sparse import SparseTensor

__all__ = ["GradScaler", "OptState"]


class OptState(enum.Enum):
    """The state of an optimizer's gradients since the last `update`: as backward left them, divided by the
    scale, or used by a step."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class GradScaler:
    """Multiplies the loss by a scale so that small gradients do not vanish in float16, and divides the
    gradients by it before the step. A step with an infinite or NaN gradient is skipped, and `update` then
    multiplies the scale by backoff_factor; after growth_interval successful steps it multiplies the scale
    by growth_factor.

    The scale, its counter and the check for infinities are on the daemon. Optimizers of this package skip a
    step on the daemon, without waiting for a value; with other optimizers (LBFGS, NAdam, ASGD, and those of
    the program) each step waits for one number, as in PyTorch.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled and not growth_factor > 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if enabled and not backoff_factor < 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._init_scale = float(init_scale)
        self._init_growth_tracker = 0
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._stages: dict[int, OptState] = defaultdict(lambda: OptState.READY)
        self._found: dict[int, Tensor] = {}

    def _start(self, device: Any) -> Tensor:
        if self._scale is None:
            self._scale = tt.full((), self._init_scale, dtype=tt.float32, device=device)
            self._growth_tracker = tt.full(
                (), self._init_growth_tracker, dtype=tt.int32, device=device
            )
        return self._scale

    def scale(self, outputs: Any) -> Any:
        """Returns a tensor, or the tensors in lists and tuples, multiplied by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._start(outputs.device).to(outputs.device)
        if isinstance(outputs, Iterable):
            scaled = [self.scale(output) for output in outputs]
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, for example before they are
        clipped. step() calls it if it has not been called."""
        if not self._enabled:
            return
        stage = self._stages[id(optimizer)]
        if stage == OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if stage == OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        if self._scale is None:
            raise AssertionError("Attempted unscale_ but _scale is None: call scale() first")
        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if any(gradient.dtype == tt.float16 for gradient in gradients):
            raise ValueError("Attempting to unscale FP16 gradients.")
        with tt.no_grad():
            inverse = self._scale.double().reciprocal()
            by_device: dict[Any, list[Tensor]] = {}
            for each in gradients:
                gradient = each._data if isinstance(each, SparseTensor) else each
                real = tt.view_as_real(gradient) if gradient.is_complex() else gradient
                by_device.setdefault(gradient.device, []).append(real)
            total = tt.zeros((), dtype=tt.float32, device=self._scale.device)
            for device, group in by_device.items():
                found = tt.zeros((), dtype=tt.float32, device=device)
                _ops.amp_unscale(group, [found], inverse.to(device))
                total = tt.maximum(total, found.to(total.device))
            self._agree(optimizer, total)
        self._found[id(optimizer)] = total
        self._stages[id(optimizer)] = OptState.UNSCALED

    def _agree(self, optimizer: Any, total: Tensor) -> None:
        """Makes ranks that have parts of the same parameters skip the same steps."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        sharded = [each for each in parameters if hasattr(each, "sharding")]
        if sharded:
            from ..distributed import ReduceOp, all_reduce

            for group in {id(each.sharding.group): each.sharding.group for each in sharded}.values():
                all_reduce(total, ReduceOp.MAX, group)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls unscale_() if that has not been done, and then optimizer.step(*args) unless a gradient is
        infinite or NaN. Closures are not supported."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled."
            )
        if self._stages[id(optimizer)] == OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if self._stages[id(optimizer)] == OptState.READY:
            self.unscale_(optimizer)
        found = self._found[id(optimizer)]
        result = None
        if getattr(optimizer, "can_skip", lambda: False)():
            result = optimizer.step_unless(found)
        elif not found.item():
            result = optimizer.step(**kwargs)
        self._stages[id(optimizer)] = OptState.STEPPED
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Ends the iteration: lowers or raises the scale, or sets it to new_scale."""
        if not self._enabled:
            return
        if self._scale is None or self._growth_tracker is None:
            raise AssertionError("Attempted update but _scale is None: call scale() first")
        with tt.no_grad():
            if new_scale is not None:
                if isinstance(new_scale, Tensor):
                    self._scale.copy_(new_scale)
                else:
                    self._scale.fill_(new_scale)
            else:
                if not self._found:
                    raise AssertionError("No inf checks were recorded prior to update.")
                bad = tt.stack([f.to(self._scale.device) for f in self._found.values()]).max() > 0
                count = self._growth_tracker + 1
                grows = count == self._growth_interval
                grown = self._scale * self._growth_factor
                grown = tt.where(tt.isfinite(grown), grown, self._scale)
                good = tt.where(grows, grown, self._scale)
                self._scale = tt.where(bad, self._scale * self._backoff_factor, good)
                self._growth_tracker = tt.where(bad | grows, 0, count).to(tt.int32)
        self._found.clear()
        self._stages.clear()

    def get_scale(self) -> float:
        """The value of the scale, which is waited for; 1 if scaling is disabled."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale.item())

    def get_growth_factor(self) -> float:
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets the factor by which the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of successful steps after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets the number of successful steps after which the scale grows."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if self._growth_tracker is None:
            return self._init_growth_tracker if self._enabled else 0
        return int(self._growth_tracker.item())

    def is_enabled(self) -> bool:
        """Returns whether scaling is enabled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale, factors, interval and counter as numbers; empty if scaling is disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state_dict(), which may also be PyTorch's."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self._init_scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = int(state_dict["_growth_tracker"])
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(self._init_scale)
            self._growth_tracker.fill_(self._init_growth_tracker)
