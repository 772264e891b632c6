"""Tests functions as attributes of a class: functions that PyTorch does not bind to instances are not bound
in teletensor."""

import inspect

import pytest
import teletensor
import torch

SPACES = ("", "nn.functional", "linalg", "fft", "special")


def builtins_of(space):
    ours, theirs = teletensor, torch
    for part in filter(None, space.split(".")):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    for name in sorted(vars(theirs)):
        if not name.startswith("_") and inspect.isbuiltin(getattr(theirs, name)) and hasattr(ours, name):
            yield name, getattr(ours, name)


@pytest.mark.parametrize("space", SPACES)
def test_what_pytorch_does_not_bind(space):
    found = list(builtins_of(space))
    bound = [name for name, function in found if type("Net", (), {"f": function})().f is not function]
    assert len(found) > 20 and not bound
