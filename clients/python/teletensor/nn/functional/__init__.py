"""Layers, activations and losses as functions."""

from .activations import *  # noqa: F403
from .activations import __all__ as _activations
from .layers import *  # noqa: F403
from .layers import __all__ as _layers
from .losses import *  # noqa: F403
from .losses import __all__ as _losses

__all__ = [*_activations, *_layers, *_losses]
