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
    "clients": 0.5,
    "deploy": 0.5,
    "docs": 0.5,
    "engine": 0.5,
    "proto": 0.5,
    "server": 0.5,
    "tests": 0.5,
}
# C++ headers whose first comment is still missing or a fragment. This number is only ever lowered.
MAX_HEADERS_WITHOUT_PURPOSE = 0

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
        r"|(?<!nearest[ -])neighbours?)\b",
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
    """Lines of comments; empty lines separate a comment after code from the comments before and after it."""
    for found in CPP_TOKEN.finditer(text):
        prose = found["line"] if found["line"] is not None else found["block"]
        first = text.count("\n", 0, found.start()) + 1
        after_code = text[text.rfind("\n", 0, found.start()) + 1:found.start()].strip()
        lines = [Line(first + offset, line.strip(" /*!<")) for offset, line in enumerate((prose or "").split("\n"))]
        yield from [Line(first, ""), *lines, Line(first, "")] if after_code else lines


def python_lines(text: str) -> Iterator[Line]:
    """Lines of comments, separated as those of C++, and then of docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            line, separator = Line(token.start[0], token.string.strip("# ")), Line(token.start[0], "")
            yield from [separator, line, separator] if token.line[:token.start[1]].strip() else [line]
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


def folder_of(name: str) -> str:
    return name.split("/")[0] if "/" in name else "."


class Marks(NamedTuple):
    """The marks of one top-level folder."""

    rate: float  # in 100 lines of prose
    places: list[str]


def marks_by_folder(texts: dict[str, str]) -> dict[str, Marks]:
    """The marks of files, which are given as their text by name."""
    places: dict[str, list[str]] = {folder_of(name): [] for name in texts}
    lines: Counter[str] = Counter()
    for name, text in texts.items():
        prose = list(READERS[Path(name).suffix](text))
        lines[folder_of(name)] += len({line.number for line in prose if line.text})
        for paragraph in paragraphs(prose):
            places[folder_of(name)] += [
                f"{name}:{paragraph.number}: {mark}: {paragraph.text[:200]}" for mark in marks_of(paragraph.text)]
    return {folder: Marks(100 * len(found) / max(lines[folder], 1), found) for folder, found in places.items()}


def beyond(bounds: dict[str, float], marks: dict[str, Marks]) -> list[str]:
    """A line for each folder without a bound, and for each folder beyond its bound a line and all its places."""
    found = []
    for folder, (rate, places) in marks.items():
        if folder not in bounds:
            found.append(f"{folder} has no bound")
        elif rate > bounds[folder]:
            found += [f"{folder}: {rate:.2f} marks in 100 lines of prose, allowed: {bounds[folder]}", *places]
    return found


def test_marks_are_within_the_bound_of_their_folder():
    texts = {relative(path): path.read_text(encoding="utf-8") for path in prose_files()}
    assert len(texts) > 1000
    found = beyond(BOUNDS, marks_by_folder(texts))
    assert not found, "\n".join(found)


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
    "`pump_` and current_task_owner keep their names; so does `engine/session/frame_consumer.cc`.",
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


def test_a_sentence_is_seen_whole_and_alone():
    cpp = "// Of\n// a device.\n\n// Next.\nint a;  // Whose\nint b;  // Of the b\n"
    assert list(paragraphs(list(cpp_lines(cpp)))) == [
        (1, "Of a device."), (4, "Next."), (5, "Whose"), (6, "Of the b")]
    python = "# Of\n# a device.\na = 1  # Whose\nb = 2  # Of the b\n"
    assert list(paragraphs(list(python_lines(python)))) == [(1, "Of a device."), (3, "Whose"), (4, "Of the b")]


def test_a_folder_beyond_its_bound_is_refused_with_its_places():
    texts = {"engine/a.h": "// A cache.\n// Of a session.\n", "docs/a.md": "Nobody waits.\n", "README.md": "Plain.\n"}
    marks = marks_by_folder(texts)
    assert {folder: each.rate for folder, each in marks.items()} == {"engine": 50, "docs": 100, ".": 0}
    assert beyond({"engine": 50, "docs": 100, ".": 0}, marks) == []
    assert beyond({"engine": 49, "docs": 100, ".": 0}, marks) == [
        "engine: 50.00 marks in 100 lines of prose, allowed: 49", "engine/a.h:1: fragment: A cache. Of a session."]
    assert beyond({"engine": 50, ".": 0}, marks) == ["docs has no bound"]


def test_constants_with_other_names_for_bounds_are_found():
    assert BAD_IDENTIFIER.findall("int kMostOpen = kLeastFree + kMaxOpen + kMostly;") == ["kMostOpen", "kLeastFree"]
