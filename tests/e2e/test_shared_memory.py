"""Memory that the daemon shares with clients on its machine: visibility of writes, accounting, and
release."""

import gc
import mmap
import os
import signal
import struct

import numpy as np
import pytest
from support.clients import client, finish, wait_line
from support.daemon import Daemon, wait_until
from support.raw import Raw
from support.sharer import Sharer, request, ticket_of

MIB = 1 << 20
TAKE, OPEN, UPLOAD, WAY = 1, 2, 3, 4


def used(session):
    return session.memory()[0]["used"]


@pytest.fixture(autouse=True)
def before():
    """Garbage of earlier tests is collected first, because it does not belong to this test."""
    gc.collect()
    mapped.before = 0
    mapped.before = mapped()


def mapped():
    """Bytes of daemons' memory that this process has mapped since the test began."""
    total = -mapped.before
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            if "memfd:teletensor" in line:
                begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                total += end - begin
    return total


@pytest.fixture
def session(start_daemon):
    import teletensor as tt

    with tt.connect(start_daemon().unix, name="sharer") as s:
        s.tt = tt
        yield s


# ---------------------------------------------------------------- what a program sees


def test_numpy_shows_the_daemons_own_memory(session):
    tt = session.tt
    x = tt.arange(2 * MIB).float()
    before = used(session)
    a = x.numpy()
    assert mapped() >= 8 * MIB and used(session) == before
    assert a.shape == (2 * MIB,) and a.dtype == np.float32
    np.testing.assert_array_equal(a, np.arange(2 * MIB, dtype=np.float32))
    del a
    gc.collect()
    assert mapped() == 0


def test_with_either_transport(start_daemon, each_transport):
    import teletensor as tt

    with tt.connect(start_daemon().unix) as session:
        assert session.transport == each_transport
        x = tt.arange(MIB).float() + 1
        a = x.numpy()
        assert mapped() >= 4 * MIB
        assert a[-1] == MIB


def test_later_writes_do_not_change_the_array(session):
    tt = session.tt
    x = tt.zeros(MIB)
    a = x.numpy()
    x.add_(1)
    x[5] = 7
    assert x[5].item() == 7 and not a.any()
    b = x.numpy()
    assert b[4] == 1 and b[5] == 7 and not a.any()


def test_a_writable_array_is_the_callers_own(session):
    tt = session.tt
    x = tt.zeros(MIB)
    a, b = x.numpy(force=True), np.array(x)
    a[:10] = 5
    assert not b.any() and x.sum().item() == 0
    assert (a.sum(), a.flags.writeable) == (50, True)


def test_a_view_with_an_offset_and_one_that_is_not_contiguous(session):
    tt = session.tt
    x = tt.arange(4 * MIB).reshape(2048, 2048)
    np.testing.assert_array_equal(x[3:1500].numpy(), np.arange(4 * MIB).reshape(2048, 2048)[3:1500])
    np.testing.assert_array_equal(x.t().numpy(), np.arange(4 * MIB).reshape(2048, 2048).T)
    assert x[:, 5].numpy()[7] == 7 * 2048 + 5


def test_arrays_outlive_their_tensor_and_the_session(session):
    tt = session.tt
    x = tt.ones(2 * MIB)
    a = x.numpy()[10:20]
    del x
    assert used(session) >= 8 * MIB  # the array's
    session.close()
    assert a.tolist() == [1.0] * 10
    assert mapped() > 0


def test_charged_once_and_given_back(session):
    tt = session.tt
    start = used(session)
    x = tt.ones(4 * MIB)
    one = used(session) - start
    arrays = [x.numpy() for _ in range(5)]
    assert used(session) - start == one
    del x
    assert used(session) - start == one
    del arrays
    gc.collect()
    wait_until(lambda: used(session) == start, what="the memory is back")


def test_the_same_memory_is_used_again(session):
    """A loop that reads its result copies nothing from its second round on, and takes no new pages."""
    tt = session.tt
    x = tt.zeros(2 * MIB)
    for i in range(10):
        x = x + 1
        a = x.numpy()
        assert a[0] == a[-1] == i + 1
        del a
    assert used(session) <= 3 * 8 * MIB


