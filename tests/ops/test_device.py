"""Tests every op of the catalog on cuda:0 with the fake driver, against the tester's oracles.

The fake driver's compiler refuses everything here, so that each op uses the fallback that always works: its
operands are copied to the host, the CPU kernel runs, and its results are copied back.
"""

import pytest
from arrays import Library
from rows import ROWS
from support.cuda import fake
from support.daemon import Daemon
from test_ops import named
from tester import CHECKS, cases, fits_inplace

DTYPES = ("f32", "i64", "bool", "bf16", "c64", "f64")
MOST = {"value": 2, "inplace": 1}  # the maximum number of cases per row


@pytest.fixture(scope="module")
def device():
    import teletensor as tt

    flags, environment = fake(compile="none")
    daemon = Daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        tt.set_default_device("cuda:0")
        tt.backends.cudnn.allow_tf32 = False  # convolutions of f32 are compared without TF32
        try:
            yield Library(tt)
        finally:
            tt.backends.cudnn.allow_tf32 = True
            tt.set_default_device("cpu")
    problem = daemon.stop()
    assert not problem, problem


def chosen(row, mode):
    """A few cases of the row: first those of different dtypes, then more."""
    found = [c for c in cases(row) if mode == "value" or (row.inplace and fits_inplace(c))]
    first = {}
    for case in found:
        first.setdefault(case.dtype, case)
    picked = [first[d] for d in DTYPES if d in first]
    rest = [c for c in found if c not in picked and c.sample is not picked[0].sample] if picked else found
    return (picked[:1] + rest[-1:] + picked[1:])[:MOST[mode]]


@pytest.mark.parametrize("row", list(named(ROWS)))
def test_op(device, counts, row):
    failures = []
    for mode in ("value", "inplace"):
        for case in chosen(row, mode):
            counts["device"] += 1
            try:
                bad = CHECKS[mode](device, case)
            except Exception as error:
                bad = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
            if bad:
                failures.append(f"{mode} {case}: {bad}")
    assert not failures, "\n".join(failures)


def test_they_were_on_the_device(device):
    x = device.m.ones(3)
    assert x.is_cuda and (x + 1).is_cuda and device.m.linspace(0, 1, 5).exp().is_cuda
