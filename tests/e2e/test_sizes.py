"""Runs the measurement of cost against size (tests/bench/sizes.py) at its smallest sizes. No time is asserted."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from support.daemon import ROOT

SMALLEST = {"sessions": "1", "tensors": "1000", "tape": "1000", "program": "10", "batch": "10"}


def test_every_case_measures_both_processes(tmp_path):
    made, plot = tmp_path / "sizes.json", tmp_path / "sizes.svg"
    done = subprocess.run(
        [sys.executable, ROOT / "tests/bench/sizes.py", "--largest", "1", "--rounds", "1", "--output", made,
         "--plot", plot], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = json.loads(made.read_text())["costs"]
    assert {name: list(sizes) for name, sizes in costs.items()} == {name: [n] for name, n in SMALLEST.items()}
    for name, n in SMALLEST.items():
        works = {tuple(work.rsplit(", ", 2)): value for work, value in costs[name][n].items()}
        times = {(work, who): value for (work, who, unit), value in works.items() if unit == "us"}
        assert all(value > 0 for value in times.values())
        assert {work for work, who in times if who == "client"} == {work for work, who in times if who == "daemon"}
        assert any(unit == "KiB" for _, _, unit in works)
        assert f"cost of | {int(n):,} |" in done.stdout
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize("values, growth", [((2.0, 1.0, 1.5), "1.50x"), ((3.0,), ""), ((0.0, 4.0), "")])
def test_growth_is_the_last_size_over_the_one_before(monkeypatch, values, growth):
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    import sizes

    [row] = sizes.cells([{"work": value} for value in values])
    assert row == ["work", *[f"{value:.3g}" for value in values], growth]
