"""Neural networks: Module, layers and losses, and the submodules functional, init and utils."""

from . import functional, grad, init, modules, utils
from ._layers.activation import *  # noqa: F403
from ._layers.activation import __all__ as _activation
from ._layers.adaptive import AdaptiveLogSoftmaxWithLoss
from ._layers.batchnorm import *  # noqa: F403
from ._layers.batchnorm import __all__ as _batchnorm
from ._layers.containers import ModuleDict, ModuleList, Sequential
from ._layers.conv import *  # noqa: F403
from ._layers.conv import __all__ as _conv
from ._layers.distance import CosineSimilarity, PairwiseDistance
from ._layers.dropout import *  # noqa: F403
from ._layers.dropout import __all__ as _dropout
from ._layers.lazy import *  # noqa: F403
from ._layers.lazy import __all__ as _lazy
from ._layers.linear import Bilinear, Flatten, Identity, Linear, Unflatten
from ._layers.loss import *  # noqa: F403
from ._layers.loss import __all__ as _loss
from ._layers.normalization import LayerNorm, RMSNorm
from ._layers.pooling import *  # noqa: F403
from ._layers.pooling import __all__ as _pooling
from ._layers.rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell, RNNCellBase
from ._layers.sparse import Embedding, EmbeddingBag
from ._layers.vision import *  # noqa: F403
from ._layers.vision import __all__ as _vision
from .attention import (
    MultiheadAttention,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from .module import Module
from .parameter import Buffer, Parameter
from .parameter_containers import ParameterDict, ParameterList

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
