"""Runs the shipped nginx configuration in front of the daemon of a test, with paths of that test."""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from support.daemon import HANG, binary, wait_until
from support.tls import Authority

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy/nginx.conf"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Front:
    """The `address` of nginx, the `authority` of its certificates, a user's `token`, and the `daemon` behind
    it."""

    def __init__(self, daemon, authority, address, token):
        self.daemon, self.authority, self.address, self.token = daemon, authority, address, token


@contextlib.contextmanager
def in_front(start_daemon, folder):
    """A Front. The test is skipped if nginx is not installed."""
    if not shutil.which("nginx"):
        pytest.skip("not installed: nginx (deploy/packages-proxy.txt)")
    daemon = start_daemon("--proxy-socket", f"{folder}/proxy.sock")
    authority = Authority(folder / "ca")
    certificate, key = authority.issue("server")
    text = CONFIGURATION.read_text(encoding="utf-8")
    for old, new in (("/etc/teletensor/server.pem", certificate), ("/etc/teletensor/server.key", key),
                     ("/etc/teletensor/ca.pem", authority.ca), ("/run/teletensor/proxy.sock", f"{folder}/proxy.sock"),
                     ("/run/teletensor/nginx.pid", f"{folder}/nginx.pid")):
        assert old in text, old
        text = text.replace(old, str(new))
    assert "listen 7420" in text
    user = "user root;\n" if os.getuid() == 0 else ""
    for name in ("body", "logs"):
        (folder / name).mkdir()

    def start():
        """Starts nginx on a port that is free at that moment; nginx ends if another program has taken the
        port since."""
        port = free_port()
        here = text.replace("listen 7420", f"listen 127.0.0.1:{port}")
        (folder / "nginx.conf").write_text(f"{user}daemon off;\n{here}", encoding="utf-8")
        return subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), port

    def up():
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0
    for _ in range(10):
        nginx, port = start()
        wait_until(lambda nginx=nginx: nginx.poll() is not None or up(), what="nginx listens")
        if nginx.poll() is None:
            break
    assert nginx.poll() is None, "nginx ends"
    try:
        token = subprocess.run([binary(), "--state-dir", f"{daemon.folder}/state", "--create-token", "alice:user"],
                               capture_output=True, text=True, timeout=120).stdout.strip()
        yield Front(daemon, authority, f"tls://127.0.0.1:{port}", token)
    finally:
        nginx.terminate()
        nginx.wait(HANG)
