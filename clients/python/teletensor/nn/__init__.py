"""Networks: Module, layers, losses; functional, init and utils beside them."""

from . import functional, init, utils
from .activation import *  # noqa: F403
from .activation import __all__ as _activation
from .attention import (
    MultiheadAttention,
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from .containers import ModuleDict, ModuleList, Sequential
from .dropout import Dropout
from .linear import Bilinear, Flatten, Identity, Linear, Unflatten
from .loss import *  # noqa: F403
from .loss import __all__ as _loss
from .module import Module
from .normalization import LayerNorm, RMSNorm
from .parameter import Buffer, Parameter
from .parameter_containers import ParameterDict, ParameterList
from .rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell, RNNCellBase
from .sparse import Embedding

__all__ = [
    "Bilinear",
    "Buffer",
    "Dropout",
    "Embedding",
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
    "init",
    "utils",
    *_activation,
    *_loss,
]