def test_more_arrays_than_descriptors(session):
    tt = session.tt
    x = tt.arange(MIB // 2).float()
    before = len(os.listdir("/proc/self/fd"))
    arrays = [(x + i).numpy() for i in range(140)]
    for i, a in enumerate(arrays):
        assert a[0] == i and a[-1] == MIB // 2 - 1 + i
    assert len(os.listdir("/proc/self/fd")) < before + 140


def test_a_failed_tensor_raises_as_ever(session):
    tt = session.tt
    x = tt.ones(MIB)
    bad = x[tt.tensor([MIB + 5] * MIB)]
    with pytest.raises(IndexError, match="issued at .*test_shared_memory"):
        bad.numpy()
    assert x.numpy().all()


def test_bits_of_every_dtype(session):
    tt = session.tt
    for dtype in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
                  "complex64", "complex128"):
        values = (np.arange(3 * MIB) % 113).astype(dtype)
        assert tt.tensor(values).numpy().tobytes() == values.tobytes()


# ---------------------------------------------------------------- where it is not there


def test_streams_where_it_is_not(start_daemon, monkeypatch):
    import teletensor as tt

    daemon = start_daemon()
    expected = np.arange(MIB, dtype=np.float32)
    with tt.connect(daemon.tcp, token=daemon.token):
        np.testing.assert_array_equal(tt.arange(MIB).float().numpy(), expected)
        assert mapped() == 0
    with tt.connect(daemon.unix):
        os.unlink(daemon.socket + ".share")
        np.testing.assert_array_equal(tt.arange(MIB).float().numpy(), expected)
        assert mapped() == 0
    monkeypatch.setenv("TELETENSOR_SHARED_MEMORY", "0")
    with tt.connect(daemon.unix):
        np.testing.assert_array_equal(tt.arange(MIB).float().numpy(), expected)
        assert mapped() == 0


def test_simulated_devices_use_streams(start_daemon):
    import teletensor as tt

    with tt.connect(start_daemon("--sim-devices", "1").unix):
        x = tt.arange(MIB, device="sim:0").float()
        np.testing.assert_array_equal(x.numpy(), np.arange(MIB, dtype=np.float32))
        assert mapped() == 0


# ---------------------------------------------------------------- processes that end


def test_a_killed_client_lets_go(start_daemon):
    import teletensor as tt

    daemon = start_daemon("--lease", "600")
    process = client("""
        x = tt.ones(8 << 20)
        a = x.numpy()
        del x
        tt.synchronize()
        print("holds", a.sum(), flush=True)
        time.sleep(600)
    """, daemon.unix)
    wait_line(process, "holds")
    with Raw(daemon.unix) as raw:
        assert sum(raw.used().values()) >= 32 * MIB
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # The session stays (its lease is ten minutes), but the memory that its client had mapped is
        # released.
        wait_until(lambda: sum(raw.used().values()) < MIB, what="the memory is back")
        assert raw.sessions()
    process.stdout.close()
    process.stderr.close()
    with tt.connect(daemon.unix):
        assert tt.ones(MIB).numpy().all()


def test_a_forked_child_keeps_its_array(start_daemon):
    daemon = start_daemon()
    process = client("""
        x = tt.full((4 << 20,), 3.0)
        a = x.numpy()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(read, 1)           # until the parent has let go and used memory anew
            os._exit(0 if (a == 3).all() else 1)
        del x, a
        for i in range(5):
            y = tt.full((4 << 20,), float(i)); y.numpy()
        os.write(write, b"x")
        print("child", os.waitpid(child, 0)[1], flush=True)
    """, daemon.unix)
    status, out, err = finish(process)
    assert (status, out) == (0, "child 0\n"), err


def test_the_daemon_ends_before_the_array():
    import teletensor as tt

    daemon = Daemon(forgets="close() is not to wait for another daemon")
    session = tt.connect(daemon.unix)
    with session.as_current():
        a = tt.full((MIB,), 4.0).numpy()
    assert daemon.stop() == ""
    assert (a == 4).all()
    session.close()
    assert not os.path.exists(daemon.socket + ".share")


