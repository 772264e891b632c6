"""The conformance kit against this daemon, and against one whose answers a proxy alters."""

import subprocess
import sys

import grpc
import pytest
from conformance.__main__ import play_all
from conformance.caller import Caller
from conformance.liar import Liar
from conformance.schema import Schema
from conformance.transcript import FOLDER, Parser
from support.daemon import ROOT, Daemon


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--lease", "600")
    yield running
    problem = running.stop()
    assert not problem, problem


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_transcript(daemon, name):
    assert list(play_all(daemon.unix, [name])) == [(name, None)]


def test_the_command(daemon):
    played = subprocess.run([sys.executable, "-m", "tests.conformance", daemon.tcp, "instruction", "thin"],
                            cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout.splitlines() == ["ok      instruction", "ok      thin", "all as written"]


def test_bytes_of_the_documentation():
    text = (ROOT / "docs/wire.md").read_text()
    for command in ('{ op: 42 record: true arguments: [2, 4] }',
                    '{ op: 42 record: true arguments: [2, 7] reals: [2.5] }'):
        data = Schema().encode("Frame", {"commands": [Parser(command, {}).message()]})
        rows = [data[i:i + size].hex(" ") for i, size in ((0, 2), (len(data) - 4, 4))]
        assert f"| `{rows[0]}` | " in text, rows
        assert data[2:6].hex(" ") in text.replace("` |", " |") or "`08 2a`" in text


def each(key, change):
    """A lie about the entries of Progress."""
    def lie(name, values):
        for entry in values.get(key, ()) if name == "Progress" else ():
            change(entry)
    return lie


def at(message, change):
    def lie(name, values):
        if name == message:
            change(values)
    return lie


def flip(entry):
    if "data" in entry:
        entry["data"] = entry["data"][:3] + bytes([entry["data"][3] ^ 0x40]) + entry["data"][4:]


def tell_again(values):
    """The failure of each Fetch as an error of the command before."""
    values.setdefault("errors", []).extend(
        {"root": each["seq"] - 1, "code": 3, "text": "again"} for each in values.get("fetched", ())
        if each.get("code"))


LIES = {
    "a wrong element": each("fetched", flip),
    "a wrong shape": each("fetched", lambda entry: entry.update(shape=[*entry.get("shape", []), 1])),
    "a wrong dtype": each("fetched", lambda entry: entry.update(dtype=5)),
    "an error that is not told": at("Progress", lambda values: values.pop("errors", None)),
    "an error with another root": each("errors", lambda entry: entry.update(root=entry["root"] + 1)),
    "an error with another code": each("errors", lambda entry: entry.update(code=13)),
    "a failed value with another root": each("fetched", lambda entry: entry.update(root=999)
                                             if entry.get("code") else None),
    "an error that is told again": at("Progress", tell_again),
    "a Raise that takes nothing back": each("raised", lambda entry: entry.pop("rebinds", None)),
    "a Progress that is ahead": at("Progress", lambda values: values.update(fetched=[])),
    "credits that do not grow": at("Progress", lambda values: values.update(credit_upto=1)
                                   if values.get("completed_upto") == 3 else None),
    "wrong strides": each("fetched", lambda entry: entry.get("description", {}).update(strides=[7])
                          if "description" in entry else None),
    "an Attach that has lost frames": at("AttachReply", lambda values: values.update(received_upto=0)),
    "an upload that is said to be further": at("StagedReply", lambda values: values.update(received=11)),
    "a download that has lost bytes": at("DownloadChunk", lambda values: values.update(data=values["data"][4:])),
    "a take-over without an inventory": at("HelloReply", lambda values: values.pop("inventory", None)),
    "thin is not confirmed": at("HelloReply", lambda values: values.pop("thin", None)),
    "an unknown op that is not named": at("HelloReply", lambda values: values.pop("unsupported_ops", None)),
}
ENDINGS = {
    "no reason": lambda code, text, word: (code, text, ""),
    "another reason": lambda code, text, word: (code, text, word and "lost"),
    "another code": lambda code, text, word: (grpc.StatusCode.UNKNOWN, text, word),
    "no sentence": lambda code, text, word: (code, "", word),
}


def found(daemon, **lies):
    """The first transcript that does not go as written, or None."""
    with Liar(daemon.unix, **lies) as liar:
        return next((name for name, mismatch in play_all(liar.address) if mismatch), None)


def test_the_proxy_itself_is_not_found(daemon):
    assert found(daemon, lie=lambda name, values: None) is None


@pytest.mark.parametrize("fault", LIES)
def test_a_lie_is_found(daemon, fault):
    assert found(daemon, lie=LIES[fault]) is not None


@pytest.mark.parametrize("fault", ENDINGS)
def test_a_wrong_ending_is_found(daemon, fault):
    assert found(daemon, ending=ENDINGS[fault]) is not None


def test_the_schema_agrees_with_protoc(daemon):
    """The kit's encoder and protoc's classes give the same bytes of a message with every kind of field."""
    from support.raw import messages
    _, program, *_ = messages()
    values = {"op": 300, "record": True, "arguments": [0, 2, 1 << 40], "integers": [-3, 1 << 62], "reals": [0.5],
              "texts": ["a", "b"], "counts": [2], "made": 3}
    assert Schema().encode("Command", values) == program.Command(**values).SerializeToString()
    data = program.Command(**values).SerializeToString()
    assert Schema().decode("Command", data) == values
    caller = Caller(daemon.unix)
    assert caller.unary("Describe")["ops"]
    caller.close()
