"""Runs tests/chaos/distributed_soak.py for a minute and a half; `make soak` runs it longer."""

import pytest
from chaos import distributed_soak as soak


@pytest.mark.timeout(1800)
def test_trainings_have_the_same_bits_whatever_is_killed():
    report = soak.run(minutes=1.5, seconds=8, round_seconds=45)
    print(report["seen"])
    assert soak.problems(report) == []
    assert report["seen"]["done"] >= 3