# ---------------------------------------------------------------- the socket by hand


def test_only_with_the_sessions_ticket(start_daemon):
    import teletensor as tt

    daemon = start_daemon()
    assert os.stat(daemon.socket + ".share").st_mode & 0o077 == 0
    raw, number, ticket = ticket_of(daemon.socket, "mine")
    with raw, tt.connect(daemon.unix, name="other") as other:
        for stranger in (b"0" * 32, ticket[:31] + bytes([ticket[31] ^ 1]), b"\0" * 32):
            with Sharer(daemon.socket) as sharer:
                code, *_, descriptor = sharer.ask(OPEN, number, stranger, size=4096)
                assert code == 5 and descriptor is None
        with Sharer(daemon.socket) as sharer:  # this ticket, the other's session
            code, *_, descriptor = sharer.ask(OPEN, other.id, ticket, size=4096)
            assert code == 5 and descriptor is None
        with Sharer(daemon.socket) as sharer:
            code, _, _, size, descriptor = sharer.ask(OPEN, number, ticket, size=4096)
            assert (code, size) == (0, 4096)
            os.close(descriptor)
    with tt.connect(daemon.tcp, name="remote", token=daemon.token) as remote:
        assert not remote._shared.available


def test_nobody_can_shorten_or_write_what_was_lent(start_daemon):
    import teletensor as tt

    daemon = start_daemon()
    with tt.connect(daemon.unix) as session:
        x = tt.full((MIB,), 2.0)
        fetch = x._fetch_bulk()
        ticket = session._shared._address.ticket.encode()
        with Sharer(daemon.socket) as sharer:
            code, _, offset, size, descriptor = sharer.ask(
                TAKE, session.id, ticket, number=fetch.seq)
            assert (code, size) == (0, 4 * MIB)
            for refused in (lambda: os.ftruncate(descriptor, 0), lambda: os.ftruncate(descriptor, 1 << 40),
                            lambda: os.pwrite(descriptor, b"x", 0),
                            lambda: mmap.mmap(descriptor, 4096, mmap.MAP_SHARED)):
                with pytest.raises(OSError):
                    refused()
            again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
            with pytest.raises(OSError):
                os.pwrite(again, b"x", 0)
            assert os.pread(descriptor, 4, offset) == struct.pack("f", 2.0)
            os.close(again)
            os.close(descriptor)
        del fetch
        assert x.sum().item() == 2 * MIB


def test_nonsense_on_the_socket(start_daemon):
    import teletensor as tt

    daemon = start_daemon()
    raw, number, ticket = ticket_of(daemon.socket, "mine")
    with raw:
        with Sharer(daemon.socket) as sharer:
            sharer.socket.sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 96)
            assert sharer.over()
        with Sharer(daemon.socket) as sharer:  # unknown kinds of requests, and requests out of order
            for kind in (0, 7, UPLOAD, 2**32 - 1):
                assert sharer.ask(kind, number, ticket)[0] == 3
        with Sharer(daemon.socket) as sharer:  # a fetch that never was
            assert sharer.ask(TAKE, number, ticket, number=0)[0] == 5
        with Sharer(daemon.socket) as sharer:  # more than there is
            for size in (1 << 62, 2**64 - 1, 2**63):
                assert sharer.ask(OPEN, number, ticket, size=size)[0] == 8
            code, *_, descriptor = sharer.ask(OPEN, number, ticket, size=8192)
            assert code == 0
            os.close(descriptor)
            assert sharer.ask(OPEN, number, ticket, size=8192)[0] == 3
            assert sharer.ask(TAKE, number, ticket, number=1)[0] == 3
            outside = {"size": 8193, "total": 9000}
            assert sharer.ask(UPLOAD, number, ticket, **outside)[0] == 11
            assert sharer.ask(UPLOAD, number, ticket, start=2**64 - 1, size=8, total=8)[0] == 11
            assert sharer.ask(UPLOAD, number, ticket, size=8, total=8, device=77 * 256)[0] == 3
            assert sharer.ask(UPLOAD, number, ticket, size=1 << 40, total=1 << 40)[0] == 3
            assert sharer.ask(UPLOAD, number, ticket, number=99, size=8, total=8)[0] == 5
            assert sharer.ask(UPLOAD, number, ticket, size=8192, total=8192)[0] == 0
        silent = Sharer(daemon.socket)
        assert silent.over()  # after some seconds without a request
        silent.socket.close()
    with tt.connect(daemon.unix):
        assert tt.ones(MIB).numpy().all()


