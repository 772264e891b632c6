"""Networks: Module, layers, losses; functional, init and utils beside them."""

from . import functional, init, utils
from .activation import *  # noqa: F403
from .activation import __all__ as _activation
from .containers import ModuleDict, ModuleList, ParameterList, Sequential
from .dropout import Dropout
from .linear import Bilinear, Flatten, Identity, Linear, Unflatten
from .loss import *  # noqa: F403
from .loss import __all__ as _loss
from .module import Module
from .normalization import LayerNorm, RMSNorm
from .parameter import Parameter
from .sparse import Embedding

__all__ = [
    "Bilinear",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "ParameterList",
    "RMSNorm",
    "Sequential",
    "Unflatten",
    "functional",
    "init",
    "utils",
    *_activation,
    *_loss,
]
