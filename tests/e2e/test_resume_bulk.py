"""A bulk transfer that is cut continues where it was: the same bytes, few of them sent twice."""

import contextlib
import random
import threading

import grpc
import numpy as np
import pytest
from support.daemon import HANG, wait_until
from support.proxy import Proxy
from support.raw import SERVICE, Raw, metadata, nothing

MIB = 1 << 20
# The bytes that may be in flight when the connection is cut: an incomplete chunk, and the contents of the
# buffers of two sockets and of HTTP/2's flow control.
IN_FLIGHT = 6 * MIB


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "60")


@contextlib.contextmanager
def proxied(tt, daemon):
    """A session whose connection can be cut; none of its memory remains afterwards."""
    proxy = Proxy(daemon.socket)
    with contextlib.closing(proxy), tt.connect(proxy.address) as s:
        yield proxy, s
        s.synchronize()
        with Raw(daemon.unix) as raw:
            wait_until(lambda: raw.sessions()[-1].handles == 0, what="no handle left")
            wait_until(lambda: sum(raw.used().values()) < 1 << 16, what="bulk memory back")


def some(count, seed=1):
    return np.random.default_rng(seed).integers(0, 255, count, dtype=np.uint8)


def test_an_upload_cut_anywhere_goes_on(daemon, tt, each_transport):
    data = some(4 * MIB + 17)
    for at in [1, 500, 70_000, MIB - 1, MIB, MIB + 300, 2 * MIB + 5, 3 * MIB, 4 * MIB, len(data) - 1]:
        with proxied(tt, daemon) as (proxy, s):
            proxy.cut_after(at)
            x = tt.tensor(data)
            assert proxy.connections > 1, at
            assert (x.numpy() == data).all(), at
            del x


def test_few_bytes_are_sent_again(daemon, tt, each_transport):
    data = some(24 * MIB)
    with proxied(tt, daemon) as (proxy, s):
        proxy.cut_after(20 * MIB)
        x = tt.tensor(data)
        again = proxy.sent - len(data)  # and headers
        assert proxy.connections > 1
        assert again < IN_FLIGHT, again
        assert (x.numpy() == data).all()
        del x


def test_connections_that_never_last(daemon, tt, each_transport):
    """Every connection is cut long before the upload is complete, in either direction."""
    data, numbers = some(24 * MIB), random.Random(3)
    with proxied(tt, daemon) as (proxy, s):
        proxy.cut_each(lambda: numbers.randrange(3 * MIB, 5 * MIB), both=True)
        x = tt.tensor(data)
        assert proxy.connections > 4
        y = x.numpy()
        proxy.cut_each(None)
        assert (y == data).all()
        del x


def test_uploads_of_several_threads_do_not_mix(daemon, tt):
    parts = [some(3 * MIB + i, seed=i) for i in range(4)]
    numbers, wrong = random.Random(5), []
    with proxied(tt, daemon) as (proxy, s):
        proxy.cut_each(lambda: numbers.randrange(3 * MIB, 6 * MIB))

        def send(i):
            s.__enter__()  # enters for this thread only; leaving would close it for all threads
            x = tt.tensor(parts[i])
            if not (x.numpy() == parts[i]).all():
                wrong.append(i)

        threads = [threading.Thread(target=send, args=(i,)) for i in range(len(parts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(HANG)
        proxy.cut_each(None)
        assert proxy.connections > 1 and not wrong
        assert not any(t.is_alive() for t in threads)


class Cut:
    """An upload by direct calls: `sent` bytes are sent, then the call is cut."""

    def __init__(self, raw, token, key, size, sent, at=0):
        self.raw, self.token, self.key = raw, token, key
        pb = raw.session_pb
        self.more, self.go = threading.Event(), threading.Event()

        def chunks():
            yield pb.UploadChunk(bytes=size, offset=at, data=bytes(sent)).SerializeToString()
            self.more.wait(HANG)

        call = raw.channel.stream_unary(SERVICE + "Upload", nothing, pb.UploadReply.FromString)
        self.call = call.future(chunks(), metadata=(*metadata(token), ("teletensor-upload", str(key))))

    def staged(self, give_up=False):
        pb = self.raw.session_pb
        return self.raw.unary(SERVICE + "Staged", pb.StagedRequest(key=self.key, give_up=give_up),
                              pb.StagedReply, metadata(self.token))

    def cut(self):
        self.call.cancel()
        self.more.set()


def test_what_has_come_is_told_kept_and_given_up(daemon):
    with Raw(daemon.unix) as raw:
        s = raw.session(lease_seconds=60)
        first = Cut(raw, s.token, 7, MIB, 1000)
        wait_until(lambda: sum(raw.used().values()) >= MIB, what="memory of the upload")
        first.cut()
        wait_until(lambda: first.staged().received == 1000, what="its bytes")
        # A chunk at a wrong offset, or of another upload, is refused, and nothing is lost.
        for at, size in ((999, MIB), (1001, MIB), (1000, MIB + 1)):
            wrong = Cut(raw, s.token, 7, size, 10, at=at)
            with pytest.raises(grpc.RpcError) as caught:
                wrong.call.result(HANG)
            wrong.more.set()
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert first.staged().received == 1000
        # The Staged call fences a stream that still sends.
        late = Cut(raw, s.token, 7, MIB, 24, at=1000)
        wait_until(lambda: first.staged().received == 1024, what="the bytes that came then")
        late.more.set()
        with pytest.raises(grpc.RpcError) as caught:
            late.call.result(HANG)
        assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED)
        assert first.staged(give_up=True).received == 0
        wait_until(lambda: sum(raw.used().values()) < MIB, what="memory back")
        assert first.staged().received == 0


def test_a_lost_reply_is_not_an_upload_again(daemon):
    with Raw(daemon.unix) as raw:
        s = raw.session(lease_seconds=60)
        pb = raw.session_pb
        call = raw.channel.stream_unary(SERVICE + "Upload", nothing, pb.UploadReply.FromString)
        chunk = pb.UploadChunk(bytes=8, data=b"12345678").SerializeToString()
        reply = call(iter([chunk]), metadata=(*metadata(s.token), ("teletensor-upload", "3")), timeout=60)
        asked = raw.unary(SERVICE + "Staged", pb.StagedRequest(key=3), pb.StagedReply, metadata(s.token))
        assert asked.upload == reply.upload > 0


def test_what_was_cut_makes_room_for_what_is_sent(start_daemon):
    """The memory of half an upload is charged; the session's next upload gets that room if it needs it."""
    daemon = start_daemon("--lease", "60", "--host-memory", "64MiB")
    with Raw(daemon.unix) as raw:
        s = raw.session(lease_seconds=60)
        half = Cut(raw, s.token, 1, 40 * MIB, 1000)
        wait_until(lambda: sum(raw.used().values()) >= 40 * MIB, what="memory of the upload")
        half.cut()
        wait_until(lambda: half.staged().received == 1000, what="its bytes")
        other = Cut(raw, s.token, 2, 50 * MIB, 500)
        wait_until(lambda: half.staged().received == 0, what="room made")
        wait_until(lambda: sum(raw.used().values()) >= 50 * MIB, what="memory of the other")
        other.cut()
