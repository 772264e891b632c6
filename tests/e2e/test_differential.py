"""Random functions give one result in every way of running them (tests/fuzz/differential.py runs
thousands)."""

import pytest
from fuzz import differential


@pytest.mark.parametrize("part", range(4))
def test_one_answer_however_a_function_is_run(part, tmp_path):
    ways = {}
    for number in range(part * 12, part * 12 + 12):
        for way in differential.check(number, tmp_path, cuts=2):
            ways[way] = ways.get(way, 0) + 1
    assert ways["cuts"] + ways.get("refused", 0) == 12 and ways["cuts"] >= 9
    # Functions with control flow are only scripted.
    assert ways["captured"] + ways.get("scripted with control flow", 0) >= 11
    assert ways["captured"] >= 4 and ways["loaded"] >= 1 and ways["scripted"] >= 2
