"""Runs the examples of docs/ops.md again, and checks that a daemon gives the answers that the page
shows."""

import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))
from generate_examples import run  # noqa: E402

EXAMPLES = {op: e for op, e in json.loads((DOCS / "ops_examples.json").read_text()).items() if "code" in e}


@pytest.mark.parametrize("op", sorted(EXAMPLES))
def test_example(tt, op):
    assert run(EXAMPLES[op]["code"], tt) == EXAMPLES[op]["result"]


def test_most_ops_have_one():
    from teletensor import _core

    public = {op["name"] for op in _core.catalog() if not op["internal"]}
    assert len(public & set(EXAMPLES)) >= 0.5 * len(public)
