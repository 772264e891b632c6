"""Random histories compared with a model (support/histories.py). `make chaos` runs a thousand."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support.histories import DONE, machine
from support.traces import refused, spoilt, told


@pytest.mark.timeout(1800)
def test_histories():
    """Runs a fixed number of histories rather than a fixed time, so that a failed history can be repeated
    exactly."""
    with machine() as histories:
        run = settings(max_examples=40, stateful_step_count=25, deadline=None, database=None,
                       phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(seed(1)(histories), settings=run)
    assert DONE["histories"] >= 5 and DONE["crashes"] + DONE["restarts"] >= 3, DONE
    traces = told(histories.daemon)
    assert len(traces) > 20 and not refused(traces)
    restored = min((trace for trace in traces.values() if any(each.what == "restored" for each in trace)), key=len)
    assert refused({"spoilt": spoilt(restored)})
