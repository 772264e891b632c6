"""Detaching and attaching by direct calls: a frame that arrives twice runs once, results wait, older streams
are fenced."""

import contextlib

import grpc
import pytest
from support.clients import client, wait_line
from support.daemon import wait_until
from support.raw import OPS, SERVICE, Raw, metadata


@pytest.fixture
def raw(start_daemon):
    with Raw(start_daemon("--lease", "60").unix) as raw:
        yield raw


def detached(raw):
    wait_until(lambda: [s.attached for s in raw.sessions()] == [False], what="detached")


def negated(session, times=1):
    """h -> -h, `times` times; then a fetch."""
    op = OPS.index("neg") + 1
    made = [session.command(op=op, arguments=[2]) for _ in range(times)]
    return *made, lambda next_id: session.fetch(next_id - 1)(next_id)


def values(message):
    return [f.data for f in message.fetched]


def reason(error):
    return dict(error.trailing_metadata()).get("teletensor-reason")


def test_hello_tells_the_lease(start_daemon):
    with Raw(start_daemon("--lease", "60").unix) as raw:
        assert raw.hello().lease_seconds == 60
        assert raw.hello(lease_seconds=7).lease_seconds == 7
        assert raw.hello(lease_seconds=700).lease_seconds == 60
    with Raw(start_daemon("--lease", "0").unix) as raw:
        assert raw.hello(lease_seconds=7).lease_seconds == 0


def test_queued_work_goes_on_and_its_results_wait(raw):
    s = raw.session()
    frame = s.frame(s.constant([1.5]), *negated(s, 3000))
    s.send(frame)
    wait_until(lambda: raw.sessions()[0].handles > 0)
    s.cut()
    detached(raw)
    wait_until(lambda: raw.sessions()[0].completed_upto == 3002)
    reply = s.resume()
    assert (reply.attach_counter, reply.received_upto, reply.completed_upto) == (2, 3002, 3002)
    assert len(values(s.progress())) == 1


def test_frames_that_come_twice_run_once(raw):
    s = raw.session()
    first = s.frame(s.constant([1.0]))
    double = s.frame(s.command(op=OPS.index("mul") + 1, inplace=True, arguments=[2, 7], reals=[2.0]))
    for frame in (first, double):
        s.send(frame)
    wait_until(lambda: raw.sessions()[0].completed_upto == 2)
    s.cut()
    s.resume()
    for frame in (first, double, double, first):
        s.send(frame)
    s.run(s.fetch(1))
    assert s.fetched().data == b"\0\0\0@"  # 2.0


def test_what_was_not_acknowledged_comes_again(raw):
    s = raw.session()
    s.run(s.constant([2.0]), s.fetch(1))
    read = s.progress()
    assert read.number >= 1 and values(read)
    s.cut()
    s.resume()  # for the server the message was lost
    again = s.progress()
    assert (again.number, values(again)) == (read.number, values(read))
    s.cut()
    s.resume(progress_upto=again.number)
    fresh = s.progress()  # a new stream always gets a message
    assert fresh.number > read.number and not values(fresh)
    assert (fresh.received_upto, fresh.completed_upto) == (2, 2)


def test_a_later_attach_fences(raw):
    s = raw.session()
    s.run(s.constant([2.0]), s.fetch(1))
    s.fetched()
    old, old_frames = s.call, s._outgoing
    s.resume(progress_upto=99)
    with pytest.raises(grpc.RpcError) as fenced:
        for _ in old:
            pass
    assert fenced.value.code() == grpc.StatusCode.ABORTED
    assert reason(fenced.value) == "fenced"
    old_frames.put(s.frame(s.constant([3.0])))  # a slow old connection changes nothing
    s.seq, s.next_id = 3, 2
    s.run(s.constant([4.0]), s.fetch(2))
    assert s.fetched().seq == 4
    with pytest.raises(grpc.RpcError, match="comes late"):
        s.attach(attach=2)
    with pytest.raises(grpc.RpcError, match="another client instance"):
        s.attach(attach=9, instance=b"another")
    s.stream(attach=1)
    code, text = s.refusal()
    assert code == grpc.StatusCode.FAILED_PRECONDITION and "the last is 2" in text


def test_a_session_that_nobody_comes_back_to(start_daemon):
    with Raw(start_daemon("--lease", "60").unix) as raw:
        s = raw.session(lease_seconds=1)
        s.run(s.constant([2.0] * 1000), s.fetch(1))
        s.fetched()
        s.cut()
        detached(raw)
        assert raw.used()["cpu"] > 0
        wait_until(lambda: raw.used()["cpu"] == 0, what="memory back")
        with pytest.raises(grpc.RpcError) as gone:
            s.attach()
        assert reason(gone.value) == "expired" and "no client returned" in gone.value.details()


