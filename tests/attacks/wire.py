"""Attacks by clients that speak the protocol by hand. Each function attacks a daemon once, calls served() in
the middle, and asserts what must hold."""

import gzip
import random
import re
import struct
import tempfile

import grpc
from support.daemon import wait_until
from support.http2 import END_STREAM, HEADERS, Peer, message, request
from support.raw import ADMIN, SERVICE, Raw, messages, metadata, nothing

INVALID, FAILED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
FULL, DENIED = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.PERMISSION_DENIED
UNKNOWN, UNAUTHENTICATED = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED
HUGE = (2**40, 2**63, 2**64 - 1)


def status(act):
    """The code with which act() fails, otherwise OK."""
    try:
        act()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def hellos(daemon, served):
    """Hello with control characters, a name of 1 MB, 33,000 ops, unknown ops, and numbers at their limits.
    Each is refused, or its wishes are cut to the daemon's limits; the log keeps its lines."""
    with Raw(daemon.unix) as raw:
        lines = len(daemon.lines)
        sessions = []

        def hello(**fields):
            sessions.append(raw.hello(**fields))

        assert status(lambda: hello(session_name="x" * 1_000_000)) == INVALID
        assert status(lambda: hello(ops=[f"op{i}" for i in range(33_000)])) in (INVALID, FULL)
        assert status(lambda: hello(session_name="\x1b[31mred\nevent=forged")) in (INVALID, grpc.StatusCode.OK)
        hello(ops=[f"op{i}" for i in range(8_192)])
        assert len(sessions[-1].unsupported_ops) == 8_192
        hello(memory_quota=2**64 - 1, lease_seconds=2**32 - 1, attach_counter=2**64 - 1)
        served()
        assert not any(line.startswith("event=forged") or "\x1b" in line for line in daemon.lines[lines:])
        for reply in sessions:
            raw.unary(SERVICE + "Close", raw.session_pb.CloseRequest(), raw.session_pb.CloseReply,
                      metadata(reply.token))


def named_sockets(daemon, served):
    """Peers whose own sockets have names with line breaks, quotes and control characters say a wrong Hello, which
    the log reports with the name of the socket. The log keeps its lines, and the name is encoded."""
    body = message(messages()[0].HelloRequest(protocol_min=2**31, protocol_max=2**31).SerializeToString())
    lines = len(daemon.lines)
    names = ('a\nevent=forged x="', 'b" event="forged', "c\x1b[31m\r\\")

    def refused():
        return [line for line in daemon.lines[lines:] if "event=hello_refused" in line]

    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        for i, name in enumerate(names):
            with Peer(daemon.unix, source=f"{folder}/{name}") as peer:
                peer.call(1, request(SERVICE + "Hello"))
                peer.send(0, END_STREAM, 1, body)
                wait_until(lambda i=i: len(refused()) > i, what="the Hello is refused")
    served()
    assert len(refused()) == len(names)
    for line, first in zip(refused(), ("a%0A", "b%22", "c%1B"), strict=True):
        assert first in re.search(r'peer="([^"]*)"', line)[1], line
    for line in daemon.lines[lines:]:
        assert line.startswith("time=") and " event=forged" not in line and "\x1b" not in line, line


def frames(daemon, served):
    """Frames with numbers at their limits, 20,000 empty frames, results without number, and random bytes.
    Each costs its own session at most."""
    dice = random.Random(1)
    with Raw(daemon.unix) as raw:
        def session():
            made = raw.session()
            made.run(made.constant([1.0, 2.0]))
            return made

        for fields in ({"first_id": 2**62 - 1}, {"first_seq": 2**64 - 1}, {"attach_counter": 2**64 - 1}):
            bad = session()
            bad.run(bad.command(op=1, arguments=[2]), **fields)
            assert bad.refusal()[0] in (FAILED, INVALID), fields
        bad = session()
        bad.run(*[bad.command(op=1, arguments=[2], made=2**20)] * 4096)
        assert bad.refusal()[0] in (INVALID, FULL, UNKNOWN)
        for _ in range(50):
            bad = session()
            bad.send(dice.randbytes(dice.randrange(1, 300)))
            assert bad.refusal()[0] in (FAILED, INVALID, FULL)
        empty = session()
        for _ in range(20_000):
            empty.send(b"")
        served()
        empty.cut()


def transfers(daemon, served):
    """Uploads of 2^40 to 2^64 - 1 bytes, on devices and at places that are not there, and downloads of
    nothing. Each upload is refused before anything is allocated, and each download waits for its command, at
    most until the session ends or the client has sent no command for a minute."""
    with Raw(daemon.unix) as raw:
        session = raw.session()
        used = raw.used()
        for fields in (*({"bytes": size, "data": b"x"} for size in HUGE), {"bytes": 1, "device": 700, "data": b"x"},
                       {"bytes": 8, "offset": 2**64 - 1, "data": b"x"}, {"bytes": 1, "data": b"xx"}, b"\xff" * 100):
            for _ in range(20):
                assert status(lambda fields=fields: raw.upload(session.token, [fields])) in (INVALID, FULL, FAILED)
        calls = []
        for seq in (7, 2**64 - 1):
            calls.append(raw.download(session.token, seq, 2**64 - 1))  # of a command that may arrive later
        assert sum(raw.used().values()) <= sum(used.values()) + (16 << 20)
        served()
        session.end()
        for call in calls:
            assert status(lambda call=call: list(call)) != grpc.StatusCode.OK


