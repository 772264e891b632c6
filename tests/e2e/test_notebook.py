"""`%load_ext teletensor`, in IPython's shell."""

import html
import json

import pytest
from support.busy import occupy
from support.daemon import HANG, wait_until


@pytest.fixture
def shell(shared_daemon, tt):
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    with tt.connect(shared_daemon.unix, name="lab <1>") as session:
        shell.user_ns.update(tt=tt, session=session)
        assert shell.run_line_magic("load_ext", "teletensor") is None
        yield shell
        shell.run_line_magic("unload_ext", "teletensor")


def test_the_sessions_state(shell, tt):
    shell.run_cell("x = tt.ones(1 << 20)").raise_error()
    tt.synchronize()
    shown = shell.run_line_magic("teletensor", "")
    assert "4.0 MiB" in repr(shown) and "0 queued" in repr(shown)
    rich = shown._repr_html_()
    assert html.escape("lab <1>") in rich and "lab <1>" not in rich  # a name is no markup
    assert "4.0 MiB" in rich and "nothing queued" in rich
    assert "lab" in shell.user_ns["session"]._repr_html_()


def test_status_of_a_busy_session(start_daemon, tt):
    daemon = start_daemon("--lanes", "1")
    with tt.connect(daemon.unix, name="busy") as session:
        x = occupy(tt)
        wait_until(lambda: session.status()["queued"] == 1, what="it has come")
        busy = session.status()
        assert busy["id"] == session.id
        assert busy["memory"][0]["used"] > 0
        y = x + 1
        wait_until(lambda: "2 commands queued" in session._repr_html_(), what="it is shown")
        tt.interrupt(session.name, daemon.unix)
        with pytest.raises(tt.InterruptedOpError):
            y.sum().item()
    assert "closed" in session._repr_html_()


def test_memory_by_line(shell, tt):
    shell.run_cell("big = tt.zeros(1000, 1000)").raise_error()
    shown = shell.run_line_magic("teletensor", "memory 5")
    assert "3.8 MiB" in repr(shown) and "in <module>" in repr(shown)
    assert "<table>" in shown._repr_html_() and "&lt;module&gt;" in shown._repr_html_()


def test_a_cell_is_profiled(shell, tmp_path, capsys):
    shell.run_cell_magic("teletensor", f"profile {tmp_path / 't.json'}",
                         "y = (tt.randn(50, 50) @ tt.ones(50, 50)).sum().item()")
    assert "matmul" in capsys.readouterr().out
    assert isinstance(shell.user_ns["y"], float)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_an_error_of_the_cell_is_raised(shell):
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("teletensor", "profile", "1 / 0")


@pytest.mark.parametrize("line", ["memry", "status now", "memory many", "profile"])
def test_usage(shell, line):
    from IPython.core.error import UsageError
    with pytest.raises(UsageError, match="%teletensor"):
        shell.run_line_magic("teletensor", line)


def test_watch_updates_until_it_is_stopped(shell, tt, monkeypatch):
    from teletensor._tools import notebook as _notebook
    monkeypatch.setattr(_notebook, "_SECONDS", 0.05)
    updates = []

    class Handle:
        def update(self, shown):
            updates.append(repr(shown))

    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: Handle())
    shell.run_line_magic("teletensor", "watch")
    watch = _notebook._magics._watch
    x = tt.ones(1 << 21)
    wait_until(lambda: updates and "8.0 MiB" in updates[-1], what="the new bytes are shown")
    shell.run_line_magic("teletensor", "unwatch")
    watch.join(HANG)
    assert not watch.is_alive()
    del x
