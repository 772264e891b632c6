"""Budgets of users: the maximum memory of all their sessions together."""

import contextlib
import subprocess
import sys

import pytest
from support.daemon import wait_until
from support.raw import Raw

MIB = 1 << 20


def token_of(daemon, user):
    return subprocess.run([sys.executable, "-m", "teletensor.cli", "token", "create", user, "--address",
                           daemon.unix], capture_output=True, text=True, timeout=60).stdout.strip()


def test_the_sessions_of_a_user_share_a_quota(start_daemon, tt):
    daemon = start_daemon("--user-memory", "32MiB", "--host-memory", "256MiB")
    alice, bob = token_of(daemon, "alice"), token_of(daemon, "bob")
    with tt.connect(daemon.tcp, token=alice) as first:
        a = tt.ones(5 * MIB)  # 20 MiB
        a.sum().item()
        with tt.connect(daemon.tcp, token=alice) as second:
            fits = tt.ones(2 * MIB)
            with pytest.raises(tt.OutOfMemoryError) as refused:
                tt.ones(2 * MIB + 1).sum().item()
            text = str(refused.value)
            assert "all sessions of this user 28.0 MiB of 32.0 MiB" in text
            assert "close other sessions of this user" in text and "test_budgets.py" in text
            assert fits.sum().item() == 2 * MIB  # the session stays usable
            with tt.connect(daemon.tcp, token=bob):
                theirs = tt.ones(7 * MIB)  # 28 MiB: another user's quota
                assert theirs.sum().item() == 7 * MIB
            with first:
                del a
                first.synchronize()
            again = tt.ones(5 * MIB)
            assert again.sum().item() == 5 * MIB
            with pytest.raises(tt.OutOfMemoryError, match="user"):
                tt.empty(9 * MIB).sum().item()
            second.synchronize()
            del again, fits
    with Raw(daemon.unix) as raw:
        wait_until(lambda: raw.used()["cpu"] < MIB // 4, what="everything is back")


def test_uploads_count(start_daemon, tt):
    """An upload is admitted before any of its bytes is sent."""
    import numpy as np
    daemon = start_daemon("--user-memory", "8MiB")
    with tt.connect(daemon.unix):
        kept = tt.tensor(np.ones(MIB, np.float32))
        with pytest.raises(tt.OutOfMemoryError, match="user"):
            tt.tensor(np.ones(MIB + MIB // 2, np.float32)).sum().item()
        assert kept.sum().item() == MIB


def test_sessions_of_a_user_are_counted(start_daemon, tt):
    daemon = start_daemon("--user-sessions", "2")
    alice, bob = token_of(daemon, "alice"), token_of(daemon, "bob")
    with tt.connect(daemon.tcp, token=alice), tt.connect(daemon.tcp, token=alice) as second:
        refusal = r"alice has 2 sessions of at most 2 \(limit user_sessions\).*teletensor kill ID"
        with pytest.raises(tt.RefusedError, match=refusal):
            tt.connect(daemon.tcp, token=alice)
        with tt.connect(daemon.tcp, token=bob):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        second.close()
        with tt.connect(daemon.tcp, token=alice):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]


def test_a_user_leaves_places_to_others_by_default(start_daemon, tt):
    """Of four places one user gets three, and another user the last one."""
    daemon = start_daemon("--max-sessions", "4")
    alice, bob = token_of(daemon, "alice"), token_of(daemon, "bob")
    with contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(tt.connect(daemon.tcp, token=alice))
        with pytest.raises(tt.RefusedError, match=r"alice has 3 sessions of at most 3"):
            tt.connect(daemon.tcp, token=alice)
        with tt.connect(daemon.tcp, token=bob):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]


def test_users_of_the_config_file(start_daemon, tt, tmp_path):
    """A user's own limits, and memory that is guaranteed to the user while other users fill the box."""
    config = tmp_path / "teletensord.toml"
    config.write_text("""
host_memory = "96MiB"
user_memory = "90MiB"
[users.alice]
guaranteed = "32MiB"
memory = "48MiB"
sessions = 1
""", encoding="utf-8")
    daemon = start_daemon("--config", str(config))
    alice, bob = token_of(daemon, "alice"), token_of(daemon, "bob")
    with tt.connect(daemon.tcp, token=bob) as theirs:
        with theirs.as_current():
            held = tt.ones(15 * MIB)  # 60 MiB
            held.sum().item()
            with pytest.raises(tt.OutOfMemoryError) as refused:
                tt.ones(3 * MIB).sum().item()
            assert "reserved for other users 32.0 MiB" in str(refused.value)
        with tt.connect(daemon.tcp, token=alice) as own:
            with own.as_current():
                mine = tt.ones(7 * MIB)
                assert mine.sum().item() == 7 * MIB
                with pytest.raises(tt.OutOfMemoryError, match="other users use 60"):
                    tt.ones(3 * MIB).sum().item()
            with pytest.raises(tt.RefusedError, match="alice has 1 sessions"):
                tt.connect(daemon.tcp, token=alice)
            with theirs.as_current():
                del held
                theirs.synchronize()
            with own.as_current():
                more = tt.ones(4 * MIB)  # borrowed
                assert more.sum().item() == 4 * MIB
                with pytest.raises(tt.OutOfMemoryError, match="of 48.0 MiB"):
                    tt.ones(2 * MIB).sum().item()


def test_more_guaranteed_than_there_is(tmp_path):
    from support.daemon import binary

    config = tmp_path / "teletensord.toml"
    config.write_text('''host_memory = "64MiB"
[users.a]
guaranteed = "40MiB"
[users.b]
guaranteed = "40MiB"
''', encoding="utf-8")
    done = subprocess.run([binary(), "--config", str(config), "--no-socket", "--listen", "127.0.0.1:0",
                           "--state-dir", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "guaranteed" in done.stderr
