"""Malformed commands and requests, drawn at random over all commands and fields: each is refused as docs/wire.md
says, and no other session notices."""

import os
import random
import struct
import threading

import grpc
import pytest
from conformance.malformed import NEXT_ID, OPS, SCHEMA, SETUP, draw
from support.daemon import HANG, Daemon, wait_until
from support.http import samples, scrape
from support.raw import Raw, messages
from teletensor._conformance.caller import Caller, Refusal
from teletensor._conformance.runner import PROTOCOL, ids_of
from teletensor._conformance.schema import varint

SEEDS, DRAWS = 4, 75  # 300 commands of each kind of client
# Codes of a client's mistake. Others would be the daemon's fault, or not be of one command.
MISTAKES = {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION", "ALREADY_EXISTS", "PERMISSION_DENIED"}
LATE = {3, 4, 5, 6, 7, 8, 9, 11, 12}  # and DEADLINE_EXCEEDED, of a collective that other ranks do not call
LAST = {"constant": {"dtype": 9, "shape": [1], "data": struct.pack("<f", 7)}}


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--session-memory", "64MiB", "--lease", "60")
    yield running
    with Raw(running.unix) as raw:
        wait_until(lambda: not any(raw.used().values()), what="memory of the sessions back at 0")
    alarms = [line for line in running.lines if "level=error" in line or "level=critical" in line]
    problem = running.stop()
    assert not problem and not alarms, (problem, alarms)


@pytest.fixture(scope="module")
def caller(daemon):
    found = Caller(daemon.unix, patience=HANG)
    yield found
    found.close()


class Session:
    """A session of SETUP, which sends commands as bytes."""

    def __init__(self, caller, thin):
        self.caller, self.seq, self.next_id = caller, 1, 1
        revisions = {op["name"]: op["revision"] for op in caller.unary("Describe")["ops"]}
        reply = caller.unary("Hello", {
            "protocol_min": PROTOCOL, "protocol_max": PROTOCOL, "client_version": "malformed", "thin": thin,
            "instance_id": os.urandom(16), "attach_counter": 1, "lease_seconds": 60,
            "ops": [{"name": name, "revision": revisions[name]} for name in OPS]})
        self.metadata = (("teletensor-token", reply["token"]),)
        self.run, self.completed, self.told = caller.run(self.metadata), 0, []
        for command in SETUP:
            self.send(SCHEMA.encode("Command", command), ids_of(command))
        assert self.next_id == NEXT_ID

    def send(self, command, made):
        """Sends a frame with this command, which takes that number of ids."""
        head = SCHEMA.encode("Frame", {"first_seq": self.seq, "first_id": self.next_id, "attach_counter": 1})
        self.run.send(head + varint(5 << 3 | 2) + varint(len(command)) + command)
        self.seq, self.next_id = self.seq + 1, self.next_id + made

    def finish(self):
        """Waits until everything has run. Returns the refusal that has ended the session, or None."""
        hang = threading.Timer(HANG, self.run.call.cancel)
        hang.start()
        try:
            while self.completed < self.seq - 1:
                progress = self.run.read()
                assert progress is not None
                self.completed = max(self.completed, progress.get("completed_upto", 0))
                self.told += [*progress.get("errors", []), *progress.get("fetched", [])]
        except Refusal as refusal:
            return refusal
        finally:
            hang.cancel()
        return None

    def close(self):
        """Ends the session. Returns how the call was refused, or None."""
        self.run.cut()
        try:
            self.caller.unary("Close", {}, self.metadata)
        except Refusal as refusal:
            return refusal
        return None


def made_by(data):
    """How many ids the command takes. Of several kinds the last one counts, as protoc's classes read them."""
    command = messages()[1].Command.FromString(data)
    kind = command.WhichOneof("other")
    values = {"made": command.made} if command.HasField("made") else {}
    if kind is None:
        values |= {"op": command.op, "inplace": command.inplace}
    else:
        values[kind] = {"made": getattr(getattr(command, kind), "made", 0)}
    return ids_of(values)


def check_late(told, what):
    for each in told:
        if each.get("code"):
            assert each["code"] in LATE and each.get("text"), (what, each)


@pytest.mark.parametrize("thin", [False, True], ids=["whole", "thin"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_malformed_command(caller, seed, thin):
    """It is refused by its number, as the client's mistake, or runs. A thin session ends only by bytes that are
    no command."""
    generator, ended = random.Random(seed), 0
    for _ in range(DRAWS):
        what, data, may_end = draw(generator)
        session = Session(caller, thin)
        session.send(data, 0)
        refusal = session.finish()
        check_late(session.told, what)
        if refusal is not None:
            ended += 1
            assert refusal.code in MISTAKES and refusal.reason == "protocol", (what, str(refusal))
            assert f"command {session.seq - 1}: " in refusal.text, (what, str(refusal))
            assert may_end or not thin, (what, str(refusal))
        again = session.close()
        if refusal is not None:
            assert again is not None and again.reason == "protocol" and refusal.text in again.text, what
    assert 0 < ended < DRAWS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_malformed_commands_of_one_thin_session(caller, seed):
    """They fail one by one: client and daemon count the same ids, and the last command gives its value."""
    generator = random.Random(f"all {seed}")
    session, sent = Session(caller, thin=True), []
    while len(sent) < DRAWS:
        what, data, may_end = draw(generator)
        if may_end:
            continue
        sent.append(what)
        session.send(data, made_by(data))
        refusal = session.finish()
        assert refusal is None, (what, str(refusal))
    session.send(SCHEMA.encode("Command", LAST), 1)
    session.send(SCHEMA.encode("Command", {"fetch": {"handle": 1}}), 0)
    assert session.finish() is None
    check_late(session.told, sent)
    assert session.told[-1].get("data") == LAST["constant"]["data"], session.told[-1]
    assert session.close() is None


CALLS = sorted(path for path in SCHEMA.calls if not path.endswith(("/Run", "/Upload", "/Download", "/Exchange")))


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x07", b"\x00"], ids=["tag", "length", "type", "zero"])
def test_a_request_that_is_no_message(caller, path, data):
    """gRPC alone would answer as if the daemon lacked the call."""
    with pytest.raises(grpc.RpcError) as refused:
        caller.channel.unary_unary(path)(data, timeout=HANG)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, (path, refused.value.details())
    assert "not a message of this call" in refused.value.details()


def test_a_call_that_is_not_there_is_unimplemented(caller):
    for path in ("/teletensor.v1.Compute/None", "/teletensor.v1.None/Hello", "/teletensor.v1.Peer/None"):
        with pytest.raises(grpc.RpcError) as refused:
            caller.channel.unary_unary(path)(b"", timeout=HANG)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED, path


@pytest.mark.parametrize("value", ["abc", "-1", "", "+1", "1.0", "0x1", "18446744073709551616", ("1", "2")])
def test_metadata_that_should_be_a_number(caller, value):
    """It is refused and not taken as absent; the session stays."""
    session = Session(caller, thin=True)
    assert session.finish() is None
    for name, key in (("Run", "teletensor-attach"), ("Upload", "teletensor-upload")):
        entries = [(key, each) for each in (value if isinstance(value, tuple) else (value,))]
        call = caller.channel.stream_stream(f"/teletensor.v1.Compute/{name}")
        with pytest.raises(grpc.RpcError) as refused:
            next(call(iter([b""]), metadata=(*session.metadata, *entries), timeout=HANG))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and key in refused.value.details()
    session.send(SCHEMA.encode("Command", LAST), 1)
    assert session.finish() is None and session.close() is None


def test_no_mistake_has_raised_an_alarm(daemon):
    """deploy/monitoring/alerts.yml fires for sessions that end by the daemon's faults."""
    found = samples(scrape(daemon))
    ended = {labels for name, labels in found if name == "teletensor_sessions_ended_total"}
    assert {dict(labels)["reason"] for labels in ended} == {"closed", "protocol"}
    assert {dict(labels)["code"] for labels in ended} <= MISTAKES | {"CANCELLED"}
