"""Checks the site of the documentation: it builds without a warning, and every public name can be found in
it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from generate_api import MODULES, anchor, operator_of, page_name, public_names


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; mkdocs.yml is strict, so a broken link or anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    mkdocs = Path(sys.executable).with_name("mkdocs")
    done = subprocess.run([mkdocs, "build", "--quiet", "--site-dir", folder], cwd=ROOT,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_it_needs_no_other_site(site):
    """All scripts, styles, fonts and pictures are part of the site: it can be read without a network."""
    foreign = re.compile(r'<(?:script|img)[^>]* src="https?:|<link[^>]* rel="stylesheet"[^>]* href="https?:')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [page for page in pages if foreign.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry(site, module):
    names = public_names(sys.modules[module])
    if module == "teletensor":
        # these link to ops.md, whose anchors are checked
        names = [name for name in names if not operator_of(name)]
    page = (site / "api" / f"{page_name(module)}.html").read_text(encoding="utf-8")
    assert names
    assert [name for name in names if f'id="{anchor(name)}"' not in page] == []


def test_the_search_finds_names_and_messages(site):
    found = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = {entry["title"] for entry in found}
    assert {"Conv2d", "cross_entropy", "AdamW", "OutOfMemoryError"} <= titles
    assert any("no teletensord answers" in entry["text"] for entry in found)


def test_the_operators_are_there(site):
    page = (site / "ops.html").read_text(encoding="utf-8")
    assert 'id="matmul"' in page
