"""Runs random programs about names, views, in-place writes and the tape with teletensor on a daemon and
with PyTorch, and compares every visible fact after every step."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))
from libraries import Teletensor, Torch
from names_fuzz import Fuzzer

SEEDS = {20261121: 1000, 4242: 500, 7: 500}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_programs_through_a_daemon(tt, seed):
    fuzzer = Fuzzer(Torch(), Teletensor())
    bad = fuzzer.programs(SEEDS[seed], seed)
    print(f"seed {seed}:", dict(sorted(fuzzer.counts.items())))
    assert not bad, bad
    assert fuzzer.counts["programs"] == SEEDS[seed]
    assert fuzzer.counts["ran to the end"] > SEEDS[seed] * 0.85
    assert fuzzer.counts["recorded in-place"] > 100
