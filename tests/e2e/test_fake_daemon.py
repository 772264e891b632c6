"""The conformance kit's fake daemon: it answers transcripts to clients, and finds what they do wrong."""

import json
import os
import re
import subprocess
import sys

import pytest
from conformance import programs
from teletensor._conformance.command import names, play_all, serve_all
from teletensor._conformance.fake import FakeDaemon
from teletensor._conformance.runner import Player
from teletensor._conformance.transcript import FOLDER

PATIENCE = 3  # seconds for a message that a faulty client never sends


@pytest.fixture(scope="module")
def fake():
    daemon = FakeDaemon("127.0.0.1:0", PATIENCE)
    yield daemon
    daemon.close()


def answered(fake, name, client):
    """How the client differed from the transcript, and what it returned."""
    script = fake.begin(FOLDER / f"{name}.txt")
    found = client(fake.address, name)
    return fake.wait(script, PATIENCE), found


@pytest.mark.parametrize("name", names())
def test_the_player(fake, name):
    """The kit's player passes against the kit's fake daemon, which no other code answers for."""
    told, played = answered(fake, name, lambda address, name: list(
        play_all(address, [name], operator=lambda _: address)))
    assert (told, played) == ("", [(name, None)])


@pytest.mark.parametrize("name", programs.THIN)
def test_the_thin_client(fake, name):
    told, (found, wanted) = answered(fake, name, programs.run_thin)
    assert (told, found) == ("", wanted)


@pytest.mark.parametrize("name", programs.OWN)
def test_the_python_client(fake, name):
    told, (found, wanted) = answered(fake, name, programs.run_own)
    assert (told, found) == ("", wanted)


