"""Daemons that are connected to each other (--peer-name, --peers)."""

import socket
import ssl
import subprocess
import sys

import pytest
from support.daemon import binary, wait_until
from support.daemons import peer_flags, start_daemons


def certificates(folder, *names):
    for name in names:
        subprocess.run([sys.executable, "-m", "teletensor.cli", "cert", "--peer", name, "--output", str(folder)],
                       check=True, capture_output=True, timeout=120)

    def flags(name, ca=folder):
        return ("--peer-cert", folder / f"{name}.pem", "--peer-key", folder / f"{name}.key", "--peer-ca", ca / "ca.pem")
    return flags


def connected(daemon, peer, times=1):
    return daemon.log.count(f'event=peer_connected peer="{peer}"') >= times


def test_daemons_connect_and_connect_again(start_daemon):
    first, second = start_daemons(start_daemon, 2)
    wait_until(lambda: connected(first, "b") and connected(second, "a"))
    first.crash()
    wait_until(lambda: connected(first, "b") and connected(second, "a", times=2))
    assert second.alive()


def test_daemons_with_certificates_connect(start_daemon, tmp_path):
    first, second = start_daemons(start_daemon, 2, own=certificates(tmp_path, "a", "b"))
    wait_until(lambda: connected(first, "b") and connected(second, "a"))


def test_a_certificate_of_another_name_or_authority_is_refused(start_daemon, tmp_path):
    tls = certificates(tmp_path, "a", "b", "c")
    other = certificates(tmp_path / "other", "a")
    second = start_daemon(*peer_flags("b", "a=127.0.0.1:0", *tls("b")))
    first = start_daemon(*peer_flags("a", f"b={second.peers}", *tls("c")))
    wait_until(lambda: "is no DNS name of the certificate" in first.log)
    assert 'event=peer_refused' in second.log
    third = start_daemon(*peer_flags("a", f"b={second.peers}", *other("a", ca=tmp_path)))
    wait_until(lambda: "event=peer_unreachable" in third.log)
    assert not connected(second, "a")


def test_only_tls_1_3_is_accepted(start_daemon, tmp_path):
    """A caller with a good certificate that offers at most TLS 1.2 is refused in the handshake."""
    tls = certificates(tmp_path, "a", "b")
    daemon = start_daemon(*peer_flags("b", "a=127.0.0.1:0", *tls("b")))
    host, port = daemon.peers.rsplit(":", 1)

    def version(highest):
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        context.load_cert_chain(tmp_path / "a.pem", tmp_path / "a.key")
        context.maximum_version = highest
        with socket.create_connection((host, int(port))) as plain, \
                context.wrap_socket(plain, server_hostname="b") as secret:
            return secret.version()
    assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match="protocol version"):
        version(ssl.TLSVersion.TLSv1_2)
    wait_until(lambda: 'reason="TLS: unsupported protocol"' in daemon.log)


def test_off_loopback_peers_need_certificates():
    done = subprocess.run([binary(), "--peer-name", "a", "--peer-listen", "0.0.0.0:0", "--peers", "b=192.0.2.1:7421"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "there peers need TLS (--peer-cert, --peer-key, --peer-ca)" in done.stderr
