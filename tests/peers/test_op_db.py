"""PyTorch's operator database in float32, forward: every name that we have answers as PyTorch does."""

import sys
import warnings
from pathlib import Path

import pytest
import teletensor
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from op_db import Ours, names, run_name

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

OURS = Ours(teletensor)
DATABASE = names()
HAVE = sorted(n for n in DATABASE if OURS.find(n) is not None)
# Names with a sample that differs, and why.
DIFFERENT: dict[str, str] = {
    "resize_": "refused: the memory is the daemon's",
    "resize_as_": "not there, as resize_",
}


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize("name", [n for n in HAVE if n not in DIFFERENT])
def test_name(session, name):
    _, difference = run_name(OURS, DATABASE[name], "forward", torch.float32)
    assert difference is None


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_listed_difference_is_still_one(session, name):
    _, difference = run_name(OURS, DATABASE[name], "forward", torch.float32)
    assert difference is not None, "take it off the list"


def test_share_of_names():
    assert len(DIFFERENT) <= 0.02 * len(HAVE)
