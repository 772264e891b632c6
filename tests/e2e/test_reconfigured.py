"""A restart applies a new configuration: sessions continue under it, and an invalid one changes nothing."""

import numpy as np
import pytest
from support.daemon import wait_until

MIB = 1 << 20


@pytest.mark.parametrize("bad", ["user_memory = 4M", "user_memory = -1", "no_such_setting = 1", "[[["])
def test_a_bad_file_changes_nothing(start_daemon, tt, tmp_path, bad):
    """The running daemon never reads the file again; the next daemon reports the error, changes nothing, and
    does not start."""
    file = tmp_path / "teletensord.toml"
    file.write_text('session_memory = "16MiB"\n', encoding="utf-8")
    daemon = start_daemon("--config", str(file), "--restart", "120")
    with tt.connect(daemon.unix, name="exp") as session:
        x = tt.arange(MIB)
        session.keep("x", x)
        session.synchronize()
        file.write_text(bad + "\n", encoding="utf-8")
        assert (x[:4] + 1).tolist() == [1, 2, 3, 4]
        assert daemon.terminate() == 0
        before = {path.name: path.read_bytes() for path in daemon.state.iterdir()}
        for _ in range(2):
            with pytest.raises(RuntimeError, match="teletensord.toml"):
                daemon.restart()
        assert {path.name: path.read_bytes() for path in daemon.state.iterdir()} == before
        file.write_text('session_memory = "16MiB"\n', encoding="utf-8")
        daemon.restart()
        np.testing.assert_array_equal(x.numpy(), np.arange(MIB))


@pytest.mark.parametrize("setting", ["user_memory", "session_memory"])
def test_a_quota_below_what_is_kept(start_daemon, tt, tmp_path, setting):
    """The session is restored with all of its tensors, and gets no more memory until it uses less than the
    quota; its tensors can be read, released and taken over. With the old quota it has the old room."""
    file = tmp_path / "teletensord.toml"
    file.write_text(f'{setting} = "64MiB"\n', encoding="utf-8")
    daemon = start_daemon("--config", str(file), "--restart", "120")
    with tt.connect(daemon.unix, name="exp") as session:
        held = tt.arange(4 * MIB)  # 32 MiB
        session.keep("held", held)
        small = tt.arange(8)
        shared = tt.arange(MIB)
        tt.publish("shared", shared, writable=True)
        session.keep("shared", shared)
        assert daemon.terminate() == 0
        file.write_text(f'{setting} = "10MiB"\n', encoding="utf-8")
        daemon.restart()
        np.testing.assert_array_equal(held.numpy(), np.arange(4 * MIB))
        assert session.memory()[0]["used"] > 32 * MIB
        with pytest.raises(tt.OutOfMemoryError, match=r"of its quota of|all sessions of this user"):
            tt.ones(MIB // 8).sum().item()
        held.mul_(2)  # in place: nothing more
        shared.add_(1)
        assert (held.numpy()[-1], small.tolist()) == (8 * MIB - 2, list(range(8)))
        session.detach()
    with tt.connect(daemon.unix, name="exp", fresh=True) as session:  # another program
        assert session.taken_over
        held = session.kept()["held"]
        assert held.numpy()[7] == 14
        session.keep("held", None)
        del held
        # A snapshot that is being written for the new client counts as memory as well.
        wait_until(lambda: session.synchronize() or session.memory()[0]["used"] < 9 * MIB, what="room")
        assert tt.ones(MIB // 8).sum().item() == MIB // 8  # and there is room again
        assert session.kept()["shared"][-1].item() == MIB
        with pytest.raises(tt.OutOfMemoryError):
            (tt.ones(3 * MIB) + 1).sum().item()
        assert daemon.terminate() == 0
        file.write_text(f'{setting} = "64MiB"\n', encoding="utf-8")
        daemon.restart()
        session.detach()
    with tt.connect(daemon.unix, name="exp", fresh=True) as session:
        assert session.taken_over and (tt.ones(3 * MIB) + 1).sum().item() == 6 * MIB


def test_a_quota_below_what_is_kept_and_a_disk(start_daemon, tt, tmp_path):
    """The excess over the quota is spilled to the disk when room is needed."""
    file = tmp_path / "teletensord.toml"
    file.write_text('session_memory = "64MiB"\n', encoding="utf-8")
    daemon = start_daemon("--config", str(file), "--restart", "120", "--disk-memory", "256MiB")
    with tt.connect(daemon.unix, name="exp") as session:
        held = [tt.arange(MIB) + i for i in range(6)]  # 48 MiB
        session.synchronize()
        assert daemon.terminate() == 0
        file.write_text('session_memory = "20MiB"\n', encoding="utf-8")
        daemon.restart()
        made = tt.ones(MIB) + 1
        assert made.sum().item() == 2 * MIB
        memory = session.memory()[0]
        assert memory["used"] <= 20 * MIB and memory["away"] >= 32 * MIB
        for i, each in enumerate(held):
            assert (each + made)[5].item() == 5 + i + 2
        session.close()
