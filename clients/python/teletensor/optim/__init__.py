"""Optimizers. A step is one instruction for each parameter group: the daemon updates the whole list of
parameters."""

from . import lr_scheduler, swa_utils
from .adam import Adam, AdamW, SparseAdam
from .adaptive import Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop
from .classic import ASGD, Rprop
from .lbfgs import LBFGS
from .matrices import Adafactor, Muon
from .optimizer import Optimizer
from .sgd import SGD

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "lr_scheduler",
    "swa_utils",
]
