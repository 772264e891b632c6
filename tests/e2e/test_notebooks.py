"""The notebooks of the documentation run, and print what they hold."""

import sys

import nbformat
import pytest
from support.daemon import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from make_pictures import NOTEBOOKS, executed

VARIES = "varies"  # the tag of a cell whose output differs from run to run


def printed(notebook):
    """What each cell has printed, without those whose output varies."""
    return {
        cell["id"]: [output.get("text") or output["data"].get("text/plain") for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and VARIES not in cell["metadata"].get("tags", [])
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, shared_daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("TELETENSOR_ADDRESS", shared_daemon.unix)
    assert printed(executed(path, tmp_path)) == printed(nbformat.read(path, as_version=4))
