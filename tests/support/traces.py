"""Compares the sessions of a test's daemon with the model of the protocol (docs/model)."""

import re
import sys

from support.daemon import ROOT

sys.path.insert(0, str(ROOT / "docs/model"))
import check


def told(daemon):
    """The events of each session, by its name, in the logs of the daemon's processes."""
    lives = [*daemon.lives, daemon.lines]
    names = re.findall(r'event=session_opened session="(\w+)"', "".join(map("".join, lives)))
    return {name: check.events(lives, name) for name in names}


def refused(traces):
    """The traces that no run of the model has."""
    with check.Replayer() as model:
        return {name: trace for name, trace in traces.items() if not model.accepts(trace)}


def spoilt(trace):
    """The trace, changed as if the daemon had restored one command more than its files contained."""
    return [each._replace(upto=each.upto + (each.what == "restored")) for each in trace]
