"""Another configuration comes by a restart: sessions go on under it, and a bad one changes nothing."""

import numpy as np
import pytest

MIB = 1 << 20
ROOM = 'user_memory = "64MiB"\n'


@pytest.mark.parametrize("bad", ["user_memory = 4M", "user_memory = -1", "no_such_setting = 1", "[[["])
def test_a_bad_file_changes_nothing(start_daemon, tt, tmp_path, bad):
    """The daemon that runs never looks at it; the next one says what is wrong, touches nothing, and does not start."""
    file = tmp_path / "teletensord.toml"
    file.write_text('session_memory = "16MiB"\n', encoding="utf-8")
    daemon = start_daemon("--config", str(file), "--restart", "120")
    with tt.connect(daemon.unix, name="exp") as session:
        x = tt.arange(MIB)
        session.keep("x", x)
        session.synchronize()
        file.write_text(bad + "\n", encoding="utf-8")
        assert (x[:4] + 1).tolist() == [1, 2, 3, 4]
        assert daemon.terminate(60) == 0
        before = {path.name: path.read_bytes() for path in daemon.state.iterdir()}
        for _ in range(2):
            with pytest.raises(RuntimeError, match="teletensord.toml"):
                daemon.restart()
        assert {path.name: path.read_bytes() for path in daemon.state.iterdir()} == before
        file.write_text('session_memory = "16MiB"\n', encoding="utf-8")
        daemon.restart()
        np.testing.assert_array_equal(x.numpy(), np.arange(MIB))


def test_a_quota_below_what_is_kept(start_daemon, tt, tmp_path):
    """The session does not come back, its client is told why, and nothing of it is lost: with room for it the next
    daemon has it again."""
    file = tmp_path / "teletensord.toml"
    file.write_text(ROOM, encoding="utf-8")
    daemon = start_daemon("--config", str(file), "--restart", "120")
    with tt.connect(daemon.unix, name="exp") as session:
        held = tt.arange(4 * MIB)  # 32 MiB
        session.keep("held", held)
        session.synchronize()
        assert daemon.terminate(60) == 0
        file.write_text('user_memory = "10MiB"\n', encoding="utf-8")
        daemon.restart()
        with pytest.raises(tt.SessionLostError, match="out of memory"):
            held.sum().item()
        with pytest.raises(tt.RefusedError, match="out of memory"):
            tt.connect(daemon.unix, name="exp")
    assert daemon.terminate(60) == 0
    file.write_text(ROOM, encoding="utf-8")
    daemon.restart()
    with tt.connect(daemon.unix, name="exp") as session:
        np.testing.assert_array_equal(session.kept()["held"].numpy(), np.arange(4 * MIB))
