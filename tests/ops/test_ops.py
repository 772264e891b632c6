"""Every op of the catalog, through a daemon, against NumPy and finite differences."""

import re

import pytest
from errors import ERRORS, LATE_ERRORS
from rows import COMPOSITES, COVERED_ELSEWHERE, NO_GRADIENT_SAMPLES, ROWS
from tester import MODES, run


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
    """The call and a read of what it gives, so that late errors show as well."""
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
    assert float((lib.m.ones(2) + 1).sum().item()) == 4.0  # the session goes on


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
