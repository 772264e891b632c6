"""Thousands of connections, at once or one after the other, that never send a request."""

import os
import resource
import socket
import ssl
import subprocess
import threading
import time

import pytest
from support.daemon import SANITIZED, binary, wait_until
from support.tls import Authority

MIB = 1 << 20
STORM = 5_000
# The number of descriptors that this process and a daemon may have.
HALF_OPEN = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

pytestmark = pytest.mark.usefixtures("invariants")


def resident_bytes(daemon):
    with open(f"/proc/{daemon.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def half_a_greeting():
    """The first bytes of a TLS client, without the last ones."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()[:-10]


@pytest.mark.timeout(1800)
def test_half_open_handshakes(start_daemon, tt, tmp_path):
    """Existing clients continue on their connections, new clients can connect, and all silent connections
    are closed."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    daemon = start_daemon("--tls-cert", str(certificate), "--tls-key", str(key))
    token = subprocess.run([binary(), "--state-dir", f"{daemon.folder}/state", "--create-token", "alice:user"],
                           capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    greeting, (host, port), peers = half_a_greeting(), daemon.tcp.split(":"), []
    with tt.connect("tls://" + daemon.tcp, token=token, ca=authority.ca) as session:
        x = tt.arange(8)
        assert x.sum().item() == 28
        before, memory, most = descriptors(daemon), resident_bytes(daemon), 0
        began = time.monotonic()
        try:
            for n in range(HALF_OPEN):
                peers.append(socket.create_connection((host, int(port)), 60))
                peers[-1].sendall(greeting[:len(greeting) - n % len(greeting)])
                if n % 100 == 0:
                    assert (x * n).sum().item() == 28 * n
                    most = max(most, resident_bytes(daemon) - memory)
            took = time.monotonic() - began
            with tt.connect("tls://" + daemon.tcp, token=token, ca=authority.ca):
                assert (tt.ones(3) * 1).tolist() == [1.0] * 3
            wait_until(lambda: descriptors(daemon) <= before, what="all are closed")
        finally:
            for each in peers:
                each.close()
        assert (x * 2).sum().item() == 56 and session._transport._keeper.attach == 1
        session.close()
    print(f"{HALF_OPEN} half-open handshakes in {took:.1f} s: {most / MIB:.1f} MiB at most")
    assert SANITIZED or most < HALF_OPEN * (128 << 10)  # 40 KiB each were seen


@pytest.mark.timeout(1800)
def test_a_storm_of_connections(start_daemon, tt):
    """Connections that send nothing or garbage and end leave nothing behind."""
    daemon = start_daemon("--lease", "60")
    host, port = daemon.tcp.split(":")
    ways = ((socket.AF_UNIX, daemon.socket), (socket.AF_INET, (host, int(port))))
    with tt.connect(daemon.unix) as session:
        x = tt.arange(8)
        assert x.sum().item() == 28
        before = descriptors(daemon)
        took, problems = [], []

        def storm(family, address):
            began = time.monotonic()
            try:
                for n in range(STORM // len(ways)):
                    with socket.socket(family) as peer:
                        peer.connect(address)
                        if n % 3 == 1:
                            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[:n % 25])
                        elif n % 3 == 2 and family == socket.AF_INET:  # ended by a reset
                            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                took.append(time.monotonic() - began)
            except Exception as error:  # told below
                problems.append(error)

        n, grown = 0, []
        for _ in range(5):  # the resources of one round are free for the next
            memory = resident_bytes(daemon)
            threads = [threading.Thread(target=storm, args=way) for way in ways]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                n += 1
                assert (x * n).sum().item() == 28 * n
            assert not problems, problems
            with tt.connect(daemon.tcp, token=daemon.token):
                assert (tt.ones(3) * 1).tolist() == [1.0] * 3
            wait_until(lambda: descriptors(daemon) <= before, what="all are closed")
            grown.append((resident_bytes(daemon) - memory) / MIB)
            if grown[-1] < 16:
                break
        assert session._transport._keeper.attach == 1
        session.close()
    more = ", ".join(f"{each:.1f}" for each in grown)
    print(f"storms of {STORM} connections, {STORM / max(took):.0f} a second, {n} reads beside them; MiB more: {more}")
    assert SANITIZED or (sum(grown) < 256 and grown[-1] < 16)  # 45 and 1, 48, 40 and less were seen
