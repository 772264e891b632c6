"""Sessions of a test's daemon against the model of the protocol (docs/model)."""

import re
import sys

from support.daemon import ROOT

sys.path.insert(0, str(ROOT / "docs/model"))
import check


def told(daemon):
    """By a session's name, what the log of the daemon's lives tells of it."""
    lives = [*daemon.lives, daemon.lines]
    names = re.findall(r'event=session_opened session="(\w+)"', "".join(map("".join, lives)))
    return {name: check.events(lives, name) for name in names}


def refused(traces):
    """Those that no run of the model has."""
    with check.Replayer() as model:
        return {name: trace for name, trace in traces.items() if not model.accepts(trace)}


def spoilt(trace):
    """The same, where the daemon has come back with one command more than its files had."""
    return [each._replace(upto=each.upto + (each.what == "restored")) for each in trace]
