"""Runs tests/chaos/soak.py for two minutes; `make soak` runs it longer."""

import pytest
from chaos import soak


@pytest.mark.timeout(1800)
def test_nothing_grows_in_two_minutes():
    report = soak.run(minutes=2, round_seconds=20)
    print(report["trend"], report["clients"])
    assert soak.problems(report) == []
    assert report["clients"]["good"] >= 2 and report["clients"]["rubbish"] > 0
