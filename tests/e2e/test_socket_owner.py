"""Clients send nothing to a UNIX socket of another user, unless root has made its folder for that user."""

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from support.daemon import ROOT
from support.users import need_two_users

need_two_users()

OTHER, THIRD = 54321, 54322  # no accounts


class Thief:
    """Listens on a socket and keeps what it receives."""

    def __init__(self, path):
        self.received, self.connections = b"", 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                self.connections += 1
                peer.settimeout(0.2)
                with contextlib.suppress(OSError):
                    while data := peer.recv(1 << 16):
                        self.received += data
                peer.close()

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def thief(tmp_path):
    """(path, thief) of a socket of another user, in a folder in which users can make their own folders."""
    path = tmp_path / "d.sock"
    listening = Thief(path)
    os.chown(path, OTHER, OTHER)
    yield path, listening
    listening.close()


@pytest.fixture
def made_by_root():
    """A folder of another user in a folder in which only root can make one, like /run/teletensor."""
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        os.chmod(folder, 0o755)
        os.chown(folder, OTHER, OTHER)
        yield Path(folder)


def test_no_token_goes_to_another_user(tt, thief, each_transport):
    path, listening = thief
    with pytest.raises(Exception, match=rf"socket {path} belongs to uid {OTHER}.*TELETENSOR_SOCKET_OWNER={OTHER}"):
        tt.connect(f"unix:{path}", token="tt_secret")
    assert b"tt_secret" not in listening.received


def test_the_named_owner_is_accepted(start_daemon, tt, monkeypatch, each_transport):
    daemon = start_daemon()
    os.chown(daemon.socket, OTHER, OTHER)
    with pytest.raises(Exception, match="belongs to uid"):
        tt.connect(daemon.unix)
    monkeypatch.setenv("TELETENSOR_SOCKET_OWNER", str(THIRD))
    with pytest.raises(Exception, match=f"TELETENSOR_SOCKET_OWNER says {THIRD}"):
        tt.connect(daemon.unix)
    monkeypatch.setenv("TELETENSOR_SOCKET_OWNER", str(OTHER))
    with tt.connect(daemon.unix).as_current():
        assert (tt.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]


def test_the_folder_that_root_has_made_names_the_owner(start_daemon, tt, made_by_root, each_transport):
    """The folder of the shipped systemd unit. A third user's socket in it is refused."""
    daemon = start_daemon(socket=str(made_by_root / "teletensor.sock"))
    os.chown(daemon.socket, OTHER, OTHER)
    with tt.connect(daemon.unix).as_current():
        assert tt.ones(2).tolist() == [1.0, 1.0]
    os.chown(daemon.socket, THIRD, THIRD)
    with pytest.raises(Exception, match=f"belongs to uid {THIRD}"):
        tt.connect(daemon.unix)


def test_the_client_of_cpp_has_the_same_rule(thief):
    path, listening = thief
    example = ROOT / "build/release/bin/teletensor-train"
    if not example.exists():
        pytest.skip("the example is not built here")
    done = subprocess.run([example, f"unix:{path}", "1"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TELETENSOR_TOKEN": "tt_secret"})
    assert done.returncode == 1 and f"belongs to uid {OTHER}" in done.stderr, done
    assert b"tt_secret" not in listening.received


def test_a_session_does_not_come_back_to_another_user(start_daemon, tt, each_transport):
    """The daemon has ended, and another user listens on its path."""
    daemon = start_daemon("--lease", "60", "--restart", "60")
    s = tt.connect(daemon.unix, name="exp")
    with s.as_current():
        x = tt.ones(3)
        s.synchronize()
        daemon.drain()
        listening = Thief(daemon.socket)
        os.chown(daemon.socket, OTHER, OTHER)
        with pytest.raises(Exception, match=f"belongs to uid {OTHER}"):
            (x + 1).tolist()
        assert b"teletensor-token" not in listening.received
    listening.close()
    os.unlink(daemon.socket)
    daemon.restart()
