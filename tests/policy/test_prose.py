"""Comments, docstrings and Markdown are plain English: docs/style.md has the rules that this test enforces.

A mark is a pattern of a sentence that readers of the project did not understand: a fragment without its noun, a person
without a name, a place that means a time, a word of the project's own. One mark proves little, so each top-level folder
may have some, in proportion to its lines of prose. The first sentence of a C++ header may have none.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from repository import files, relative

# The largest number of marks in 100 lines of prose, by top-level folder; "." is the files of the root.
# A bound is only ever lowered.
BOUNDS = {
    ".": 0.5,
    "clients": 5.3,
    "deploy": 9.1,
    "docs": 0.5,
    "engine": 8.8,
    "proto": 5.5,
    "server": 9.6,
    "tests": 3.9,
}
# C++ headers whose first comment is still missing or a fragment. This number is only ever lowered.
MAX_HEADERS_WITHOUT_PURPOSE = 29

CPP = {".h", ".cc", ".cu", ".cuh", ".proto"}
GENERATED = {"docs/ops.md", "docs/names.md"}
EXEMPT = {"CHANGELOG.md"}  # the history of releases

START = r"(?:^|(?<=[.;:!?] ))"  # of a sentence, or of a clause that could be one
MARKS = {
    "fragment": re.compile(
        START + r"(?:Of (?:an?|the|all|each|it|its|those|what|one|other)\b"
        r"|Who(?:ever|se|m)? [^.?]*(?:[.;:]|$)"
        r"|Those (?:that|which|who|of)\b"
        r"|That (?:which|of)\b"
        r"|What (?!is|are|does|do|did|was|if|to|follows)[^.?]*(?:[.:]|$))"),
    "bare value": re.compile(START + r"(?:True|False|Null|None|Ok|OK): "),
    "indefinite person": re.compile(
        r"\b(?:some(?:body|one)|any(?:body|one)|every(?:body|one)|nobody|no one|who(?:m)?ever)\b", re.I),
    "others": re.compile(r"\b(?:of|by|to|from|for|than|with|beside) others\b|\bothers'|\bthe ones\b"),
    "behind for later": re.compile(
        r"\b(?:com(?:es?|ing)|came|go(?:es)?|issued|sent|read|runs?|ran|waits?|queued) behind\b"
        r"|\b(?:of|from) before\b(?! (?:an?|the|that|this|it)\b)"),
    "who without a noun": re.compile(
        r"(?:^|[,;:(]|\b(?:to|of|by|for|from|and|or|as|than|with)) ?who (?:has|have|comes?|waits?|lacks?|is there)\b"),
    "moving house": re.compile(
        r"\b(?:hand(?:s|ed)? over|giv(?:es?|en) way|go(?:es)? on|went on|put(?:s)? up|lies? there|stands? there)\b"),
    "coined word": re.compile(
        r"\b(?:strands?|pumps?|movers?|heritage|turnstiles?|sings?|sung|commons|breathes?|house-?keeping"
        r"|(?<!nearest )neighbours?)\b",
        re.I),
}
CODE = re.compile(r"`[^`]*`|\b[\w/-]+\.(?:cc|cuh?|h|py|md|proto|pml)\b|\w+(?:::|_)[\w:]*|\w+\(\)")
BAD_IDENTIFIER = re.compile(r"\bk(?:Most|Least)[A-Z]\w*")
CPP_TOKEN = re.compile(
    r'R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/',
    re.S)


class Line(NamedTuple):
    number: int
    text: str


def cpp_lines(text: str) -> Iterator[Line]:
    for found in CPP_TOKEN.finditer(text):
        prose = found["line"] if found["line"] is not None else found["block"]
        first = text.count("\n", 0, found.start()) + 1
        for offset, line in enumerate((prose or "").split("\n")):
            yield Line(first + offset, line.strip(" /*!<"))


def python_lines(text: str) -> Iterator[Line]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Line(token.start[0], token.string.strip("# "))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            string = node.body[0].value
            for offset, line in enumerate(string.value.split("\n")):
                yield Line(string.lineno + offset, line.strip())


def markdown_lines(text: str) -> Iterator[Line]:
    """Lines and cells of tables; headings are titles and not sentences."""
    code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith("#"):
            yield from (Line(number, cell.strip(" *->")) for cell in line.split("|"))


READERS = {".py": python_lines, ".md": markdown_lines, **dict.fromkeys(CPP, cpp_lines)}


def paragraphs(lines: list[Line]) -> Iterator[Line]:
    """Lines that follow each other are one text, so that a sentence is seen whole."""
    whole: list[str] = []
    first = last = 0
    for line in [*lines, Line(0, "")]:
        if whole and (line.number != last + 1 or not line.text):
            yield Line(first, " ".join(whole))
            whole = []
        if line.text:
            first = first if whole else line.number
            whole.append(line.text)
        last = line.number


def marks_of(text: str) -> list[str]:
    """The names of the marks in a text without code."""
    text = CODE.sub("code", text)
    return [name for name, pattern in MARKS.items() for _ in pattern.finditer(text)]


def prose_files() -> list[Path]:
    return [path for path in files(*READERS) if relative(path) not in GENERATED | EXEMPT]


def first_comment(text: str) -> str:
    """The comment that a header begins with; "" if it begins with code."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("//"):
            break
        lines.append(line.strip("/ "))
    return " ".join(lines)


