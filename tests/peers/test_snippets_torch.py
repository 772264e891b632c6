"""Runs the programs in the documents that use PyTorch together with teletensor."""

import pytest
from support.daemon import ROOT
from support.snippets import check, snippets

PROGRAMS = [
    pytest.param(snippet, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, snippet in enumerate(snippets(page), 1)
    if snippet.needs_torch
]


def test_there_are_some():
    assert PROGRAMS


@pytest.mark.parametrize("snippet", PROGRAMS)
def test_runs(snippet, tmp_path):
    check(snippet, tmp_path)
