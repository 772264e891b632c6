"""The two transports of the Python client: which one is chosen, and the functions of the native one."""

import pytest
from support.clients import client, finish, wait_line
from support.daemon import HANG, wait_until
from support.raw import Raw


def test_each_computes(each_transport, tt):
    assert tt.current_session().transport == each_transport
    x = tt.arange(100_000, dtype=tt.float32)  # too large to travel in a frame
    assert tt.tensor(x.numpy()).sum().item() == x.sum().item()


def test_which_one_is_taken(tt, shared_daemon, monkeypatch):
    from teletensor._connection import native as _native, transport as _transport

    monkeypatch.setenv("TELETENSOR_TRANSPORT", "carrier pigeon")
    with pytest.raises(tt.TeletensorError, match="carrier pigeon"):
        tt.connect(shared_daemon.unix)

    def not_there():
        raise _transport.CallError(5, "_wire is not built")
    monkeypatch.setattr(_native, "wire", not_there)
    monkeypatch.setenv("TELETENSOR_TRANSPORT", "native")
    with pytest.raises(tt.TeletensorError, match="not built"):
        tt.connect(shared_daemon.unix)
    monkeypatch.delenv("TELETENSOR_TRANSPORT")
    with tt.connect(shared_daemon.unix) as s:
        assert s.transport == "grpcio" and tt.ones(3).sum().item() == 3


def test_an_instruction_leaves_while_python_computes(start_daemon, monkeypatch):
    """A thread that does not need the GIL writes frames; this client never releases the GIL."""
    monkeypatch.setenv("TELETENSOR_TRANSPORT", "native")
    daemon = start_daemon()
    process = client("""
        x = tt.ones(3)
        x.sum().item()
        sys.setswitchinterval(1000)
        print("computing", s._core.last_seq, flush=True)
        y = x + 1
        while True: pass
    """, daemon.unix)
    try:
        before = int(wait_line(process, "computing").split()[1])
        with Raw(daemon.unix) as raw:
            wait_until(lambda: raw.sessions()[0].completed_upto > before, what="the addition has run")
    finally:
        process.kill()
        finish(process)


def test_two_threads_read(each_transport, tt):
    """One of the waiting threads does the stream's I/O while the other waits, and passes the task on."""
    import threading

    ones, got = tt.ones(4), {}

    def work(number):
        for i in range(300):
            got[number] = (ones * (i + number)).sum().item()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert got == {n: 4.0 * (299 + n) for n in range(4)}


def test_many_instructions_without_a_read(each_transport, tt):
    """A program issues more than the credits allow at once: the issuing thread itself reads the messages
    that return credits."""
    x = tt.zeros(())
    for _ in range(60_000):
        x = x + 1
    assert x.item() == 60_000
