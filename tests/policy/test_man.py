"""The manual pages of docs/man: each command has one, and groff formats it without a warning."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT
from teletensor.cli import command_parser

PAGES = sorted((ROOT / "docs/man").iterdir())


def commands():
    parser, _ = command_parser()
    return next(action.choices for action in parser._actions if isinstance(action.choices, dict))


def test_every_command_has_a_page():
    names = {f"teletensor-{name}.1" for name in commands()} - {"teletensor-serve.1"}
    assert {page.name for page in PAGES} == {"teletensor.1", "teletensord.8", *names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_mistakes(page):
    if shutil.which("groff") is None:
        pytest.skip("not installed: groff")
    shown = subprocess.run(["groff", "-ww", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", page], capture_output=True,
                           text=True, check=True, timeout=60)
    assert shown.stderr == ""
    sections = re.findall(r"(?m)^[A-Z][A-Z ]+$", shown.stdout)
    assert {"NAME", "SYNOPSIS", "EXIT STATUS", "SEE ALSO"} <= set(sections)


@pytest.mark.parametrize("name", sorted(set(commands()) - {"serve", "launch"}))
def test_a_page_has_every_option_of_the_help(name):
    """Also of subcommands; the help of `serve` and `launch` is their own."""
    text = (ROOT / f"docs/man/teletensor-{name}.1").read_text(encoding="utf-8").replace("\\-", "-")
    parsers = [commands()[name]]
    for parser in parsers:
        assert "Exit status: 0" in parser.epilog
        assert "".join(parser.epilog.split()) in "".join(parser.format_help().split())
        for action in parser._actions:
            if isinstance(action.choices, dict):
                parsers += action.choices.values()
            for option in action.option_strings:
                assert option in text, option


def test_the_installed_client_has_the_pages():
    folder = Path(sys.prefix) / "share/man/man1"
    for page in PAGES:
        if page.suffix == ".1":
            assert (folder / page.name).read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), page.name
