"""Tests every op of the catalog through a daemon against NumPy and finite differences."""

import re

import pytest
from errors import ERRORS, LATE_ERRORS
from rows import COMPOSITES, COVERED_ELSEWHERE, NO_GRADIENT_SAMPLES, ROWS
from tester import MODES, cases, run


def named(rows):
    seen = {}
    for row in rows:
        seen[row.op] = seen.get(row.op, 0) + 1
        yield pytest.param(row, id=f"{row.op}{'' if seen[row.op] == 1 else '-' + str(seen[row.op])}")


@pytest.mark.parametrize("row", list(named(ROWS)))
def test_op(lib, counts, row):
    failures = []
    for mode in MODES:
        count, bad = run(lib, row, mode)
        counts[mode] += count
        failures += bad
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:20])


def raised(call, m):
    """Runs the call and reads its result, so that late errors are raised too."""
    result = call(m)
    for x in result if isinstance(result, (tuple, list)) else [result]:
        if hasattr(x, "numpy"):
            x.numpy()


@pytest.mark.parametrize(("op", "call", "error", "text"), [
    pytest.param(*e, id=f"{e[0]}-{i}") for i, e in enumerate(ERRORS)])
def test_refused_at_the_line(lib, counts, op, call, error, text):
    counts["error"] += 1
    with pytest.raises(error) as caught:
        call(lib.m)
    assert re.search(text, str(caught.value), re.DOTALL), str(caught.value)
    assert len(str(caught.value)) > 10


@pytest.mark.parametrize(("op", "call", "error", "text"), [
    pytest.param(*e, id=f"{e[0]}-{i}") for i, e in enumerate(LATE_ERRORS)])
def test_refused_by_the_kernel(lib, counts, op, call, error, text):
    counts["error"] += 1
    with pytest.raises(error) as caught:
        raised(call, lib.m)
    assert re.search(text, str(caught.value), re.DOTALL), str(caught.value)
    assert float((lib.m.ones(2) + 1).sum().item()) == 4.0  # the session can still be used


def public_ops():
    from teletensor import _core

    return {op["name"]: op for op in _core.catalog() if not op["internal"]}


def test_every_op_has_samples():
    missing = set(public_ops()) - {row.op for row in ROWS} - set(COVERED_ELSEWHERE)
    assert not missing, f"no samples for {sorted(missing)}"


def test_every_row_is_of_an_op():
    named = {row.op for row in ROWS} | {*COVERED_ELSEWHERE, *NO_GRADIENT_SAMPLES}
    unknown = named - set(public_ops()) - COMPOSITES
    assert not unknown, f"not in the catalog: {sorted(unknown)}"


def test_differentiable_ops_have_gradient_samples():
    with_gradients = {row.op for row in ROWS if row.gradients}
    with_gradients |= {*COVERED_ELSEWHERE, *NO_GRADIENT_SAMPLES}
    missing = {name for name, op in public_ops().items() if op["differentiable"]} - with_gradients
    assert not missing, f"gradients are not tested: {sorted(missing)}"


def test_every_op_can_be_timed():
    from perf import calls, scaled

    unknown = {name for name, text, row in calls() if text is None and scaled(row, "f32") is None}
    assert not unknown, f"perf has no call of {sorted(unknown)}"


# Ops whose floating-point results are constants for the tape although operands are floating-point, as in
# PyTorch.
CONSTANT = {
    "detach": "cuts the history", "data": "cuts the history", "bitcast": "reads bytes",
    "uniform": "random numbers", "normal": "random numbers", "bernoulli_p": "random numbers",
    "random_from": "random numbers",
    **dict.fromkeys(["fft.fftfreq", "fft.rfftfreq", "hann_window", "hamming_window", "blackman_window",
                     "bartlett_window", "kaiser_window"], "the sample's tensor only says the size")}


@pytest.mark.parametrize("row", [pytest.param(row, id=row.op) for row in {row.op: row for row in ROWS}.values()])
def test_no_op_becomes_a_constant_silently(lib, row):
    """If floating-point operands require grad, every floating-point result must, unless it is listed
    above."""
    for case in cases(row, [d for d in row.dtypes if d in ("f32", "f64")][:1]):
        arguments, _ = case.tensors(lib)
        arguments = [[wanting(x) for x in each] if isinstance(each, list) else wanting(each) for each in arguments]
        tensors = [x for each in arguments for x in (each if isinstance(each, list) else [each])
                   if hasattr(x, "requires_grad")]
        if not any(x.requires_grad for x in tensors) or any(x.numel() == 0 for x in tensors):
            continue
        for result in case.call(lib, arguments):
            if hasattr(result, "requires_grad") and result.dtype.is_floating_point:
                assert result.requires_grad == (row.op not in CONSTANT), str(case)


def wanting(x):
    floating = hasattr(x, "requires_grad") and x.dtype.is_floating_point
    return x.detach().requires_grad_() if floating else x
