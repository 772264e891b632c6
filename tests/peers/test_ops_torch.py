"""Compares the op tester's samples with PyTorch: values, dtypes, strides, gradients."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))
from arrays import FLOATS, WIDE_UNSIGNED, Dt, Library
from errors import ERRORS, LATE_ERRORS
from rows import ROWS
from rows_fft import NAMES as FFT
from rows_linalg import NAMES as LINALG
from tester import cases, difference, gradients, gradients_apart, usable_for_gradients

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
PEER = Library(torch)
# Ops for which PyTorch's strides of an elementwise result are not useful.
FREE_STRIDES = {
    *LINALG,
    *FFT,
    "conj", "real", "imag",  # ops that compute these here; in PyTorch they are views of complex numbers
    "angle", "argsort",
    "argwhere", "as_strided_scatter", "bucketize", "cat", "diagonal_scatter", "einsum", "flip",
    "geqrf",
    "index", "index_put", "isin", "logsigmoid", "max_dim", "min_dim", "msort", "nonzero", "put", "rot90",
    "searchsorted", "select_scatter", "slice_scatter", "sort", "stack", "unique", "where",
}  # fmt: skip


@pytest.fixture(scope="session")
def lib(shared_daemon):
    import teletensor

    with teletensor.connect(shared_daemon.unix):
        yield Library(teletensor)


def compare(lib, case):
    ours = case.call(lib, case.tensors(lib)[0])
    try:
        theirs = case.call(PEER, case.tensors(PEER)[0])
    except NotImplementedError as error:  # PyTorch supports fewer dtypes
        if "not implemented for" in str(error):
            return None
        raise
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if lib.name(a) != PEER.name(b):
            return f"result {i}: dtype {lib.name(a)}, PyTorch {PEER.name(b)}"
        if tuple(a.shape) != tuple(b.shape):
            return f"result {i}: shape {tuple(a.shape)}, PyTorch {tuple(b.shape)}"
        if case.row.op not in FREE_STRIDES and a.numel() and strides(a) != strides(b):
            return f"result {i}: strides {tuple(a.stride())}, PyTorch {tuple(b.stride())}"
        want = PEER.numpy(b)
        bad = difference(lib.numpy(a), want.astype(np.float64) if lib.name(a) in FLOATS else want,
                         lib.name(a), 2 * case.row.tolerance, case.row.exact)
        if bad:
            return f"result {i}: {bad}"
    return None


def strides(t):
    """The strides that matter."""
    return tuple(step for size, step in zip(t.shape, t.stride()) if size > 1)


def compare_gradients(lib, case):
    ours = gradients(lib, case)
    if ours is None:
        return "no history"
    theirs = gradients(PEER, case)
    return None if theirs is None else gradients_apart(ours, theirs, "PyTorch")


def checks(case):
    """The properties of a case that are compared with PyTorch."""
    row = case.row
    asked = {case.dtype, *(v.name for v in case.sample.kwargs.values() if isinstance(v, Dt))}
    if asked & set(WIDE_UNSIGNED):  # PyTorch supports them in hardly any op
        return []
    return [compare] + [compare_gradients] * (
        case.dtype in ("f64", "c128") and row.gradients and row.torch_gradients and usable_for_gradients(case))


@pytest.mark.parametrize("row", [pytest.param(r, id=f"{r.op}-{i}") for i, r in enumerate(ROWS) if r.torch])
def test_op(lib, row):
    failures = []
    for case in cases(row):
        for what in checks(case):
            try:
                bad = what(lib, case)
            except Exception as error:
                bad = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
            if bad:
                failures.append(f"{what.__name__} {case}: {bad}")
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:20])


def test_the_error_table_is_pytorchs():
    """The errors that the op tester requires of teletensor must be those of PyTorch."""
    for op, call, error, _ in [*ERRORS, *LATE_ERRORS]:
        with pytest.raises(error):
            call(torch)
            raise AssertionError(op)
