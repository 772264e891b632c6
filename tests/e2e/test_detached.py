"""The out-of-memory error of the next program names the session of a killed program, and its memory."""

import re
import subprocess
import time

import pytest
from support.clients import client, wait_line
from support.daemon import HANG

pytestmark = pytest.mark.usefixtures("each_transport")


def test_an_error_for_want_of_memory_names_the_sessions_without_a_client(start_daemon, tt):
    daemon = start_daemon("--host-memory", "64MiB")
    victim = client("""
        x = tt.ones(12 << 20)
        tt.synchronize()
        print("holding", flush=True)
        sys.stdin.readline()
    """, daemon.unix, stdin=subprocess.PIPE)
    wait_line(victim, "holding")
    with tt.connect(daemon.unix) as s:
        number = s.id - 1

        def text():
            with pytest.raises(tt.OutOfMemoryError) as caught:
                kept = tt.ones(12 << 20)
                tt.synchronize()
                del kept
            return str(caught.value)
        assert "without a client" not in text()
        victim.kill()
        victim.wait()
        deadline = time.monotonic() + HANG
        while not (found := re.search(r"session-\d+, detached \d+ s ago, 48\.0 MiB: teletensor kill (\d+)", text())):
            assert time.monotonic() < deadline
        assert int(found[1]) == number
        s.close()
