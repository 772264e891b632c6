"""The transcripts of the conformance kit: their bytes, and that they have everything that the wire has."""

import re

import pytest
from conformance import golden
from support.daemon import ROOT
from support.raw import messages
from teletensor._conformance.caller import Caller
from teletensor._conformance.command import names
from teletensor._conformance.fake import FakeDaemon
from teletensor._conformance.schema import Schema
from teletensor._conformance.script import LIMITS
from teletensor._conformance.transcript import FOLDER, steps

# Codes that no transcript has, and why.
CODES = {
    "INTERNAL": "the daemon has to have a fault",
    "UNKNOWN": "the daemon has to be newer",
}
REASONS = {}
# Fields of commands.
FIELDS = {
    "constant.device": "0, which is the host", "uploaded.device": "0, which is the host",
    "published.device": "0, which is the host",
    "backward.expanded": "the client has to differentiate, as no thin client does",
}


@pytest.fixture(scope="module")
def fake():
    daemon = FakeDaemon("127.0.0.1:0")
    yield daemon
    daemon.close()


def text_of(name):
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", names())
def test_the_bytes_are_those_of_protoc(fake, name):
    """protoc's classes make the bytes from the text again. If not: python tests/conformance/golden.py."""
    assert golden.fresh(fake, text_of(name), name) == text_of(name)


@pytest.mark.parametrize("name", names())
def test_the_kit_reads_the_bytes_as_protoc_does(name):
    schema, found = Schema(strict=True), 0
    for step in steps(FOLDER / f"{name}.txt"):
        for kind, data in step.golden:
            values = schema.decode(kind, data)
            assert golden.built(kind, values).SerializeToString(deterministic=True) == data
            found += 1
    assert found > 0


def test_every_step_with_a_message_has_bytes():
    for name in names():
        for step in steps(FOLDER / f"{name}.txt"):
            wanted = step.word in ("hello", "call", "frame", "upload", "download", "reply") or (
                step.word == "told" and step.rest.endswith("}"))
            assert bool(step.golden) >= wanted, f"{name}.txt:{step.line}"


def all_steps():
    return [step for name in names() for step in steps(FOLDER / f"{name}.txt")]


def test_every_command_is_in_a_transcript():
    _, program, *_ = messages()
    commands = [field.name for field in program.Command.DESCRIPTOR.oneofs_by_name["other"].fields]
    text = " ".join(step.text for step in all_steps() if step.word == "frame")
    assert len(commands) == 20
    assert [name for name in ["op", *commands] if not re.search(rf"commands {{ {name}\b", text)] == []


def test_every_field_of_a_command_is_in_a_transcript():
    """A field that no transcript has would be read by no client's author."""
    schema, seen = Schema(), set()
    for step in all_steps():
        for kind, data in step.golden:
            if kind == "Frame":
                for command in schema.decode(kind, data).get("commands", []):
                    seen |= {name for name, value in command.items() if not isinstance(value, dict)}
                    seen |= {f"{name}.{key}" for name, value in command.items() if isinstance(value, dict)
                             for key in value}
    command = schema.messages["Command"]
    wanted = set()
    for name, field in command.fields.items():
        inner = schema.messages.get(field.type)
        wanted |= {f"{name}.{key}" for key in inner.fields} if inner else {name}
    assert wanted - seen == set(FIELDS)


def test_every_call_is_in_a_transcript():
    called = {step.rest.split()[0] for step in all_steps() if step.word in ("call", "until")}
    called |= {{"hello": "Hello", "run": "Run", "upload": "Upload", "download": "Download"}.get(step.word)
               for step in all_steps()}
    wanted = {name.rpartition("/")[2] for name in Schema().calls if ".Compute/" in name}
    assert len(wanted) == 12 and wanted - called == set()


def table(title):
    """The first cells of a table of docs/wire.md, without backticks."""
    text = (ROOT / "docs/wire.md").read_text(encoding="utf-8").partition(title)[2]
    rows = re.search(r"^\|---.*\n((?:\|.*\n)+)", text, re.M).group(1).splitlines()
    return [word for row in rows for word in re.findall(r"`([\w_]+)`", row.split("|")[1])]


def test_every_code_and_reason_is_in_a_transcript():
    """Each code and reason of docs/wire.md's tables is in a transcript, or has a reason why nothing can
    provoke it."""
    codes, words = set(), set()
    numbers = {3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED"}
    for step in all_steps():
        if step.word in ("refused", "ended"):
            code, word = step.rest.split()[:2]
            codes.add(code)
            words.add(word)
        if step.word == "told" and (code := re.search(r"\bcode: (\d+)", step.rest)):
            codes.add(numbers.get(int(code.group(1)), ""))
    for written, found, excused in ((table("## Refused input"), codes, CODES), (table("### Reasons"), words, REASONS)):
        assert len(written) > 10
        missing = set(written) - found
        assert missing == set(excused), "a transcript or a reason is missing, or a reason is out of date"


def test_the_limits_are_those_of_the_page(start_daemon):
    """A daemon with default settings, and the fake daemon, tell the limits of the page."""
    text = (ROOT / "docs/wire.md").read_text(encoding="utf-8").partition("**Limits.**")[2]
    rows = [row.split("|") for row in re.search(r"^\|---.*\n((?:\|.*\n)+)", text, re.M).group(1).splitlines()]
    written = {name: int(value) for row in rows
               for name, value in zip(re.findall(r"\w+", row[1]), row[2].split(","), strict=True)}
    caller = Caller(start_daemon().unix)
    assert written == caller.unary("Describe")["limits"] == LIMITS
    caller.close()