class Serving:
    """`teletensor conformance --serve` in a process of its own."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "teletensor.cli", "conformance", "--serve", *words], cwd="/",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        self.address = self.process.stderr.readline().removeprefix("listening on ").strip()

    def end(self):
        """Its exit status and what it has printed."""
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


def test_the_command():
    serving = Serving("127.0.0.1:0", "client_ops", "client_cut")
    for name in ("client_ops", "client_cut"):
        found, wanted = programs.run_thin(serving.address, name)
        assert found == wanted
    assert serving.end() == (0, "passed  client_ops\npassed  client_cut\n2 passed, 0 failed\n")


def test_the_command_reports_a_wrong_client(tmp_path):
    serving = Serving(f"unix:{tmp_path}/fake.sock", "client_ops", "--json")
    played = dict(play_all(serving.address, ["client_gradients"]))
    assert re.search(r"client_gradients.txt:\d+: told", played["client_gradients"])
    status, out = serving.end()
    [row] = json.loads(out)
    assert status == 1 and not row["passed"] and row["transcript"] == "client_ops"
    assert re.search(r"client_ops.txt:\d+: frame", row["difference"])
    assert "command 1 of the client: constant.shape: [2, 2] expected, [2] found" in row["difference"]


def test_the_command_refuses_wrong_addresses():
    for address, text in (("tls://127.0.0.1:0", "--serve has no TLS"), ("unix:/nowhere/fake.sock", "cannot listen")):
        done = subprocess.run([sys.executable, "-m", "teletensor.cli", "conformance", "--serve", address],
                              capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and text in done.stderr, done.stderr


def test_a_client_that_goes_away_fails(tmp_path):
    [(name, told)] = serve_all(f"unix:{tmp_path}/fake.sock", ["client_ops"], patience=0.01)
    assert name == "client_ops" and "the client has sent nothing more" in told


class Wrong(Player):
    """A player that alters messages on the way to the fake daemon."""

    golden = False

    def __init__(self, address, change):
        self.change = change
        super().__init__(address, patience=PATIENCE)
        encode = self.caller.schema.encode
        seen = {}

        def altered(name, values):
            seen[name] = seen.get(name, 0) + 1
            values = dict(values)
            self.change(name, values, seen[name])
            return encode(name, values)
        self.caller.schema.encode = altered


def at(message, change, count=None):
    """Changes each message of this type, or the one with this number."""
    def altered(name, values, number):
        if name == message and count in (None, number):
            change(values)
    return altered


def command(place, change):
    """Changes a command of the first frame."""
    def altered(values):
        commands = [dict(each) for each in values["commands"]]
        change(commands[place])
        values["commands"] = commands
    return at("Frame", altered, 1)


def nested(kind, **fields):
    return lambda values: values.update({kind: {**values[kind], **fields}})


# name: (transcript, what the client changes, what the fake daemon says of it)
FAULTS = {
    "another operand": ("client_ops", command(1, lambda c: c.update(arguments=[2, 4])),
                        "command 2 of the client: arguments: 'distance 1' expected, 'distance 2' found"),
    "another op": ("client_ops", command(1, lambda c: c.update(op=2)), "op: 'mul' expected, 'sum' found"),
    "another number": ("client_ops", command(2, lambda c: c.update(reals=[2])), "2.5 expected, 2.0 found"),
    "another attribute": ("client_ops", command(4, lambda c: c.update(attributes=[12, 1, 0])), "attributes"),
    "an id too many": ("client_ops", command(1, lambda c: c.update(made=2)), "made: 1 expected, 2 found"),
    "another element": ("client_ops", command(0, nested("constant", data=bytes(16))), "constant.data"),
    "another shape": ("client_ops", command(0, nested("constant", shape=[4])), "constant.shape"),
    "a command too few": ("client_ops", at("Frame", lambda v: v.update(commands=v["commands"][:3]), 1),
                          "command 4\n    expected this step, got: call Close"),
    "a wrong number": ("client_ops", at("Frame", lambda v: v.update(first_seq=2)), "first_seq: 1 expected, 2 found"),
    "a wrong id": ("client_ops", at("Frame", lambda v: v.update(first_id=0)), "first_id: 1 expected, 0 found"),
    "no instance": ("client_ops", at("HelloRequest", lambda v: v.pop("instance_id")), "instance_id"),
    "not recorded": ("client_gradients", command(4, lambda c: c.pop("record")), "record: True expected"),
    "inputs in another order": ("client_gradients", command(6, nested("backward", inputs=[4, 3])),
                                "backward.inputs: 3 expected, 4 found"),
    "a flag off": ("client_gradients", command(1, nested("set_flag", on=False)), "set_flag.on: True expected"),
    "a counter that stays": ("client_cut", at("AttachRequest", lambda v: v.update(attach_counter=1)),
                             "attach_counter: above 1 expected, 1 found"),
    "another epoch": ("client_cut", at("AttachRequest", lambda v: v.update(server_epoch=5)), "server_epoch: 1"),
    "progress that was not sent": ("client_cut", at("AttachRequest", lambda v: v.update(progress_upto=99)),
                                   "progress_upto: at most 1 expected, 99 found"),
    "an upload with a gap": ("client_bulk", at("UploadChunk", lambda v: v.update(offset=v["offset"] + 4), 2),
                             "offset: "),
    "another upload": ("client_bulk", command(0, nested("uploaded", upload=77)), "uploaded.upload"),
    "a download that begins anew": ("client_bulk", at("DownloadRequest", lambda v: v.update(offset=0)),
                                    "offset: 8 expected, 0 found"),
    "no thin": ("client_late_error", at("HelloRequest", lambda v: v.pop("thin")), "thin: True expected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_client_is_found(fake, fault):
    name, change, text = FAULTS[fault]
    script = fake.begin(FOLDER / f"{name}.txt")
    player = Wrong(fake.address, change)
    try:
        player.play(FOLDER / f"{name}.txt")
    except Exception as error:  # the player is told of it as well, in one way or another
        assert type(error).__name__ == "Mismatch"
    finally:
        player.close()
    told = fake.wait(script, 0.2)
    assert told.startswith(f"{name}.txt:") and text in told, told


def test_unknown_fields_are_found(fake):
    script = fake.begin(FOLDER / "client_ops.txt")
    player = Wrong(fake.address, lambda *_: None)
    encode = player.caller.schema.encode
    player.caller.schema.encode = lambda name, values: encode(name, values) + (b"\x78\x01" if name == "Frame" else b"")
    with pytest.raises(Exception, match="Frame has no field 15"):
        player.play(FOLDER / "client_ops.txt")
    player.close()
    assert "Frame has no field 15" in fake.wait(script, 0.2)