def test_idle_is_who_completes_nothing(start_daemon, tt):
    """Queued work outlives the lease of its session; the lease starts at the end of the work."""
    daemon = start_daemon("--lease", "1")
    worker = client("""
        from support.busy import occupy
        s = tt.connect(os.environ["TT_TEST_ADDRESS"], name="works")
        with s.as_current():
            running = occupy(tt)
            print("issued", flush=True)
            time.sleep(600)
    """, daemon.unix)
    try:
        wait_line(worker, "issued")
        with Raw(daemon.unix) as raw:
            def names():
                return [s.name for s in raw.sessions()]
            wait_until(lambda: any(s.name == "works" and s.queued for s in raw.sessions()), what="its work")
            worker.kill()
            worker.wait()
            wait_until(lambda: not any(s.attached for s in raw.sessions()), what="detached")
            for i in range(2):  # the leases of two idle sessions, one after the other
                idle = raw.session(session_name=f"idle {i}")
                idle.cut()
                wait_until(lambda i=i: f"idle {i}" not in names(), what="an idle session's end")
                assert "works" in names()
            tt.interrupt("works", daemon.unix)
            wait_until(lambda: "works" not in names(), what="its end, now that it is idle")
    finally:
        worker.kill()
        worker.communicate()


def test_close_ends(raw):
    s = raw.session()
    s.run(s.constant([2.0]))
    s.end()
    wait_until(lambda: raw.used()["cpu"] == 0)
    with pytest.raises(grpc.RpcError) as gone:
        s.attach()
    assert reason(gone.value) == "closed"


def test_half_close_detaches(raw):
    s = raw.session()
    s.run(s.constant([2.0]), s.fetch(1))
    s.fetched()
    s.send(None)
    assert s.refusal()[0] == grpc.StatusCode.OK
    detached(raw)
    s.resume(progress_upto=99)
    s.run(s.fetch(1))
    assert s.fetched().seq == 3


def test_unknown_tokens_and_other_runs_of_the_server(raw):
    s = raw.session()
    s.token = "0" * 32
    with pytest.raises(grpc.RpcError) as unknown:
        s.attach()
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND and reason(unknown.value) == "unknown"
    with pytest.raises(grpc.RpcError, match="has been restarted"):
        s.attach(epoch=12345)


def test_a_broken_frame_ends_the_session(raw):
    s = raw.session()
    s.send(b"no frame at all")
    with pytest.raises(grpc.RpcError) as broken:
        s.progress()
    assert reason(broken.value) == "protocol"
    with pytest.raises(grpc.RpcError) as gone:
        s.attach()
    assert reason(gone.value) == "protocol" and "frame" in gone.value.details()


def test_detached_sessions_make_room_for_new_ones(start_daemon):
    """Only sessions whose clients have had time to reconnect may be evicted: here there are none, so the new
    session is refused."""
    with Raw(start_daemon("--lease", "60", "--max-sessions", "2").unix) as raw:
        a, b = raw.session(), raw.session()
        a.cut()
        wait_until(lambda: not all(s.attached for s in raw.sessions()))
        with pytest.raises(grpc.RpcError, match="the most allowed"):
            raw.session()
        b.end()
        wait_until(lambda: len(raw.sessions()) == 1)
        raw.session()


def test_a_client_that_does_not_read_is_detached_not_ended(start_daemon):
    with Raw(start_daemon("--lease", "60", "--stall", "0.5").unix) as raw:
        s = raw.session()
        s.run(s.constant([0.0] * 16000))
        for _ in range(5):
            s.run(*[s.fetch(1)] * 160)
        wait_until(lambda: not raw.sessions()[0].attached, what="detached")
        with contextlib.suppress(grpc.RpcError):
            while True:
                s.progress()
        s.resume()
        seen, last = set(), 0
        while len(seen) < 800:
            try:
                message = s.progress()
            except grpc.RpcError:  # this test, on a busy machine, has not read for a while
                s.resume(progress_upto=last)
                continue
            last = message.number
            seen.update(f.seq for f in message.fetched)
        assert seen == set(range(2, 802))


def test_calls_of_a_detached_session(raw):
    """Interrupt, Upload and Download need no stream."""
    s = raw.session()
    s.run(s.constant([2.0]), s.fetch(1, bulk=True))
    wait_until(lambda: raw.sessions()[0].completed_upto == 2)
    s.cut()
    detached(raw)
    assert raw.upload(s.token, [{"bytes": 4, "data": b"abcd"}]).upload == 1
    assert b"".join(c.data for c in raw.download(s.token, 2)) == b"\0\0\0@"
    raw.unary(SERVICE + "Interrupt", raw.session_pb.InterruptRequest(),
              raw.session_pb.InterruptReply, metadata(s.token))
