"""Every op of the catalog is documented, reachable, and differentiable or says why not."""

import re

import pytest
import teletensor as tt
from repository import ROOT
from teletensor import _core

OPS = _core.catalog()
PUBLIC = [op for op in OPS if not op["internal"]]
# Public ops that are no attribute of `tt` by their own name: what reaches them.
REACHED_OTHERWISE: dict[str, str] = {}


def by_name(op):
    return op["name"]


def test_the_catalog_is_whole():
    assert len(OPS) > 100
    assert len({op["name"] for op in OPS}) == len(OPS)


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_declaration(op):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", op["name"])
    assert op["signature"].startswith(op["name"] + "(")
    assert len(op["doc"]) >= 15, "the doc says too little"
    assert op["doc"][0].isupper() and op["doc"].rstrip()[-1] in ".)", "a sentence, please"
    assert op["revision"] >= 1


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_differentiable_or_says_why_not(op):
    if op["differentiable"]:
        assert not op["not_differentiable"]
    else:
        assert len(op["not_differentiable"]) >= 8, "no derivative and no reason"


@pytest.mark.parametrize("op", PUBLIC, ids=by_name)
def test_reachable_from_python(op):
    name = op["name"]
    places = (tt, tt.Tensor, tt.nn.functional)
    found = any(hasattr(place, name) for place in places)
    assert found or name in REACHED_OTHERWISE


def test_every_kernel_family_is_in_the_docs():
    text = (ROOT / "docs/ops.md").read_text()
    missing = [op["name"] for op in OPS if f"### `{op['name']}`" not in text]
    assert not missing