def attaches(daemon, served):
    """Attach with the highest counter, then with lower ones, by another instance, and with guessed secrets.
    None of them reaches a session that it does not own."""
    with Raw(daemon.unix) as raw:
        session = raw.session()
        session.attach(attach=2**64 - 1)
        for counter in (2, 2**64 - 2):
            assert status(lambda counter=counter: session.attach(attach=counter)) == FAILED
        assert status(lambda: session.attach(attach=2**64 - 1, instance=b"fedcba9876543210")) in (FAILED, DENIED)
        pb = raw.session_pb
        for guess in ("", "0" * 32, session.token[:-1], session.token[:-1] + "g"):
            code = status(lambda guess=guess: raw.unary(SERVICE + "Close", pb.CloseRequest(), pb.CloseReply,
                                                        metadata(guess)))
            assert code in (UNKNOWN, INVALID, UNAUTHENTICATED), guess
        served()
        session.end()


def rights(daemon, served):
    """Calls of administrators, and on sessions of other users, by a caller without rights to them."""
    with Raw(daemon.unix) as own, Raw(daemon.tcp, token=daemon.token) as raw:
        theirs = own.session()
        number = own.sessions()[0].id
        pb = raw.admin_pb
        for name in ("Drain", "CreateToken", "ListTokens", "RevokeToken", "Admit"):
            call = raw.channel.unary_unary(ADMIN + name, nothing, nothing)
            assert status(lambda call=call: call(b"", timeout=60)) in (DENIED, UNAUTHENTICATED), name
        for name, ask in (("Kill", pb.KillRequest(session=number)), ("Snapshot", pb.SnapshotRequest(session=number)),
                          ("InterruptSession", pb.InterruptSessionRequest(session=number))):
            call = raw.channel.unary_unary(ADMIN + name, nothing, nothing)
            code = status(lambda call=call, ask=ask: call(ask.SerializeToString(), timeout=60))
            assert code in (UNKNOWN, DENIED), name
        served()
        theirs.run(theirs.constant([3.0]), theirs.fetch(1))
        assert theirs.fetched().data == struct.pack("<f", 3.0)
        theirs.end()


def authorizations(daemon, served):
    """Headers of 100 KB, with NUL, of other schemes, without a token, and two at once. Each is refused."""
    token = "tt_" + "1" * 64
    texts = ("Basic YTpi", "Bearer", "Bearer ", token, "Bearer " + token[:-1], "bearer " + token,
             "Bearer " + "x" * 100_000)
    with Raw(daemon.tcp) as raw:
        describe = raw.channel.unary_unary(SERVICE + "Describe", nothing, nothing)
        for text in texts:
            code = status(lambda text=text: describe(b"", metadata=[("authorization", text)], timeout=60))
            assert code in (UNAUTHENTICATED, FULL), (text[:20], code)
    two = [("authorization", "Bearer " + token), ("authorization", "Bearer tt_" + "2" * 64)]
    with Raw(daemon.tcp) as raw:  # the long header has ended the other connection
        describe = raw.channel.unary_unary(SERVICE + "Describe", nothing, nothing)
        assert status(lambda: describe(b"", metadata=two, timeout=60)) == UNAUTHENTICATED
        served()


def compressed(daemon, served):
    """A message that is small when compressed and large when not: it is refused, not expanded."""
    bomb = gzip.compress(bytes(64 << 20))
    peer = Peer(daemon.tcp)
    head = request(SERVICE + "Hello", [("grpc-encoding", "gzip")])
    peer.write(peer.frame(HEADERS, 4, 1, head))
    data = message(bomb, compressed=True)
    for at in range(0, len(data), 16_000):
        peer.write(peer.frame(0, 0, 1, data[at:at + 16_000]))
    served()
    peer.socket.close()


def names_and_sites(daemon, served):
    """10,001 kept names and 201 source lines, one more than there may be: refused, that session only."""
    with Raw(daemon.unix) as raw:
        session, pb = raw.session(), raw.session_pb
        session.run(session.constant([1.0]))
        code = status(lambda: raw.unary(SERVICE + "ReportSites", pb.SitesReport(sites=[pb.Site()] * 201),
                                        pb.SitesReply, metadata(session.token)))
        assert code in (INVALID, FULL)
        keep = raw.program_pb.Keep
        for start in range(0, 10_001, 1000):
            session.run(*[session.command(keep=keep(name=f"n{start + i}", handle=1)) for i in range(1000)])
        code, text = session.refusal()
        assert code == FULL and "session_kept" in text
        served()


ATTACKS = (hellos, named_sockets, frames, transfers, attaches, rights, authorizations, compressed, names_and_sites)
