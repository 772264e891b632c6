"""Compares attributes on tensors, and copies of tensors, with PyTorch. Each line is evaluated with both
libraries."""

import copy

import pytest
import torch

LINES = """
x.note
has(x, "note"), x.__setattr__("note", 1), x.note, vars(x)
x.__setattr__("require_grad", True), x.requires_grad
x.__setattr__("shape", 1)
x.__setattr__("grad_fn", 1)
x.__delattr__("note")
set(x).note, has(x.detach(), "note"), has(x.clone(), "note"), has(x.data, "note"), has(x + 0, "note"), x.note
has(set(x).view(2), "note"), has(x.float(), "note"), has(x.double(), "note"), has(x.requires_grad_(), "note")
has(t.tensor(set(x).detach()), "note"), has(t.as_tensor(x), "note"), has(t.nn.Parameter(x), "note")
has(copy.copy(set(x)), "note"), copy.copy(x).note is x.note, copy.deepcopy(x).note, copy.deepcopy(x).note is x.note
has(copy.copy(set(p)), "note"), has(copy.deepcopy(p), "note"), type(copy.copy(p)) is type(p), copy.copy(p).requires_grad
copy.copy(x).requires_grad, copy.copy(x.requires_grad_()).requires_grad, copy.copy(x * 2).is_leaf, (x * 2).is_leaf
copy.copy(x * 2).requires_grad, copy.deepcopy(x).is_leaf
copy.deepcopy(x.requires_grad_() * 2)
copy.copy(x).add_(1), x
copy.copy(m).weight is m.weight, copy.deepcopy(m).weight is m.weight
copy.copy(x.dtype) is x.dtype, copy.copy(x.device) == x.device, type(copy.deepcopy(x.shape)) is t.Size
x.__setattr__("relu", 5), x.relu, t.zeros(2).relu()
"""


def marked(x):
    x.note = [1]
    return x


def evaluated(line, t):
    space = {"t": t, "copy": copy, "has": hasattr, "set": marked, "x": t.ones(2), "p": t.nn.Parameter(t.ones(2)),
             "m": t.nn.Linear(2, 2)}
    try:
        return plain(eval(line, space))
    except Exception as error:
        return type(error)


def plain(value):
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_lines(tt, line):
    assert evaluated(line, tt) == evaluated(line, torch)
