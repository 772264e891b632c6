"""Probability distributions that draw on the daemon: Bernoulli, Categorical, Exponential, Normal,
Uniform, and the divergence between two of a kind. Names and shapes are PyTorch's."""

from .distribution import Distribution, kl_divergence
from .kinds import Bernoulli, Categorical, Exponential, Normal, Uniform

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Exponential",
    "Normal",
    "Uniform",
    "kl_divergence",
]
