"""Random histories against a model: support/histories.py. `make chaos` runs a thousand."""

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support.histories import DONE, machine


def test_histories():
    """A hundred, or as many as 60 seconds hold."""
    with machine(seconds=60) as histories:
        run = settings(max_examples=100, stateful_step_count=25, deadline=None, database=None,
                       phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(seed(1)(histories), settings=run)
    assert DONE["histories"] >= 5 and DONE["crashes"] + DONE["restarts"] >= 3, DONE
