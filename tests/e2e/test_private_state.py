"""The state directory belongs to the daemon's user only, whatever the umask; otherwise the daemon does not
use it."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon import Daemon, binary
from support.raw import Raw

STRANGER = 61_235  # a uid that is neither root nor the daemon's


def create_token(state, who="root:admin"):
    done = subprocess.run([binary(), "--state-dir", str(state), "--create-token", who], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refusal(*flags):
    """The message of a daemon with these flags that does not become ready."""
    done = subprocess.run([binary(), "--listen", "", "--cuda-driver", "", *flags], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 1 and not done.stdout, (done.stdout, done.stderr)
    return done.stderr


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_nothing_is_open_to_others(umask, tmp_path, tt):
    state = tmp_path / "a" / "state"
    proxy = tmp_path / "proxy"
    daemon = Daemon("--restart", "60", "--disk-memory", "64MiB", "--state-dir", str(state), "--proxy-socket",
                    str(proxy), under=("sh", "-c", f'umask {umask}; exec "$@"', "sh"))
    try:
        with tt.connect(daemon.unix, name="exp").as_current() as s:
            s.keep("w", tt.ones(10))
            s.synchronize()
            s.snapshot()
            done = subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", "alice", "--address",
                                   daemon.unix], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            modes = {path: path.stat().st_mode & 0o777 for path in (state.parent, state, *state.rglob("*"))}
            assert len(modes) >= 7  # both folders, sessions, spill, lock, a session, tokens.db
            for path, mode in modes.items():
                assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))
            assert os.stat(daemon.socket).st_mode & 0o777 == 0o600
            assert os.stat(daemon.socket + ".share").st_mode & 0o777 == 0o600
            assert proxy.stat().st_mode & 0o777 == 0o660
            s.detach()
        daemon.drain()
        daemon.restart()  # it uses files that it has made itself
        with tt.connect(daemon.unix, name="exp") as s:
            assert s.taken_over
            s.close()
    finally:
        problem = daemon.stop()
    assert not problem, problem


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
@pytest.mark.parametrize("entry", ["", "sessions", "tokens.db", "spill"])
def test_what_others_can_write_is_refused(entry, mode, tmp_path):
    state = tmp_path / "state"
    create_token(state)
    (state / "sessions").mkdir(mode=0o700)
    (state / "spill").mkdir(mode=0o700)
    path = state / entry
    path.chmod(mode)
    text = refusal("--state-dir", str(state), "--socket", str(tmp_path / "s"))
    assert f"{path} can be written by others" in text.replace("/ ", " ")
    done = subprocess.run([binary(), "--state-dir", str(state), "--create-token", "a:user"], capture_output=True,
                          text=True, timeout=60)
    assert (done.returncode == 1) == (entry in ("", "tokens.db")), done


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("entry", ["", "sessions", "tokens.db", "kernels"])
def test_what_belongs_to_another_user_is_refused(entry, tmp_path):
    state = tmp_path / "state"
    create_token(state)
    (state / "sessions").mkdir(mode=0o700)
    (state / "kernels").mkdir(mode=0o700)
    os.chown(state / entry, STRANGER, STRANGER)
    text = refusal("--state-dir", str(state), "--socket", str(tmp_path / "s"))
    assert f"belongs to another user (uid {STRANGER})" in text


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("how", ["owner", "mode", "folder", "link"])
def test_a_planted_token_file_lets_nobody_in(how, start_daemon, tt, tmp_path):
    """A running daemon without tokens looks for the token file at each call."""
    secret = create_token(tmp_path / "mine")
    planted = tmp_path / "mine" / "tokens.db"
    daemon = start_daemon()
    state = Path(daemon.folder) / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    target = state / "tokens.db"
    if how == "link":
        target.symlink_to(planted)
    else:
        shutil.copy(planted, target)
        target.chmod(0o666 if how == "mode" else 0o600)
        os.chown(target, *((STRANGER, STRANGER) if how == "owner" else (0, 0)))
        state.chmod(0o777 if how == "folder" else 0o700)
    with pytest.raises(tt.TeletensorError):
        tt.connect(daemon.tcp, token=secret)
    with Raw(daemon.unix) as raw:  # the daemon's own user needs no token
        assert raw.describe().server_version
    target.unlink()
    state.chmod(0o700)
    shutil.copy(planted, target)
    target.chmod(0o600)
    with sqlite3.connect(target) as db:
        assert db.execute("SELECT COUNT(*) FROM tokens").fetchone() == (1,)
    with tt.connect(daemon.tcp, token=secret):  # the same token in a file of its own
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
