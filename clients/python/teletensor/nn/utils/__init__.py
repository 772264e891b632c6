"""Operations on the gradients and parameters of a model; the submodule `rnn` packs sequences of unequal
lengths."""

from . import parametrizations, parametrize, prune, rnn
from ._fusion import *  # noqa: F403
from ._fusion import __all__ as _fusion
from ._norms import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from ._parameters import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
    parameters_to_vector,
    vector_to_parameters,
)

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
    *_fusion,
]
