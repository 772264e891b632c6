"""Checks that documents refer to things that exist, and that their examples run."""

import re
import subprocess
import sys

import pytest
from repository import ROOT, files, relative
from support.snippets import check, snippets
from teletensor._connection.daemon import find_daemon

PAGES = files(".md")
LINK = re.compile(r"\]\(([^)#]+)(#[^)]*)?\)")
DEVIATION = re.compile(r"^\| (D\d+) .*\| `(test_d\d+\w*)` \|$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links(page):
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    for target, _ in LINK.findall(prose):
        if not target.startswith(("http", "mailto:")):
            assert (page.parent / target).exists(), f"{relative(page)} links {target}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=relative)
def test_commands_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in re.findall(r"\bmake ([a-z-]+)", page.read_text()):
        assert command in targets or command in ("it", "sure"), f"make {command}"


def help_of(*command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_commands_of_blocks_exist():
    """Checks the flags of `teletensord`, and the commands of `teletensor`, in blocks of shell commands."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = "\n".join(re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.M | re.S)).splitlines()
    flags = [f for line in lines if "teletensord " in line for f in re.findall(r"--[a-z][a-z-]+", line)]
    commands = re.findall(r"(?:^|[ /;])teletensor ([a-z]+)", "\n".join(lines), re.M)
    assert len(flags) > 5 and len(commands) > 5
    known = help_of(find_daemon())
    assert [flag for flag in flags if not re.search(rf"{flag}\b", known)] == []
    known = help_of(sys.executable, "-m", "teletensor.cli")
    assert [command for command in commands if not re.search(rf"\b{command}\b", known)] == []


def test_every_deviation_has_its_test():
    rows = DEVIATION.findall((ROOT / "docs/differences.md").read_text())
    assert [number for number, _ in rows] == [f"D{i}" for i in range(1, len(rows) + 1)]
    assert len(rows) >= 13
    tests = "\n".join(p.read_text() for p in files(".py") if relative(p).startswith("tests/"))
    missing = [name for _, name in rows if f"def {name}(" not in tests]
    assert not missing


def test_the_figures_of_the_readme_are_those_of_the_benchmarks():
    def rows(text):
        return {tuple(cell.strip() for cell in line.split("|")[1:5])
                for line in text.splitlines() if line.startswith("| ")}

    figures = rows((ROOT / "README.md").read_text().partition("## How fast it is")[2].partition("\n## ")[0])
    assert len(figures) > 5
    assert figures <= rows((ROOT / "docs/benchmarks.md").read_text())


def test_programs_with_a_title_have_their_test():
    tests = "\n".join(p.read_text() for p in files(".py") if relative(p).startswith("tests/e2e/"))
    pages = {relative(page) for page in PAGES if any(s.title for s in snippets(page))}
    assert pages and all(f'"{page}"' in tests for page in pages)


PROGRAMS = [
    pytest.param(snippet, id=f"{relative(page)}-{number}")
    for page in PAGES
    for number, snippet in enumerate(snippets(page), 1)
    if not (snippet.title or snippet.needs_torch)
]


@pytest.mark.parametrize("snippet", PROGRAMS)
def test_example_runs(snippet, tmp_path):
    check(snippet, tmp_path)
