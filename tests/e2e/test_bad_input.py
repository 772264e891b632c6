"""Hostile and broken clients: each gets a clear error, other sessions are not affected, and all memory is
freed.

Spoken over raw gRPC with protoc's classes, as no right client would.
"""

import random

import grpc
import numpy as np
import pytest
from support.daemon import wait_until
from support.raw import OPS, SERVICE, Raw, metadata, nothing

INVALID = (grpc.StatusCode.INVALID_ARGUMENT,)
OUT_OF_ORDER = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
TOO_MUCH = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


@pytest.fixture(scope="module")
def daemon():
    from support.daemon import Daemon
    running = Daemon("--session-memory", "64MiB", "--lease", "0")
    yield running
    problem = running.stop()
    assert not problem, problem


@pytest.fixture
def raw(daemon):
    """A channel to the daemon; afterwards the daemon must run, work for another client, and have freed the
    memory."""
    with Raw(daemon.unix) as raw:
        yield raw
    with Raw(daemon.unix) as other:
        session = other.session()
        session.run(session.constant([1.5, 2.0]), session.command(op=1, arguments=[2]), session.fetch(2))
        assert np.frombuffer(session.fetched().data, np.float32).tolist() == [-1.5, -2.0]
        session.close()
        wait_until(lambda: not any(other.used().values()), what="memory of dead sessions back at 0")
    assert daemon.alive(), daemon.log[-3000:]


def refused(session, codes, *words):
    """Checks that the stream ends with one of the codes and a text that describes the fault."""
    code, text = session.refusal()
    assert code in codes, (code, text)
    assert len(text) > 5
    for word in words:
        assert word in text, text


def test_a_right_client_first(raw):
    session = raw.session()
    session.run(session.constant([[1, 2], [3, 4]]), session.command(op=2, arguments=[2, 2]), session.fetch(2))
    value = session.fetched()
    assert list(value.shape) == [2, 2]
    assert np.frombuffer(value.data, np.float32).tolist() == [1, 4, 9, 16]
    session.close()


@pytest.mark.parametrize("fields", [
    {"dtype": 99}, {"dtype": 0}, {"dtype": 3}, {"shape": [-1]}, {"shape": [2**32, 2**32]},
    {"shape": [2**62, 4]}, {"shape": [3]}, {"shape": [1] * 13}, {"data": b"123"}, {"data": b""},
    {"device": 99 * 256}, {"device": 256 * 255 + 7}], ids=str)
def test_constant(raw, fields):
    session = raw.session()
    session.run(session.constant([1.0, 2.0], **fields))
    refused(session, (*INVALID, *TOO_MUCH))


def command(op=0, **fields):
    return lambda s: [s.command(op=op, **fields)]


