"""Compares jit.isinstance with PyTorch's."""

# ruff: noqa: UP006, UP007, UP035, UP045 (the older forms are what is compared)

import typing
import warnings
from typing import Dict, List, Optional, Tuple, Union

import pytest
import teletensor as tt
import torch

CASES = [
    ([1], List[int]), ([1], List[str]), ([], List[int]), ([[1], [2]], list[list[int]]), ([[1], ["a"]], List[List[int]]),
    ({"a": [1]}, Dict[str, List[int]]), ({"a": 1}, Dict[int, int]), ({}, Dict[str, int]), ((1, "a"), Tuple[int, str]),
    ((1, 2), Tuple[int]), ((), Tuple[int]), (None, Optional[int]), (1, Optional[int]), ("a", Optional[int]),
    (["a"], Optional[List[str]]), (1, Union[int, str]), (1, int | str), (1.5, int | str), (1, (str, int)),
    (1, (str, List[int])), ([1], (str, List[int])), (1, int), (True, bool), ((1,), list[int]), ([1], tuple[int]),
    ([1], list), ([1], List), ({}, dict), ((), Tuple), (1, [int]),
]  # fmt: skip


def outcome(m, value, kind):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = m.jit.isinstance(value, kind)
        except RuntimeError as error:
            result = str(error).replace("torch.", "")
    return result, sum("inner type" in str(each.message) for each in seen)


@pytest.mark.parametrize("value, kind", CASES, ids=str)
def test_the_same_answers(value, kind):
    wanted = outcome(torch, value, kind)
    found = outcome(tt, value, kind)
    if isinstance(wanted[0], str):
        assert isinstance(found[0], str) and found[0].partition(" without ")[0] == wanted[0].partition(" without ")[0]
    else:
        assert found == wanted


def test_tensors():
    with tt.connect() as session, session:
        assert tt.jit.isinstance([tt.ones(1)], typing.List[tt.Tensor])
        assert not tt.jit.isinstance({"a": 1}, Dict[str, tt.Tensor])
