"""The notebooks of the documentation run, and print the outputs that they contain."""

import contextlib
import sys

import nbformat
import pytest
from support.daemon import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from make_pictures import NOTEBOOKS, executed, mesh_daemons

VARIES = "varies"  # the tag of a cell whose output differs from run to run


def printed(notebook):
    """The printed output of each cell, except cells whose output varies."""
    return {
        cell["id"]: [output.get("text") or output["data"].get("text/plain") for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and VARIES not in cell["metadata"].get("tags", [])
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, shared_daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("TELETENSOR_ADDRESS", shared_daemon.unix)
    needed = mesh_daemons() if path.stem == "training_on_a_mesh" else contextlib.nullcontext("")
    with needed as addresses:
        monkeypatch.setenv("MESH", addresses)
        assert printed(executed(path, tmp_path)) == printed(nbformat.read(path, as_version=4))
