"""The daemon does not wait for its log."""

import os
import subprocess

import numpy as np
from support.daemon import HANG, binary, wait_until
from support.raw import Raw


def test_nobody_takes_the_log(tmp_path, tt):
    """The pipe of the log is full: sessions begin, compute and end, and the next line states the number of
    missing lines."""
    reader, writer = os.pipe()
    socket = tmp_path / "d.sock"
    process = subprocess.Popen([binary(), "--listen", "", "--socket", str(socket), "--state-dir", str(tmp_path / "s"),
                                "--log-level", "debug", "--restart", "0", "--max-sessions", "1000"],
                               stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    try:
        wait_until(socket.exists, what="the socket")
        for _ in range(400):  # more than a pipe holds
            with Raw(f"unix:{socket}") as raw:
                session = raw.session()
                session.run(session.constant([1.0, 2.0]), session.fetch(1))
                assert np.frombuffer(session.fetched().data, np.float32).tolist() == [1.0, 2.0]
                session.end()
                session.close()
        with tt.connect(f"unix:{socket}") as s, s.as_current():
            assert tt.ones(5).sum().item() == 5.0
        os.read(reader, 1 << 20)
        with tt.connect(f"unix:{socket}") as s, s.as_current():
            assert tt.ones(5).sum().item() == 5.0
        read = b""
        while b"event=log_left_out lines=" not in read:
            assert (more := os.read(reader, 1 << 20))
            read += more
        os.close(reader)
        reader = None
        with tt.connect(f"unix:{socket}") as s, s.as_current():
            assert tt.ones(6).sum().item() == 6.0
        process.terminate()
        assert process.wait(HANG) == 0
    finally:
        process.kill()
        process.wait()
        if reader is not None:
            os.close(reader)