def states_purpose(text: str) -> bool:
    """Whether a header begins with a comment that is not a fragment."""
    comment = first_comment(text)
    begins_well = re.match(r"[A-Z`\"(0-9]|[a-z_]\w*(?:\(|::|\.|:)", comment) is not None
    first_sentence = re.split(r"(?<=[.?]) ", comment)[0]
    return begins_well and comment.endswith((".", ":", "?", ")")) and "fragment" not in marks_of(first_sentence)


def test_marks_are_within_the_bound_of_their_folder():
    found: dict[str, list[str]] = {folder: [] for folder in BOUNDS}
    lines: Counter[str] = Counter()
    for path in prose_files():
        name = relative(path)
        folder = name.split("/")[0] if "/" in name else "."
        prose = list(READERS[path.suffix](path.read_text(encoding="utf-8")))
        lines[folder] += len({line.number for line in prose if line.text})
        for paragraph in paragraphs(prose):
            found.setdefault(folder, []).extend(
                f"{name}:{paragraph.number}: {mark}: {paragraph.text[:200]}" for mark in marks_of(paragraph.text))
    assert set(lines) <= set(BOUNDS), "a folder has no bound"
    rates = {folder: 100 * len(found[folder]) / lines[folder] for folder in lines}
    worse = {folder: rate for folder, rate in rates.items() if rate > BOUNDS[folder]}
    listed = "\n".join(place for folder in worse for place in found[folder])
    assert not worse, f"marks in 100 lines of prose: {worse}, allowed: {BOUNDS}\n{listed}"


def test_headers_begin_with_their_purpose():
    bad = [relative(path) for path in files(".h", ".cuh") if not states_purpose(path.read_text(encoding="utf-8"))]
    assert len(bad) <= MAX_HEADERS_WITHOUT_PURPOSE, "\n".join(bad)


def test_bounds_of_counts_are_named_max_and_min():
    bad = {relative(path): sorted(set(BAD_IDENTIFIER.findall(path.read_text(encoding="utf-8"))))
           for path in files(*CPP)}
    assert {name: identifiers for name, identifiers in bad.items() if identifiers} == {}


@pytest.mark.parametrize(("mark", "text"), [
    ("fragment", "Of a device without a disk."),
    ("fragment", "Locked. Of the watcher while it runs."),
    ("fragment", "Who comes later takes the next one."),
    ("fragment", "Whose turn it is."),
    ("fragment", "Those that wait."),
    ("fragment", "That which the session owns."),
    ("fragment", "What strip() gave, after all have their ids."),
    ("bare value", "False: nothing has happened."),
    ("indefinite person", "The lane of somebody else."),
    ("indefinite person", "Nobody uses it."),
    ("others", "Memory that is left of others."),
    ("behind for later", "The new commands come behind it."),
    ("behind for later", "Values of before are sent again."),
    ("who without a noun", "The lane goes to who waits longest."),
    ("moving house", "Then the session goes on."),
    ("coined word", "Runs on the strand of the session."),
    ("coined word", "A neighbour may wait for it."),
])
def test_a_bad_sentence_has_its_mark(mark, text):
    assert mark in marks_of(text)


@pytest.mark.parametrize("text", [
    "Error returned when a tensor cannot be spilled because the device has no disk tier.",
    "Returns false, without side effects, if the instructions must be run one by one.",
    "What is the largest frame? The limit is in `limits.h`.",
    "Describes the handles that strip() returned, once each of them has an id.",
    "Another session that waits longer runs first.",
    "The user who has used the least is served first; nearest neighbours are constant.",
    "The file has the counter from before that call.",
    "The file behind the mapping is removed.",
    "`pump_` and strand_owner keep their names; so does `engine/session/pump.cc`.",
    "Of these, only the first is used.",
])
def test_a_plain_sentence_has_no_mark(text):
    assert marks_of(text) == []


@pytest.mark.parametrize("text", [
    "#pragma once\n", "\n// A cache of kernels.\n", "// of a session\n#pragma once\n",
    "// Of a session, and what it owns.\n#pragma once\n", "// A cache\n#pragma once\n",
])
def test_a_header_without_a_purpose_is_refused(text):
    assert not states_purpose(text)


@pytest.mark.parametrize("text", [
    "// A cache of compiled kernels.\n#pragma once\n",
    "// Declares `Session`, which owns\n// the tensors of one client.\n\n#pragma once\n",
])
def test_a_header_with_a_purpose_is_accepted(text):
    assert states_purpose(text)


def test_each_kind_of_file_is_read():
    cpp = 'int a = 1; // Of a\n/* Nobody\nwaits. */ auto s = "// Whose";\n'
    assert [line for line in cpp_lines(cpp) if line.text] == [(1, "Of a"), (2, "Nobody"), (3, "waits.")]
    python = '"""Nobody.\n\nWhose.\n"""\nx = "# Of a"  # Of the x\n'
    read = sorted(line for line in python_lines(python) if line.text)
    assert read == [(1, "Nobody."), (3, "Whose."), (5, "Of the x")]
    page = "# Title\n```sh\n# Of a\n```\n| a | Nobody |\n"
    assert [line for line in markdown_lines(page) if line.text] == [(5, "a"), (5, "Nobody")]
    split = list(paragraphs([Line(3, "Of"), Line(4, "a device."), Line(9, "Next.")]))
    assert split == [(3, "Of a device."), (9, "Next.")]