BAD_COMMANDS = {
    "unknown op": command(op=999, arguments=[2]),
    "op 0 and nothing else": lambda s: [s.command()],
    "unknown handle": command(op=1, arguments=[2 * 50]),
    "handle of the future": command(op=1, arguments=[2**63]),
    "no operand": command(op=1),
    "too many operands": command(op=1, arguments=[2, 2, 2]),
    "absent operand": command(op=1, arguments=[0]),
    "number for a tensor": command(op=1, arguments=[3]),
    "number without its value": command(op=2, arguments=[2, 5]),
    "attribute of another kind": command(op=3, arguments=[2], attributes=[5 + 8], texts=["x"]),
    "attribute kind unknown": command(op=1, arguments=[2], attributes=[6 + 8 * 99]),
    "too many attributes": command(op=1, arguments=[2], attributes=[1] * 9),
    "attribute without its value": command(op=3, arguments=[2], attributes=[4 + 8 * 1000]),
    "list lengths that disagree": command(op=4, arguments=[2], counts=[7], attributes=[2], integers=[0]),
    "list length that wraps": command(op=4, arguments=[2], counts=[2**32 - 1], attributes=[2], integers=[0]),
    "dimension out of range": command(op=3, arguments=[2], attributes=[4 + 8, 1, 0], integers=[77]),
    "in place on a number": command(op=2, arguments=[3, 2], inplace=True),
    "results counted enormously": command(op=1, arguments=[2], made=2**31),
    "default dtype unknown": command(op=1, arguments=[2], default_dtype=44),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
def test_command(raw, name):
    session = raw.session()
    session.run(session.constant([1.0, 2.0]))
    session.run(*BAD_COMMANDS[name](session))
    refused(session, (*INVALID, *OUT_OF_ORDER, *TOO_MUCH, grpc.StatusCode.UNIMPLEMENTED,
                      grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE))


INDEXING = {
    "index": (False, False), "index_put": (False, False), "in place": (False, True),
    "accumulate": (True, False), "accumulate in place": (True, True),
    "a result of 0 elements": (False, False)}


@pytest.mark.parametrize("form", INDEXING)
@pytest.mark.parametrize("last", [536903681, 2**31])
def test_places_beyond_memory(raw, form, last):
    """Index tensors of one stored element each, which broadcast to 2^61 + 8 places and more."""
    op = "index" if form == "index" else "index_put"
    accumulate, inplace = INDEXING[form]
    shape = [5, 5, 5]
    if form == "a result of 0 elements":
        op, shape = "index", [5, 5, 5, 0]
    session = raw.session(ops=["expand", op])
    x = session.constant(np.zeros(shape))
    i = session.constant([], dtype="DTYPE_INT64", shape=[1, 1, 1], data=bytes(8))
    views = [session.command(op=1, arguments=[2 * (1 + n)], attributes=[4 + 8 * 3], integers=size)
             for n, size in enumerate([(40, 1, 1), (1, 107367629, 1), (1, 1, last)])]
    more = {} if op == "index" else {"inplace": inplace}
    values, flags = ([], []) if op == "index" else ([7], [1 + 8 * accumulate])
    session.run(x, i, *views, session.command(
        op=2, arguments=[2 * 5, *values, 2 * 3, 2 * 2, 2 * 1], counts=[3],
        attributes=[4 + 8 * 3, *flags], integers=[0, 1, 2], reals=[1.0] * len(values), **more))
    session.run(session.constant([1.0]), session.fetch(1))
    refused(session, INVALID, f"{op}: indexing tensors broadcast to shape [40, 107367629, {last}]")


def test_results_counted_wrongly(raw):
    """The server counts ids itself, so a disagreement is found at the latest with the next frame."""
    session = raw.session()
    session.run(session.constant([1.0, 2.0]), session.command(op=1, arguments=[2], made=3))
    session.run(session.constant([1.0]))
    refused(session, (*INVALID, *OUT_OF_ORDER))


def other_commands(session):
    pb = session.raw.program_pb
    return {
        "fetch of nothing": pb.Command(fetch=pb.Fetch(handle=40)),
        "backward of nothing": pb.Command(backward=pb.Backward(roots=[40], seeds=[0])),
        "backward without history": pb.Command(backward=pb.Backward(roots=[1], seeds=[0])),
        "backward with seeds missing": pb.Command(backward=pb.Backward(roots=[1], seeds=[])),
        "backward that makes too many": pb.Command(backward=pb.Backward(roots=[1], seeds=[0], made=9999)),
        "saved of no node": pb.Command(saved=pb.Saved(node=12345, slot=0)),
        "saved slot": pb.Command(saved=pb.Saved(node=0, slot=2**31)),
        "flag unknown": pb.Command(set_flag=pb.SetFlag(what=9, handle=1, on=True)),
        "flag of nothing": pb.Command(set_flag=pb.SetFlag(what=0, handle=70, on=True)),
        "grad of another shape": pb.Command(set_grad=pb.SetGrad(handle=1, grad=60)),
        "data of nothing": pb.Command(set_data=pb.SetData(handle=1, other=60)),
        "raise of nothing": pb.Command(**{"raise": pb.Raise(root=777)}),
        "release of nothing": pb.Command(release=pb.Release(handles=[55])),
        "release twice": pb.Command(release=pb.Release(handles=[1, 1])),
    }


@pytest.mark.parametrize("name", [
    "fetch of nothing", "backward of nothing", "backward without history", "backward with seeds missing",
    "backward that makes too many", "saved of no node", "saved slot", "flag unknown", "flag of nothing",
    "grad of another shape", "data of nothing", "release of nothing", "release twice"])
def test_session_command(raw, name):
    session = raw.session()
    session.run(session.constant([1.0, 2.0]))
    session.run(other_commands(session)[name])
    refused(session, (*INVALID, *OUT_OF_ORDER, grpc.StatusCode.NOT_FOUND))


def test_released_handle(raw):
    session = raw.session()
    pb = raw.program_pb
    session.run(session.constant([1.0]), pb.Command(release=pb.Release(handles=[1])))
    session.run(session.command(op=1, arguments=[2]))
    refused(session, (*INVALID, grpc.StatusCode.NOT_FOUND))


def test_handle_of_another_session(raw):
    """Ids belong to one session: the ids of another session are unknown here."""
    first, second = raw.session(), raw.session()
    first.run(*[first.constant([float(i)]) for i in range(20)], first.fetch(20))
    assert np.frombuffer(first.fetched().data, np.float32).tolist() == [19.0]
    second.run(second.constant([5.0]))
    second.next_id = 21
    second.run(second.command(op=1, arguments=[2]))
    refused(second, (*INVALID, *OUT_OF_ORDER))
    first.run(first.fetch(7))
    assert np.frombuffer(first.fetched().data, np.float32).tolist() == [6.0]
    first.close()


@pytest.mark.parametrize("fields", [
    {"first_seq": 3}, {"first_seq": 0}, {"first_seq": 2**63}, {"first_id": 5}, {"first_id": 0}, {"first_id": 2**63},
    {"attach_counter": 9}], ids=str)
def test_frame_out_of_order(raw, fields):
    session = raw.session()
    session.run(session.constant([1.0]))
    session.run(session.constant([2.0]), **fields)
    refused(session, OUT_OF_ORDER)


def test_frame_sent_twice(raw):
    session = raw.session()
    frame = session.frame(session.constant([1.0]))
    session.send(frame)
    session.send(frame)
    refused(session, OUT_OF_ORDER)


def test_truncated_frames(raw):
    session = raw.session()
    whole = session.frame(session.constant([1.0, 2.0]), session.command(op=1, arguments=[2]), session.fetch(2))
    session.close()
    for cut in range(1, len(whole), 7):
        session = raw.session()
        session.send(whole[:cut])
        session.send(b"\xff")  # whatever the cut frame still was, this is none
        refused(session, (*INVALID, *OUT_OF_ORDER))


def test_random_bytes(raw):
    rng = random.Random(5)
    for _ in range(40):
        session = raw.session()
        session.send(rng.randbytes(rng.choice((1, 5, 60, 3000))) + b"\xff")
        refused(session, (*INVALID, *OUT_OF_ORDER, *TOO_MUCH))


def test_flipped_bits(raw):
    """A right frame with a few bytes changed: accepted or refused, never a crash."""
    rng = random.Random(6)
    ended = 0
    for _ in range(60):
        session = raw.session()
        frame = bytearray(session.frame(
            session.constant([1.0, 2.0]), session.command(op=1, arguments=[2], record=True),
            session.command(op=2, arguments=[2, 5], reals=[], integers=[3]), session.fetch(2)))
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        session.send(bytes(frame))
        session.send(b"\xff")
        code, _ = session.refusal()
        assert code != grpc.StatusCode.UNAVAILABLE
        ended += 1
    assert ended == 60


def test_unknown_fields(raw):
    session = raw.session()
    session.run(session.constant([1.0]))
    frame = session.frame(session.command(op=1, arguments=[2]))
    command = raw.program_pb.Command(op=1, arguments=[2]).SerializeToString()
    strange = command + b"\xf8\x06\x01"  # field 111, varint 1
    assert frame.count(command) == 1
    at = frame.index(command)
    session.send(frame[:at - 1] + bytes([len(strange)]) + strange)
    refused(session, INVALID, "field")


def test_message_over_the_limit(raw):
    session = raw.session()
    limit = session.reply.limits.max_frame_bytes
    session.send(b"\x2a" + b"\x00" * (limit + 5000))
    refused(session, (*TOO_MUCH,))


def test_constant_over_the_limit(raw):
    session = raw.session()
    session.run(session.constant(np.zeros(session.reply.limits.inline_bytes // 4 + 1)))
    refused(session, (*TOO_MUCH,))


def test_too_many_commands(raw):
    session = raw.session()
    most = session.reply.limits.max_frame_commands
    session.run(session.constant([1.0]), *[session.command(op=1, arguments=[2])] * (most + 1))
    refused(session, (*TOO_MUCH,))


def test_beyond_the_credits(start_daemon):
    """A client that ignores credits is ended, with its frame in order and otherwise right."""
    with Raw(start_daemon("--session-queue", "256").unix) as raw:
        session = raw.session()
        limits = session.reply.limits
        assert limits.credit_upto == 256 < limits.max_frame_commands
        session.run(session.constant([1.0]), *[session.command(op=1, arguments=[2])] * 255, session.fetch(256))
        refused(session, TOO_MUCH, "beyond the credits", "command 257", "granted up to 256")
        session = raw.session()
        session.run(session.constant([1.0]), *[session.command(op=1, arguments=[2])] * 254, session.fetch(255))
        assert np.frombuffer(session.fetched().data, np.float32).tolist() == [1.0]
        session.close()


def test_hello(raw):
    with pytest.raises(grpc.RpcError) as caught:
        raw.hello(protocol_min=7, protocol_max=9)
    assert caught.value.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED,
                                   *INVALID)
    assert "7" in caught.value.details()
    reply = raw.hello(ops=("neg", "frobnicate"))
    assert [o.split()[0] for o in reply.unsupported_ops] == ["frobnicate"]


def test_op_that_the_server_has_not(raw):
    session = raw.session(ops=("neg", "frobnicate"))
    session.run(session.constant([1.0]), session.command(op=2, arguments=[2]))
    refused(session, (grpc.StatusCode.UNIMPLEMENTED,), "frobnicate")


def test_token(raw):
    for token in ("", "0" * 32, "x" * 5000):
        call = raw.channel.stream_stream(SERVICE + "Run", nothing, nothing)(iter([b""]), metadata=metadata(token))
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED, *INVALID,
                                       grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_second_run_stream(raw):
    session = raw.session()
    session.run(session.constant([1.0]), session.fetch(1))
    session.fetched()
    second = raw.channel.stream_stream(SERVICE + "Run", nothing, nothing)(
        iter([]), metadata=metadata(session.token))
    with pytest.raises(grpc.RpcError) as caught:
        next(second)
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    session.run(session.fetch(1))
    assert np.frombuffer(session.fetched().data, np.float32).tolist() == [1.0]
    session.close()


# ---------------------------------------------------------------- bulk

@pytest.mark.parametrize(("name", "chunks"), [
    ("shorter", [{"bytes": 100, "data": b"x" * 40}]),
    ("longer", [{"bytes": 100, "data": b"x" * 140}]),
    ("longer later", [{"bytes": 100, "data": b"x" * 60}, {"offset": 60, "data": b"x" * 60}]),
    ("gap", [{"bytes": 100, "data": b"x" * 40}, {"offset": 60, "data": b"x" * 40}]),
    ("overlap", [{"bytes": 100, "data": b"x" * 60}, {"offset": 20, "data": b"x" * 40}]),
    ("offset that wraps", [{"bytes": 100, "data": b"x" * 60}, {"offset": 2**64 - 4, "data": b"x" * 40}]),
    ("no chunk", []), ("no bytes", [{}]), ("random", [b"\xff" * 50]),
    ("too large", [{"bytes": 2**40, "data": b"x"}]), ("absurd", [{"bytes": 2**64 - 1, "data": b"x"}]),
    ("no such device", [{"bytes": 8, "device": 77 * 256, "data": b"x" * 8}])])
def test_upload(raw, name, chunks):
    if name == "no bytes":
        chunks = [{"bytes": 4}]
    session = raw.session()
    with pytest.raises(grpc.RpcError) as caught:
        raw.upload(session.token, chunks)
    assert caught.value.code() in (*INVALID, *TOO_MUCH, *OUT_OF_ORDER, grpc.StatusCode.NOT_FOUND,
                                   grpc.StatusCode.OUT_OF_RANGE)
    assert len(caught.value.details()) > 5
    if not caught.value.code() == grpc.StatusCode.UNAVAILABLE:
        session.run(session.constant([3.0]), session.fetch(1))  # a bad upload ends no session
        assert np.frombuffer(session.fetched().data, np.float32).tolist() == [3.0]
    session.close()


def bind(raw, fields):
    """A session with an upload of two float32, and a command that makes a tensor with `fields` of it."""
    session = raw.session()
    reply = raw.upload(session.token, [{"bytes": 8, "data": np.float32([1, 2]).tobytes()}])
    bound = {"dtype": 9, "shape": [2], "upload": reply.upload + fields.get("upload_plus", 0)}
    bound.update({k: v for k, v in fields.items() if k != "upload_plus"})
    session.run(session.command(uploaded=raw.program_pb.Uploaded(**bound)))
    return session


@pytest.mark.parametrize("fields", [{"shape": [-2]}, {"shape": [2**32, 2**32]}], ids=str)
def test_upload_bound_to_no_tensor(raw, fields):
    refused(bind(raw, fields), INVALID)


@pytest.mark.parametrize(("fields", "code"), [
    ({"shape": [3]}, grpc.StatusCode.INVALID_ARGUMENT), ({"dtype": 10}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"upload_plus": 1}, grpc.StatusCode.NOT_FOUND), ({"upload_plus": 31337}, grpc.StatusCode.NOT_FOUND)], ids=str)
def test_upload_that_does_not_match_fails_its_command_alone(raw, fields, code):
    session = bind(raw, fields)
    session.run(session.fetch(1))
    failed = session.fetched()
    assert (failed.code, failed.root) == (code.value[0], 1)
    assert len(failed.text) > 5
    session.run(session.constant([3.0]), session.fetch(2))
    assert np.frombuffer(session.fetched().data, np.float32).tolist() == [3.0]
    session.close()


def test_upload_and_download(raw):
    session = raw.session()
    pb = raw.program_pb
    data = np.arange(600_000, dtype=np.float32)
    half = data.nbytes // 2
    body = data.tobytes()
    chunks = [{"bytes": len(body), "data": body[:half]}, {"offset": half, "data": body[half:]}] if half <= (
        session.reply.limits.max_chunk_bytes) else [
        {"bytes": len(body) if at == 0 else 0, "offset": at, "data": body[at:at + 500_000]}
        for at in range(0, len(body), 500_000)]
    upload = raw.upload(session.token, chunks).upload
    session.run(session.command(uploaded=pb.Uploaded(dtype=9, shape=[600_000], upload=upload)),
                session.command(op=1, arguments=[2]), session.fetch(2, bulk=True))
    got = b"".join(c.data for c in raw.download(session.token, 3))
    assert np.array_equal(np.frombuffer(got, np.float32), -data)
    session.close()


@pytest.mark.parametrize(("seq", "offset"), [(0, 0), (1, 0), (3, 0), (2, 10**12), (2, 5)])
def test_download_of_nothing(raw, seq, offset):
    session = raw.session()
    session.run(session.constant([1.0]), session.fetch(1, bulk=True), session.fetch(1))
    session.fetched()
    with pytest.raises(grpc.RpcError) as caught:
        list(raw.download(session.token, seq, offset))
    assert caught.value.code() in (*INVALID, *OUT_OF_ORDER, grpc.StatusCode.NOT_FOUND,
                                   grpc.StatusCode.OUT_OF_RANGE)
    session.close()


@pytest.mark.parametrize("seq", [99, 2**63])
def test_download_before_its_fetch_waits_no_longer_than_the_session(raw, seq):
    session = raw.session()
    session.run(session.constant([1.0]), session.fetch(1))
    session.fetched()
    download = raw.download(session.token, seq)
    session.close()
    with pytest.raises(grpc.RpcError) as caught:
        list(download)
    assert caught.value.code() != grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_table_of_ops_is_the_catalog(raw):
    names = [o.name for o in raw.describe().ops]
    assert set(OPS) <= set(names) and len(names) == len(set(names))
