"""PyTorch's operator database in float32 and complex64, forward: every name that we have answers as PyTorch does."""

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
EVERYWHERE = {
    "resize_": "refused: the memory is the daemon's",
    "resize_as_": "not there, as resize_",
}
DIFFERENT: dict[torch.dtype, dict[str, str]] = {
    torch.float32: EVERYWHERE,
    torch.complex64: EVERYWHERE | dict.fromkeys(
        ("logaddexp", "logcumsumexp", "normal", "uniform"), "not defined for complex dtypes"),
}
CASES = [(dtype, name) for dtype in DIFFERENT for name in HAVE]


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize(("dtype", "name"), [c for c in CASES if c[1] not in DIFFERENT[c[0]]], ids=lambda v: str(v).removeprefix("torch."))
def test_name(session, dtype, name):
    _, difference = run_name(OURS, DATABASE[name], "forward", dtype)
    assert difference is None


@pytest.mark.parametrize(("dtype", "name"), [c for c in CASES if c[1] in DIFFERENT[c[0]]], ids=lambda v: str(v).removeprefix("torch."))
def test_listed_difference_is_still_one(session, dtype, name):
    _, difference = run_name(OURS, DATABASE[name], "forward", dtype)
    assert difference is not None, "take it off the list"


@pytest.mark.parametrize("dtype", DIFFERENT)
def test_share_of_names(dtype):
    assert len(DIFFERENT[dtype]) <= 0.02 * len(HAVE)
