"""Neural networks: Module, layers and losses, and the submodules functional, init and utils."""

from . import functional, grad, init, modules, utils
from .activation import *  # noqa: F403
from .activation import __all__ as _activation
from .adaptive import AdaptiveLogSoftmaxWithLoss
from .attention import (
    MultiheadAttention,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from .batchnorm import *  # noqa: F403
from .batchnorm import __all__ as _batchnorm
from .containers import ModuleDict, ModuleList, Sequential
from .conv import *  # noqa: F403
from .conv import __all__ as _conv
from .distance import CosineSimilarity, PairwiseDistance
from .dropout import *  # noqa: F403
from .dropout import __all__ as _dropout
from .lazy import *  # noqa: F403
from .lazy import __all__ as _lazy
from .linear import Bilinear, Flatten, Identity, Linear, Unflatten
from .loss import *  # noqa: F403
from .loss import __all__ as _loss
from .module import Module
from .normalization import LayerNorm, RMSNorm
from .parameter import Buffer, Parameter
from .parameter_containers import ParameterDict, ParameterList
from .pooling import *  # noqa: F403
from .pooling import __all__ as _pooling
from .rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell, RNNCellBase
from .sparse import Embedding, EmbeddingBag
from .vision import *  # noqa: F403
from .vision import __all__ as _vision

__all__ = [
    "AdaptiveLogSoftmaxWithLoss",
    "Bilinear",
    "Buffer",
    "CosineSimilarity",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GRU",
    "GRUCell",
    "Identity",
    "LSTM",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "PairwiseDistance",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RMSNorm",
    "RNN",
    "RNNBase",
    "RNNCell",
    "RNNCellBase",
    "Sequential",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "functional",
    "grad",
    "init",
    "modules",
    "utils",
    *_activation,
    *_batchnorm,
    *_conv,
    *_dropout,
    *_lazy,
    *_loss,
    *_pooling,
    *_vision,
]
