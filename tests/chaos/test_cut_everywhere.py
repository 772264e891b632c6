"""The connection dies after every 7th byte that a training client sends: no leak, no wrong value."""

import pytest
from support.cut import cut_run, whole_run


@pytest.mark.timeout(1800)
def test_cut_everywhere(start_daemon, tt):
    daemon = start_daemon("--lease", "0")
    wanted, sent, _ = whole_run(tt, daemon)
    lost = sum(cut_run(tt, daemon, at, wanted) for at in range(1, sent, 7 if sent < 20_000 else sent // 3000))
    assert lost > 100
    assert whole_run(tt, daemon)[0] == wanted
