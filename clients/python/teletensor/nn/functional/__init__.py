"""Layers, activations and losses as functions."""

from .activations import *  # noqa: F403
from .activations import __all__ as _activations
from .attention import *  # noqa: F403
from .attention import __all__ as _attention
from .layers import *  # noqa: F403
from .layers import __all__ as _layers
from .losses import *  # noqa: F403
from .losses import __all__ as _losses

__all__ = [*_activations, *_attention, *_layers, *_losses]
