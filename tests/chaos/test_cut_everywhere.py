"""Cuts the connection after every 7th byte that a training client sends, and checks that nothing leaks, no
value is wrong, and with a lease nothing is lost."""

import contextlib

import pytest
from support.cut import cut_run, program, whole_run
from support.daemon import wait_until
from support.proxy import Proxy
from support.raw import Raw


@pytest.mark.timeout(1800)
def test_cut_everywhere(start_daemon, tt):
    daemon = start_daemon("--lease", "0")
    wanted, sent, _ = whole_run(tt, daemon)
    places = range(1, sent, 7 if sent < 20_000 else sent // 3000)
    lost = sum(cut_run(tt, daemon, at, wanted) for at in places)
    print(f"cut at {len(places)} of {sent} bytes, {lost} sessions lost")
    assert lost > 100
    assert whole_run(tt, daemon)[0] == wanted


@pytest.mark.timeout(3600)
def test_cut_everywhere_and_attached_again(start_daemon, tt):
    daemon = start_daemon("--lease", "60")
    wanted, sent, _ = whole_run(tt, daemon)
    places = range(1, sent, 7 if sent < 20_000 else sent // 3000)
    print(f"cut at {len(places)} of {sent} bytes")
    for at in places:
        proxy, log = Proxy(daemon.socket), []
        with contextlib.closing(proxy), tt.connect(proxy.address):
            proxy.cut_after(at)
            program(tt, log)
        assert log == wanted, at
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not any(raw.used().values()), 5, "memory back")
