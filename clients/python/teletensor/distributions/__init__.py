"""Probability distributions that are sampled on the daemon, their transforms, and divergences between
distributions. Names and shapes are those of PyTorch."""

from . import constraints, kl, transforms, utils  # noqa: F401
from .composed import *  # noqa: F403
from .composed import __all__ as _composed
from .continuous import *  # noqa: F403
from .continuous import __all__ as _continuous
from .discrete import *  # noqa: F403
from .discrete import __all__ as _discrete
from .distribution import Distribution, ExponentialFamily, kl_divergence, register_kl
from .gammas import *  # noqa: F403
from .gammas import __all__ as _gammas
from .kinds import Bernoulli, Categorical, Exponential, Normal, Uniform
from .matrices import *  # noqa: F403
from .matrices import __all__ as _matrices
from .registry import biject_to, transform_to
from .relaxed import *  # noqa: F403
from .relaxed import __all__ as _relaxed
from .transforms import *  # noqa: F403
from .transforms import __all__ as _transforms

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Exponential", "ExponentialFamily", "Normal", "Uniform",
    "biject_to", "constraints", "kl_divergence", "register_kl", "transform_to", "transforms",
]  # fmt: skip
__all__ += [*_composed, *_continuous, *_discrete, *_gammas, *_matrices, *_relaxed, *_transforms]
