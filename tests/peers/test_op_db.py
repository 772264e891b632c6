"""Runs PyTorch's operator database, forward, in float32 and complex64: every name that teletensor has must
give PyTorch's results."""

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
# Names with a sample that differs, with the reasons.
DIFFERENT: dict[torch.dtype, dict[str, str]] = {
    torch.float32: {},
    torch.complex64: dict.fromkeys(("logaddexp", "logcumsumexp"), "not defined for complex dtypes"),
}


def cases(differ):
    """All names of all dtypes that are on their list of differences, or that are not."""
    return [
        pytest.param(dtype, name, id=f"{str(dtype).removeprefix('torch.')}-{name}")
        for dtype, listed in DIFFERENT.items()
        for name in HAVE
        if (name in listed) == differ
    ]


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize(("dtype", "name"), cases(differ=False))
def test_name(session, dtype, name):
    _, difference = run_name(OURS, DATABASE[name], "forward", dtype)
    assert difference is None


@pytest.mark.parametrize(("dtype", "name"), cases(differ=True))
def test_listed_difference_is_still_one(session, dtype, name):
    _, difference = run_name(OURS, DATABASE[name], "forward", dtype)
    assert difference is not None, "take it off the list"


# Names with a result whose backward PyTorch refuses, or fills with zeros, and teletensor computes.
COMPUTED = {
    "linalg.eig": "PyTorch refuses losses that depend on the free phase of complex eigenvectors",
}


@pytest.mark.parametrize("name", HAVE)
def test_refused_backward(session, name):
    _, difference = run_name(OURS, DATABASE[name], "refusals", torch.float32, most=4)
    assert (difference is not None) == (name in COMPUTED), difference


# Cases that only the larger sets of samples (empty, NaN, other ranks) contain.
@pytest.mark.parametrize("name", ("diff", "linalg.norm", "nn.functional.linear", "nn.functional.multi_margin_loss",
                                  "nn.functional.threshold", "ormqr", "resize_", "resize_as_"))
def test_reference_samples(session, name):
    count, difference = run_name(OURS, DATABASE[name], "reference", torch.float32, most=100)
    assert count > 0 and difference is None


@pytest.mark.parametrize("dtype", DIFFERENT)
def test_share_of_names(dtype):
    assert len(DIFFERENT[dtype]) <= 0.02 * len(HAVE)
