"""Mixed precision: autocast chooses the dtype of each op, GradScaler keeps small gradients of
float16 from vanishing."""

from .autocast_mode import autocast, is_autocast_available
from .grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "is_autocast_available"]
