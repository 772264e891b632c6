"""The conformance kit against this daemon, and against one whose answers a proxy alters."""

import json
import os
import subprocess
import sys

import grpc
import pytest
from conformance.liar import Liar
from conformance.operated import Operator
from support.daemon import ROOT, Daemon, binary
from support.tls import Authority
from teletensor._conformance.caller import Caller
from teletensor._conformance.command import names, play_all, playable
from teletensor._conformance.schema import Schema
from teletensor._conformance.transcript import Parser


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--lease", "600")
    yield running
    problem = running.stop()
    assert not problem, problem


@pytest.mark.parametrize("name", list(filter(playable, names())))
def test_transcript(daemon, name):
    assert list(play_all(daemon.unix, [name])) == [(name, None)]


@pytest.mark.parametrize("name", [name for name in names() if not playable(name)])
def test_transcript_with_an_operator(daemon, name, tmp_path):
    """The steps of the operator are done with daemons of the transcript's own; faults of a disk are injected."""
    assert name.startswith("operator_")
    operator = Operator(tmp_path)
    try:
        assert list(play_all(daemon.unix, [name], operator=operator)) == [(name, None)]
    finally:
        problem = operator.close()
    assert not problem, problem


def command(*words, **variables):
    """What `teletensor conformance` prints, in a folder that is not the checkout."""
    return subprocess.run([sys.executable, "-m", "teletensor.cli", "conformance", *words], cwd="/",
                          capture_output=True, text=True, timeout=240, env={**os.environ, **variables})


def test_the_command(daemon):
    played = command(daemon.tcp, "instruction", "thin", TELETENSOR_TOKEN_FILE=daemon.token_file)
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout.splitlines() == ["passed  instruction", "passed  thin", "2 passed, 0 failed"]


def test_the_command_prints_json(daemon):
    played = command(daemon.unix, "--json")
    assert played.returncode == 0, played.stdout + played.stderr
    assert json.loads(played.stdout) == [{"transcript": name, "passed": True, "difference": None}
                                         for name in filter(playable, names())]


def test_the_command_reports_a_wrong_answer(daemon):
    with Liar(daemon.unix, lie=LIES["a wrong element"]) as liar:
        shown, told = command(liar.address, "instruction"), command(liar.address, "instruction", "--json")
    assert (shown.returncode, told.returncode) == (1, 1)
    lines = shown.stdout.splitlines()
    assert lines[0] == "failed  instruction" and lines[-1] == "0 passed, 1 failed"
    [row] = json.loads(told.stdout)
    assert not row["passed"] and "instruction.txt:" in row["difference"] and "expected" in row["difference"]


def test_the_command_refuses_wrong_words(daemon):
    unknown = command(daemon.unix, "instructions")
    assert unknown.returncode == 2 and "no transcript 'instructions'; there are: attach, " in unknown.stderr
    needing = command(daemon.unix, "operator_end")
    assert needing.returncode == 2 and "operator_end needs an operator of the daemon" in needing.stderr
    assert command(daemon.unix, "--timeout", "0").returncode == 2
    assert command("127.0.0.1").returncode == 1


def test_the_command_over_tls(start_daemon, tmp_path):
    """Certificates and tokens are those of every command; without one of them nothing is played."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key), "--lease", "60")
    token = subprocess.run([binary(), "--state-dir", f"{daemon.folder}/state", "--create-token", "alice:user"],
                           capture_output=True, text=True, timeout=120, check=True).stdout.strip()
    address = "tls://" + daemon.tcp
    played = command(address, "instruction", "bulk", TELETENSOR_CA=str(authority.ca), TELETENSOR_TOKEN=token)
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout.splitlines() == ["passed  instruction", "passed  bulk", "2 passed, 0 failed"]
    stranger = Authority(tmp_path / "other", "another authority")
    for code, variables in (("UNAUTHENTICATED", {"TELETENSOR_CA": str(authority.ca)}),
                            ("UNAVAILABLE", {"TELETENSOR_CA": str(stranger.ca), "TELETENSOR_TOKEN": token})):
        played = command(address, "instruction", **variables)
        assert played.returncode == 1 and f"Describe: {code}" in played.stdout, played.stdout + played.stderr


def test_the_command_without_a_daemon(tmp_path):
    played = command(f"unix:{tmp_path}/none.sock", "tape")
    assert played.returncode == 1 and "Describe: UNAVAILABLE" in played.stdout
    assert played.stdout.endswith("0 passed, 1 failed\n")


def test_an_answer_that_is_no_message_fails_the_transcript(daemon):
    with Liar(daemon.unix, garble=True) as liar:
        played = dict(play_all(liar.address, ["instruction"]))
    assert "instruction.txt:" in played["instruction"] and "a message that is cut off" in played["instruction"]


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
    "another protocol is named": at("HelloReply", lambda values: values.update(protocol=3)),
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
