"""Documents point at things that exist, and their examples run."""

import re
import subprocess
import sys

import pytest
from repository import ROOT, files, relative

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


def test_every_deviation_has_its_test():
    rows = DEVIATION.findall((ROOT / "docs/differences.md").read_text())
    assert [number for number, _ in rows] == [f"D{i}" for i in range(1, len(rows) + 1)]
    assert len(rows) >= 13
    tests = "\n".join(p.read_text() for p in files(".py") if relative(p).startswith("tests/"))
    missing = [name for _, name in rows if f"def {name}(" not in tests]
    assert not missing


def python_blocks():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        for number, block in enumerate(blocks, 1):
            yield pytest.param(block, id=f"{relative(page)}-{number}")


@pytest.mark.parametrize("block", list(python_blocks()))
def test_example_runs(block, tmp_path):
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
