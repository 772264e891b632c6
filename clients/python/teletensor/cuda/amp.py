"""PyTorch's older names for mixed precision on GPUs: `teletensor.amp` with the device type "cuda"."""

from __future__ import annotations

import functools
from typing import Any

from .. import _core
from ..amp import autocast_mode as _autocast_mode, grad_scaler as _grad_scaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
__path__: list[str] = []  # the modules below this one are created by _names/paths.py


class autocast(_autocast_mode.autocast):
    """As `teletensor.autocast("cuda", dtype, enabled, cache_enabled)`."""

    def __init__(self, enabled: bool = True, dtype: Any = _core.float16,
                 cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_grad_scaler.GradScaler):
    """As `teletensor.amp.GradScaler("cuda", ...)`."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = functools.partial(_autocast_mode.custom_fwd, device_type="cuda")
custom_bwd = functools.partial(_autocast_mode.custom_bwd, device_type="cuda")
