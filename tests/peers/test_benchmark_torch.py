"""Compares the measurements and the colours of tables of utils.benchmark with PyTorch's."""

import random
import re

import pytest
import torch.utils.benchmark as theirs
from teletensor.utils import benchmark as ours

BOTH = (ours, theirs)


def measurement(m, times, number=1, **spec):
    return m.Measurement(number, list(times), m.TaskSpec("x + 1", "pass", **spec))


def random_times(count):
    base = 10 ** random.uniform(-8, 1)
    return [base * random.uniform(1, random.choice([1.001, 1.05, 1.5, 4])) for _ in range(count)]


def test_the_facts_of_a_measurement():
    for _ in range(200):
        times, number = random_times(random.randint(1, 9)), random.choice([1, 10])
        a, b = (measurement(m, times, number, label="l", sub_label="s", env="e") for m in BOTH)
        for name in ("mean", "median", "iqr"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-15), (name, times)
        if abs(b.iqr / b.median - 0.1) > 1e-6:
            assert a.has_warnings == b.has_warnings, times
            assert a.meets_confidence(0.3) == b.meets_confidence(0.3), times
        assert a.significant_figures == b.significant_figures, times
        assert (a.title, a.as_row_name, a.stmt, a.num_threads) == (b.title, b.as_row_name, b.stmt, b.num_threads)


def test_the_helpers():
    for _ in range(200):
        x, n = random.choice([1, -1]) * 10 ** random.uniform(-6, 6), random.randint(1, 5)
        assert ours.trim_sigfig(x, n) == pytest.approx(theirs.trim_sigfig(x, n), rel=1e-6)
    for m in BOTH:
        with pytest.raises(AssertionError, match="must be an integer"):
            m.trim_sigfig(1.0, 1.5)
        assert m.ordered_unique([3, 1, 3]) == [3, 1]
        assert m.select_unit(2e-5) == ("us", 1e-6)
    for spec in ({}, {"label": "l"}, {"label": "l", "sub_label": "s", "description": "d"}):
        for setup in ("pass", "", "a = 1", "a = 1\nb = 2"):
            a, b = (m.TaskSpec("x + 1", setup, **spec) for m in BOTH)
            assert (a.setup_str(), a.title) == (b.setup_str(), b.title)
            assert a.summarize().splitlines() == b.summarize().strip().splitlines()


def colours(m, results, rowwise):
    compare = m.Compare([measurement(m, times, **spec) for times, spec in results])
    plain = str(compare)
    compare.colorize(rowwise=rowwise)
    shown = str(compare)
    assert re.sub("\033\\[[0-9]+m", "", shown) == plain  # the colours change nothing else
    cells = [cell for line in shown.splitlines() for cell in line.split("|")[1:]]
    return [re.findall("\033\\[[0-9]+m", cell) for cell in cells if re.search(r"\d\.\d", cell)]


@pytest.mark.parametrize("rowwise", [False, True])
def test_the_colours_of_a_table(rowwise):
    for _ in range(50):
        base = 10 ** random.uniform(-7, 0)
        results = [([base * random.choice([1, 1.005, 1.05, 1.5, 2.5, 6])],
                    {"label": "l", "sub_label": sub, "description": description, "num_threads": threads})
                   for threads in (1, 4) for sub in "ab" for description in ("c1", "c2", "c3") if random.random() < 0.8]
        if results:
            assert colours(ours, results, rowwise) == colours(theirs, results, rowwise), results
