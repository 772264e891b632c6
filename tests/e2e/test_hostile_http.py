"""HTTP requests of callers without a token that are meant to cost the daemon more than the caller."""

import pytest
from support.http import ask


@pytest.mark.parametrize("path", ["/chart.js", "/healthz", "/not-there"])
@pytest.mark.parametrize("ranges", ["0-," * 2000 + "0-", "0-1"], ids=["overlapping", "one"])
def test_ranges_do_not_enlarge_an_answer(start_daemon, path, ranges):
    """Each range would otherwise be sent for itself: 6 KB of request made 400 MB of answer."""
    daemon = start_daemon("--http", "127.0.0.1:0")
    whole = ask(daemon.http, path)
    reply = ask(daemon.http, path, headers={"Range": f"bytes={ranges}"})
    assert (reply.status, reply.text) == (whole.status, whole.text)
    assert ask(daemon.http, "/healthz").status == 200
