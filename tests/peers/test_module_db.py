"""Runs PyTorch's module and optimizer databases: every class that teletensor has must be constructed,
printed, saved, computed, differentiated, stepped and refused as PyTorch's is."""

import sys
import warnings
from pathlib import Path

import pytest
import teletensor
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from module_db import MODULES, OPTIMIZERS, run_class
from op_db import Ours

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

OURS = Ours(teletensor)


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize("name", [*MODULES, *OPTIMIZERS])
def test_class(session, name):
    _, difference = run_class(OURS, name, torch.float64)
    assert difference is None
