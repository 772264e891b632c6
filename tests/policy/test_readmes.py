"""The README of a source folder names every source file of the folder, and no file that does not exist.

A README names files in code spans: `graph.cc`, a pattern such as `linalg_*.cc`, a path from the folder or from the
root of the repository, and a subfolder as `text/`. In the first column of a table a name without a suffix stands for
all files with that stem: `graph` for graph.h and graph.cc. Unit tests (*_test.*) need not be named.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from repository import ROOT, files, relative

SUFFIXES = (".cc", ".cpp", ".h", ".hpp", ".cuh", ".go", ".py", ".pyi", ".sh", ".proto", ".js", ".css", ".html")
FOLDERS = ("engine/", "proto/", "server/", "clients/", "tests/")
SPAN = re.compile(r"`([\w.*/-]+)`")
FIRST_COLUMN = re.compile(r"^\|([^|]*)\|", re.MULTILINE)
LITERALS = 3  # a pattern without a folder begins with so many literal characters, so that none matches the whole folder
LINES, COLUMNS = 60, 110


def stem(name: str) -> str:
    return name.split(".", 1)[0]


def is_test(name: str) -> bool:
    return stem(name).endswith("_test")


def matching(span: str, names: Iterable[str], by_stem: bool) -> set[str]:
    """The files that a code span names."""
    if "*" in span and "/" not in span and len(span.split("*")[0]) < LITERALS:
        return set()
    found = {name for name in names if fnmatchcase(name, span)}
    return found or {name for name in names if by_stem and fnmatchcase(stem(name), span)}


def problems(text: str, inside: Iterable[str], elsewhere: Iterable[str] = ()) -> list[str]:
    """What is wrong with a README, where `inside` are the source files below its folder, relative to it, and
    `elsewhere` are the files of the repository.
    """
    own = {name for name in inside if "/" not in name}
    subfolders = {name.split("/")[0] + "/" for name in inside if "/" in name}
    column = {span for cell in FIRST_COLUMN.findall(text) for span in SPAN.findall(cell)}
    found, named = [], set()
    for span in sorted(set(SPAN.findall(text))):
        hits = matching(span, own, span in column)
        named |= hits or ({span} & subfolders)
        is_file = span.endswith(SUFFIXES)
        exists = hits or span in subfolders or (
            "/" in span and (matching(span, inside, False) or matching(span, elsewhere, False)))
        if not exists and (is_file or span in column):
            found.append(f"names {span}, which does not exist")
    missing = {name for name in own if not is_test(name)} | subfolders
    return found + [f"does not name {name}" for name in sorted(missing - named)]


def readmes() -> dict[str, str]:
    """The folders of sources that have a README, and its text."""
    return {relative(p.parent): p.read_text() for p in files(".md")
            if p.name == "README.md" and relative(p).startswith(FOLDERS)}


def test_readmes_name_the_files_of_their_folders():
    everything = [relative(p) for p in files()]
    folders = {str(parent) + "/" for name in everything for parent in PurePosixPath(name).parents}
    sources = [name for name in everything if name.endswith(SUFFIXES)]
    wrong = []
    for folder, text in readmes().items():
        inside = [name.removeprefix(folder + "/") for name in sources if name.startswith(folder + "/")]
        wrong += [f"{folder}/README.md {problem}" for problem in problems(text, inside, [*everything, *folders])]
    assert not wrong, "\n".join(wrong)


def test_readmes_fit_on_a_screen():
    for folder, text in readmes().items():
        lines = text.splitlines()
        if folder == "engine/ops":  # it also shows one op from end to end
            continue
        assert len(lines) <= LINES, f"{folder}/README.md: {len(lines)} lines"
        wide = [line for line in lines if len(line) > COLUMNS and not line.startswith("|")]
        assert not wide, f"{folder}/README.md: {wide}"


def test_the_architecture_page_links_every_readme():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [folder for folder in readmes() if f"](../{folder}/README.md)" not in page] == []


SAMPLE = """The graph (`graph.cc`) calls `Graph::apply`; see `engine/ops/op.h`.

| files | contents |
|---|---|
| `graph`, `solve_*.cc` | handles, and `tape` |
| `text/` | texts |
"""


def test_missing_and_surplus_names_are_found():
    inside = ["graph.h", "graph.cc", "graph_test.cc", "solve_a.cc", "solve_b.cc", "text/one.cuh"]
    elsewhere = ["engine/ops/op.h"]
    assert problems(SAMPLE, inside, elsewhere) == []
    assert problems(SAMPLE, [*inside, "tape.cc"], elsewhere) == ["does not name tape.cc"]
    assert problems(SAMPLE, [*inside, "more/x.h"], elsewhere) == ["does not name more/"]
    assert problems(SAMPLE, inside) == ["names engine/ops/op.h, which does not exist"]
    assert problems(SAMPLE, ["graph.h", "text/one.cuh"], elsewhere) == [
        "names graph.cc, which does not exist", "names solve_*.cc, which does not exist"]
    assert "does not name graph.h" in problems("`*.h` and `g*`", inside)


def test_there_is_something_to_check():
    assert len(readmes()) > 15
