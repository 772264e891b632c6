"""Checks that every op of the catalog is documented, reachable, and differentiable or says why not."""

import re

import teletensor as tt
from repository import ROOT
from teletensor import _core

OPS = _core.catalog()
# Public ops that are not attributes of `tt` under their own name, with the functions that use them.
REACHED_OTHERWISE = {"adam_step": "tt.optim.Adam, AdamW", "nadam_step": "tt.optim.NAdam",
                     "amp_unscale": "tt.amp.GradScaler"}
REACHED_OTHERWISE |= {
    f"{name.lower()}_step": f"tt.optim.{name}"
    for name in ("SGD", "Adamax", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
}


def test_the_catalog_is_whole():
    assert len(OPS) > 100
    assert len({op["name"] for op in OPS}) == len(OPS)


def test_declarations():
    for op in OPS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", op["name"])
        assert op["signature"].startswith(op["name"] + "(")
        assert len(op["doc"]) >= 3, f"{op['name']} has no doc"
        assert op["doc"].rstrip()[-1] in ".)?", f"{op['name']}: the doc ends as a sentence does"
        assert op["revision"] >= 1


def test_differentiable_or_says_why_not():
    for op in OPS:
        if op["differentiable"]:
            assert not op["not_differentiable"], op["name"]
        else:
            assert len(op["not_differentiable"]) >= 8, f"{op['name']}: no derivative, no reason"


def test_reachable_from_python():
    places = (tt, tt.Tensor, tt.nn.functional, tt.special)
    hidden = [op["name"] for op in OPS if not op["internal"]
              and not any(hasattr(place, op["name"].removeprefix("special_")) for place in places)
              and op["name"] not in REACHED_OTHERWISE]
    assert not hidden


def test_the_operator_page_has_every_op():
    text = (ROOT / "docs/ops.md").read_text()
    missing = [op["name"] for op in OPS if f"### `{op['name']}`" not in text]
    assert not missing
