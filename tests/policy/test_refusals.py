"""docs/wire.md has every code and every reason that the daemon ends calls with, each with a cure."""

import re

from repository import ROOT

TEXT = (ROOT / "docs/wire.md").read_text(encoding="utf-8")
ENDS = r"\b(?:end|retire|refuse|dismiss|finish)\(|\bEnding\b|return \{.*[Ss]tatus"


def rows(heading):
    """The names in the first cells of the table below the heading, each with all cells of its row."""
    section = TEXT.split(f"\n{heading}\n")[1].split("\n#")[0]
    table = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(name, cells) for cells in table[1:] for name in re.findall(r"`(\w+)`", cells[0])]


def words_of_the_server():
    """The reason words in statements that end a session or a stream."""
    words = set()
    for path in (ROOT / "server").rglob("*.cc"):
        if path.name.endswith("_test.cc") or path.name == "http.cc":
            continue
        for statement in path.read_text(encoding="utf-8").split(";"):
            if re.search(r"\blog_(?:info|warn|error|debug)\(", statement):
                continue
            words |= set(re.findall(r'\bword\s*=\s*"([a-z]+)"', statement))
            if re.search(ENDS, statement, re.DOTALL):
                words |= set(re.findall(r'[,{?:]\s*"([a-z]+)"\s*[,:)}]', statement))
    return words


def codes_of_the_daemon():
    """The codes of all statuses that the server, the engine and the wire create, as gRPC spells them."""
    codes = {"UNAUTHENTICATED", "UNKNOWN"}  # sent by server/access/auth.h; sent by a newer server
    helpers = {"invalid": "INVALID_ARGUMENT", "unimplemented": "UNIMPLEMENTED", "internal": "INTERNAL"}
    for folder in ("server", "engine", "proto/wire"):
        for path in (ROOT / folder).rglob("*.cc"):
            text = path.read_text(encoding="utf-8")
            codes |= {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
                      for name in re.findall(r"\bCode::k([A-Z]\w+)", text)}
            codes |= {code for helper, code in helpers.items() if f"{helper}(" in text}
    return codes - {"OK"}


def test_reasons():
    listed = dict(rows("### Reasons"))
    assert set(listed) == words_of_the_server()
    assert all(len(cells) == 4 and all(cell.strip(" |") for cell in cells[1:]) for cells in listed.values())


def test_codes():
    listed = dict(rows("## Refused input"))
    assert set(listed) == codes_of_the_daemon()
    assert all(len(cells) == 3 and cells[2].strip(" |") for cells in listed.values())
