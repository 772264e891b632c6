"""Encodings of a message that protobuf permits and its libraries do not write: read by the daemon and the clients."""

import numpy as np
import pytest
from support.raw import Raw, messages
from teletensor._conformance.schema import Schema
from teletensor._connection.protowire import decode, encode, integers


@pytest.fixture
def raw(start_daemon):
    with Raw(start_daemon().unix) as channel:
        yield channel


def field(number, body):
    """A field of bytes, empty or not."""
    return encode([(number, body)]) if body else bytes([number << 3 | 2, 0])


def zigzag(value):
    return value << 1 if value >= 0 else (-value << 1) - 1


def test_the_daemon_reads_frames_in_other_encodings(raw):
    session = raw.session()
    two = np.array([1.0, 2.0], np.float32).tobytes()
    # A constant in two parts, behind another member of the oneof: data first, dtype twice, the shape not packed.
    constant = field(14, b"") + field(12, encode([(4, two), (1, 5)])) + field(12, encode([(1, 9), (3, 1), (3, 2)]))
    # sum(x, dim=[1], keepdim=True): `op` last, each attribute and integer by itself or in parts.
    total = (encode([(7, zigzag(1))]) + field(6, bytes([4 + 8 * 1])) + encode([(6, 1 + 8 * 1)]) + bytes([6 << 3, 0])
             + encode([(5, 2), (1, 1), (1, 3)]))
    # A fetch: the handle in the second part.
    fetch = field(14, b"") + field(14, encode([(1, 7)])) + field(14, encode([(1, 1)]))
    # Header fields between and after the commands, one of them twice.
    frame = (field(5, constant) + encode([(2, 1)]) + field(5, total) + encode([(1, 9), (4, 1)]) + field(5, fetch)
             + encode([(1, 1)]))
    same = raw.session_pb.Frame.FromString(frame)
    assert [c.op or c.WhichOneof("other") for c in same.commands] == ["constant", 3, "fetch"]
    assert (same.first_seq, list(same.commands[1].attributes)) == (1, [12, 9, 0])
    session.send(frame)
    value = session.fetched()
    assert (value.seq, list(value.shape)) == (3, [1, 1])
    assert np.frombuffer(value.data, np.float32).tolist() == [3.0]


def test_the_daemon_reads_chunks_with_the_data_in_front(raw):
    session, pb = raw.session(), raw.program_pb
    data = np.arange(4096, dtype=np.float32)
    whole, half = data.tobytes(), data.nbytes // 2
    first = encode([(4, b"replaced"), (4, whole[:half]), (1, 7), (1, len(whole))])
    second = encode([(4, whole[half:]), (3, half)])
    upload = raw.upload(session.token, [first, second]).upload
    session.run(session.command(uploaded=pb.Uploaded(dtype="DTYPE_FLOAT32", shape=data.shape, upload=upload)),
                session.fetch(1, bulk=True))
    answer = raw.session_pb.DownloadChunk()
    for chunk in raw.download(session.token, 2):
        answer.data += chunk.data
    assert np.array_equal(np.frombuffer(answer.data, np.float32), data)


def test_requests_with_fields_of_a_newer_client(raw):
    """In requests of one message the daemon ignores fields that it lacks."""
    session = raw.session()
    session.run(session.constant([1.0] * 10000), session.fetch(1, bulk=True))
    metadata = (("teletensor-token", session.token),)
    newer = encode([(40, b"newer"), (41, 5)])
    call = raw.channel.unary_stream("/teletensor.v1.Compute/Download")
    chunks = [raw.session_pb.DownloadChunk.FromString(each)
              for each in call(newer + encode([(2, 0), (1, 2)]), metadata=metadata, timeout=60)]
    assert sum(len(each.data) for each in chunks) == 40000
    for name in ("Staged", "Interrupt", "Published", "Close"):
        raw.channel.unary_unary(f"/teletensor.v1.Compute/{name}")(newer, metadata=metadata, timeout=60)


def test_the_clients_parsers_merge_as_protobuf_does():
    """A message in parts is the parts merged; repeated numbers are packed or not."""
    session_pb, _, admin_pb, _ = messages()
    parts = [session_pb.HelloReply(server_version="1", limits={"credit_upto": 5, "kept": 7}, devices=[{"name": "cpu"}],
                                   inventory={"tensors": [{"id": 3, "shape": [2]}]}),
             session_pb.HelloReply(server_version="2", limits={"credit_bytes": 6, "kept": 8},
                                   devices=[{"name": "sim:0", "memory": 9}], inventory={"names": [{"name": "w"}]})]
    data = b"".join(part.SerializeToString() for part in parts)
    merged = session_pb.HelloReply.FromString(data)
    ours, kit = decode(data), Schema().decode("HelloReply", data)
    assert ours.text(2) == kit["server_version"] == merged.server_version == "2"
    limits = [merged.limits.credit_upto, merged.limits.credit_bytes, merged.limits.kept]
    assert limits == [5, 6, 8] == [ours.message(7).integer(n) for n in (1, 2, 11)]
    assert limits == [kit["limits"][name] for name in ("credit_upto", "credit_bytes", "kept")]
    assert [d.text(1) for d in ours.messages(8)] == [d["name"] for d in kit["devices"]] == ["cpu", "sim:0"]
    assert [len(ours.message(24).messages(n)) for n in (1, 2)] == [1, 1]
    assert {key: len(value) for key, value in kit["inventory"].items()} == {"tensors": 1, "names": 1}

    packed = admin_pb.Holding(shape=[3, -1, 300]).SerializeToString()
    data = encode([(7, 5)]) + packed + encode([(7, (1 << 64) - 2)])
    expected = list(admin_pb.Holding.FromString(data).shape)
    assert integers(decode(data), 7) == Schema().decode("Holding", data)["shape"] == expected == [5, 3, -1, 300, -2]
    with pytest.raises((ValueError, IndexError)):
        integers(decode(field(7, b"\x80")), 7)
