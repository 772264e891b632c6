"""Checks the model of the protocol (docs/model): its properties hold within small bounds, and fail if a
decision of the protocol is reverted. `make nightly` uses larger bounds."""

import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "docs/model"))
import check


@pytest.mark.parametrize("bounds", check.SMALL)
def test_the_properties_hold(bounds):
    outcome = check.check(bounds)
    assert not outcome.broken, "\n".join(outcome.steps)
    assert outcome.states > 100


def test_no_run_is_without_an_end():
    """Hence a client gets everything for which it waits, or an error, if each run ends well."""
    outcome = check.check(check.Bounds(cuts=1, ops=1, crashes=1, snaps=1), flags=check.CYCLES, arguments=["-l"])
    assert not outcome.broken, "\n".join(outcome.steps)


@pytest.mark.parametrize("mutation", check.MUTATIONS)
def test_a_decision_that_is_undone_breaks_its_property(mutation):
    bounds, wanted = check.MUTATIONS[mutation]
    assert check.check(bounds, [mutation]).broken == wanted


def test_either_guard_against_frames_that_come_twice_is_enough():
    """With one client, either the frame numbers or the fence of streams can be removed."""
    guards = ["TAKEN_TWICE", "STREAM_NOT_FENCED"]
    bounds = check.Bounds(cuts=1)
    assert [check.check(bounds, undone).broken for undone in (guards[:1], guards[1:], guards)] == [
        "", "", "RIGHT_CLIENTS_GO_ON"]


def test_a_trace_with_more_clients_than_the_model_has_is_cut():
    """The last client that is replayed keeps the session, because the model has no client to take it over."""
    trace = [check.Event("opened")]
    trace += [check.Event("given_up"), check.Event("taken_over")] * check.LEASES
    with check.Replayer() as model:
        assert model.accepts(trace)
        assert not model.accepts([*trace[:4], check.Event("opened")])
