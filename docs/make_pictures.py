"""Draws the plot of docs/getting_started.md and runs the notebooks, which then hold what they printed.

`make pictures` runs it. Times and plots differ from run to run, so no test makes them again; the tests run
the same programs and compare what they print.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LIMIT = 600  # seconds for one cell; ends a hang
sys.path.insert(0, str(DOCS.parent / "tests"))
from support.daemon import Daemon  # noqa: E402
from support.daemons import start_daemons  # noqa: E402
from support.snippets import check, snippets  # noqa: E402


@contextlib.contextmanager
def mesh_daemons() -> Iterator[str]:
    """Four daemons for the notebook that trains on a mesh; its $MESH."""
    running = start_daemons(Daemon, 4)
    try:
        yield ",".join(daemon.unix for daemon in running)
    finally:
        problems = [problem for daemon in running if (problem := daemon.stop())]
    assert not problems, "\n".join(problems)


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in `folder`; an error where a cell raises one."""
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    NotebookClient(notebook, timeout=LIMIT, record_timing=False, coalesce_streams=True,
                   resources={"metadata": {"path": str(folder)}}).execute()
    notebook.metadata = nbformat.from_dict(metadata)
    return notebook


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for snippet in snippets(DOCS / "getting_started.md"):
            check(snippet, folder)
        shutil.copy(folder / "network.png", DOCS / "images" / "getting_started.png")
        with mesh_daemons() as os.environ["MESH"]:
            for path in NOTEBOOKS:
                nbformat.write(executed(path, folder), path)


if __name__ == "__main__":
    main()
