"""Layers, activations and losses as functions."""

from ..._calls import checked as _checked
from .activations import *  # noqa: F403
from .activations import __all__ as _activations
from .attention import *  # noqa: F403
from .attention import __all__ as _attention
from .conv import *  # noqa: F403
from .conv import __all__ as _conv
from .layers import *  # noqa: F403
from .layers import __all__ as _layers
from .losses import *  # noqa: F403
from .losses import __all__ as _losses
from .norms import *  # noqa: F403
from .norms import __all__ as _norms
from .pooling import *  # noqa: F403
from .pooling import __all__ as _pooling
from .sdpa import *  # noqa: F403
from .sdpa import __all__ as _sdpa
from .vision import *  # noqa: F403
from .vision import __all__ as _vision

__all__ = [
    *_activations,
    *_attention,
    *_conv,
    *_layers,
    *_losses,
    *_norms,
    *_pooling,
    *_sdpa,
    *_vision,
]

_checked.attach(globals(), __all__)