def test_an_unfinished_upload_goes_with_its_connection(start_daemon):
    daemon = start_daemon()
    raw, number, ticket = ticket_of(daemon.socket, "mine")
    with raw:
        with Sharer(daemon.socket) as sharer, Sharer(daemon.socket) as other:
            for each in (sharer, other):
                code, *_, descriptor = each.ask(OPEN, number, ticket, size=8192)
                assert code == 0
                os.close(descriptor)
            code, upload, *_ = sharer.ask(UPLOAD, number, ticket, size=8192, total=64 * MIB)
            assert code == 0 and sum(raw.used().values()) > 64 * MIB
            # Another connection cannot use the memory.
            assert other.ask(UPLOAD, number, ticket, number=upload, offset=8192, size=8192,
                             total=64 * MIB)[0] == 5
        wait_until(lambda: not any(raw.used().values()), what="the memory is back")


def test_large_arrays_go_by_shared_memory(session):
    tt = session.tt
    start = used(session)
    for count in (MIB, MIB + 1, 5 * MIB - 3):
        values = np.arange(count, dtype=np.float32)
        x = tt.tensor(values)
        values[:] = 0  # a copy
        assert used(session) - start < 2 * values.nbytes
        np.testing.assert_array_equal(x.numpy(), np.arange(count, dtype=np.float32))
        del x
    np.testing.assert_array_equal(tt.tensor(np.ones((3000, 2000)).T).numpy(), np.ones((2000, 3000)))


def test_the_way_of_uploads_goes_by_itself(session):
    """The daemon ends the memory, and the client notices it."""
    tt = session.tt
    values = np.arange(2 * MIB, dtype=np.float32)
    before = used(session)
    for _ in range(3):
        x, y = tt.tensor(values), tt.tensor(values[::-1].copy())
        np.testing.assert_array_equal((x + y).numpy(), np.full_like(values, values[-1]))
        del x, y
        gc.collect()
        wait_until(lambda: used(session) == before, what="nothing is left of the uploads")


def test_a_small_quota_keeps_no_way(start_daemon):
    import teletensor as tt

    with tt.connect(start_daemon().unix, memory=64 * MIB) as session:
        x = tt.tensor(np.ones(2 * MIB, np.float32))
        tt.synchronize()
        wait_until(lambda: used(session) < 9 * MIB, what="the tensor alone")
        assert mapped() == 0 and x.sum().item() == 2 * MIB


def test_requests_ahead_of_replies(start_daemon):
    """Each request is answered, in order; a wrong request ends only the upload."""
    import teletensor as tt

    daemon = start_daemon()
    with tt.connect(daemon.unix) as session, Sharer(daemon.socket) as sharer:
        address, ticket = session.id, session._shared._address.ticket.encode()
        code, _, offset, _, file = sharer.ask(WAY, address, ticket, size=MIB)
        assert (code, offset) == (0, 0)
        os.pwrite(file, np.arange(MIB, dtype=np.uint8).tobytes(), 0)
        for wrong in (None, 5):
            number = sharer.ask(UPLOAD, address, ticket, size=MIB // 8, total=MIB)[1]
            for i in range(1, 8):
                at = i * (MIB // 8)
                start = MIB if i == wrong else at  # outside of the memory
                sharer.socket.sendall(request(UPLOAD, address, ticket, number=number, offset=at,
                                              size=MIB // 8, start=start, total=MIB))
            answers = [sharer.answer() for _ in range(7)]
            assert {n for _, n in answers} == {number}
            if wrong is None:
                assert [code for code, _ in answers] == [0] * 7
            else:
                assert [code for code, _ in answers] == [0] * 4 + [11, 5, 5]
        x = tt.arange(3)
        assert x.tolist() == [0, 1, 2]
        assert sharer.over()  # a second later
        os.close(file)
