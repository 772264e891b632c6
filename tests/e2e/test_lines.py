"""Tables of tensors, slow instructions and errors have the line of the program that issued the command."""

import json
import subprocess
import sys

import pytest
from support.busy import held
from support.clients import client, finish, wait_line
from support.daemon import HANG, wait_until
from support.http import ask

MIB = 1 << 20


def cli(daemon, command, *arguments):
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", command, "--address", daemon.unix, *arguments],
                          capture_output=True, text=True, timeout=HANG, check=True)
    return done.stdout


def tensors(daemon, session):
    return json.loads(cli(daemon, "memory", "--session", str(session), "--json"))["tensors"]


def line_of(daemon, session, elements):
    """The source line of the tensor with that number of elements, as an operator sees it; None if there is
    no such tensor."""
    return next((t["site"] for t in tensors(daemon, session) if t["shape"] == [elements]), None)


def slow_lines(daemon, op):
    return [e["site"] for e in json.loads(cli(daemon, "slowlog", "--json")) if e["op"] == op]


def report(session):
    session.synchronize()
    session._sites.report(session._core)


def test_the_slow_log_and_the_dashboard(admin, tt):
    """Instructions that run long after they were issued, and more tensors than the overview shows."""
    daemon, token = admin
    with tt.connect(daemon.unix) as s:
        kept = [tt.ones(MIB + i) for i in range(60)]
        x = tt.randn(2500, 2500)
        for _ in range(6):
            x = x.matmul(x)
        s.synchronize()

        def shown(path):
            page = ask(daemon.http, path, token=token).json
            if path == "/api/state":
                held = [t for session in page["sessions"] for t in session["tensors"]]
                return held, [e for e in page["slow"] if e["session"] == s.id]
            return page["tensors"], page["slow"]

        for path, least in (("/api/state", 8), (f"/api/session?id={s.id}", 50)):
            wait_until(lambda path=path: all(each["site"] for part in shown(path) for each in part),
                       what="all lines are told")
            made, slow = shown(path)
            assert len(made) >= least
            for each in made + slow:
                assert "test_lines.py:" in each["site"], each
            assert [e["op"] for e in slow].count("matmul") == 6
            assert len({e["site"] for e in slow if e["op"] == "matmul"}) == 1
        found = slow_lines(daemon, "matmul")
        assert len(found) == 6 and all("test_lines.py:" in line for line in found)
        del kept


def test_every_way_to_make_a_tensor(start_daemon, tt):
    """Constants, uploads, results of ops, programs, gradients, and tensors whose sizes depend on data."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        step = tt.compile(lambda a: a * 2 + 1)
        made = [tt.tensor([1.0] * 1001), tt.tensor([1.0] * 300_002), step(tt.ones(1003)),
                tt.nn.Parameter(tt.ones(1004)), tt.nonzero(tt.ones(1005)).squeeze(1), tt.randn(1006)]
        made[3].sum().backward()
        a, b = tt.zeros(2000), tt.ones(2000)
        a[:1007] = b[:1007]
        report(s)
        found = tensors(daemon, s.id)
        assert {1001, 300_002, 1003, 1004, 1006} <= {t["shape"][0] for t in found if t["shape"]}
        assert all("test_lines.py:" in t["site"] for t in found), found


def test_a_loop_of_many_commands(start_daemon, tt):
    """The client remembers the lines of fewer commands than it issues here after the tensor was made."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        weights = tt.ones(MIB)
        x = tt.zeros(1)
        for _ in range(300_000):
            x = x + 1
        report(s)
        assert line_of(daemon, s.id, MIB).endswith(" in test_a_loop_of_many_commands")
        assert s.memory()[0]["tensors"][0]["site"] == line_of(daemon, s.id, MIB)
        assert weights.sum().item() == MIB and x.item() == 300_000


def test_a_tensor_that_is_made_after_the_last_command_was_issued(start_daemon, tt):
    daemon = start_daemon()  # reports every two seconds
    with tt.connect(daemon.unix, name="later") as s:
        with held(tt, s), s.as_current():
            late = tt.ones(MIB)
            s._sites.report(s._core)
            assert line_of(daemon, s.id, MIB) is None
        s.synchronize()
        wait_until(lambda: line_of(daemon, s.id, MIB), what="the line is told")
        del late


def test_many_other_tensors_come_and_go(start_daemon, tt, monkeypatch):
    """A line is kept while larger tensors are shown for some time, and is reported only once."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        weights = tt.ones(1000)
        report(s)
        line = line_of(daemon, s.id, 1000)
        assert "test_lines.py:" in line
        monkeypatch.setattr(s._core, "site_of", lambda seq: "")  # as after many commands
        for _ in range(4):
            passing = [tt.ones(2000 + i) for i in range(250)]
            report(s)
            del passing
        s.synchronize()
        assert line_of(daemon, s.id, 1000) == line
        del weights


def test_a_program_that_ends_soon(start_daemon, tt):
    """The client reports its lines at its end: those of slow instructions in the log, and of commands that
    it leaves in the queue."""
    daemon = start_daemon("--lease", "120", "--slow-ms", "50")
    ended = client("""
        def product(a):
            return a @ a
        product(tt.ones(4000, 4000)).sum().item()
        """, daemon.unix)
    assert finish(ended)[0] == 0
    assert [site.split(" in ")[1] for site in slow_lines(daemon, "matmul")] == ["product"]
    left = client("""
        def square(a):
            return a @ a
        def make():
            return tt.ones(1 << 20)
        square(square(square(tt.ones(3000, 3000))))
        s.keep("w", make())
        print("left", s.id, flush=True)
        s.detach()
        """, daemon.unix)
    number = int(wait_line(left, "left").split()[1])
    assert finish(left)[0] == 0
    wait_until(lambda: line_of(daemon, number, MIB) is not None, what="the tensor is made")
    assert line_of(daemon, number, MIB).endswith(" in make")
    assert {site.split(" in ")[1] for site in slow_lines(daemon, "matmul")} == {"product", "square"}


def test_after_a_restart_and_for_the_next_client(start_daemon, tt):
    daemon = start_daemon("--lease", "120", "--restart", "60", "--drain", "60")
    first = client("""
        s.detach()
        with tt.connect(os.environ["TT_TEST_ADDRESS"], name="exp") as exp:
            def make():
                return tt.ones(1 << 20)
            exp.keep("w", make())
            exp.synchronize()
            exp.detach()
        """, daemon.unix)
    assert finish(first)[0] == 0
    daemon.drain()
    daemon.restart()
    with tt.connect(daemon.unix, name="exp", fresh=True) as s:
        assert line_of(daemon, s.id, MIB).endswith(" in make")
        assert s.memory()[0]["tensors"][0]["site"].endswith(" in make")


def test_a_client_that_stays_tells_a_restarted_daemon_again(start_daemon, tt):
    """The lines include those that the daemon had not written when it was killed."""
    daemon = start_daemon("--lease", "120", "--restart", "60")
    with tt.connect(daemon.unix, name="exp") as s:
        kept = tt.ones(MIB)
        s.snapshot()
        report(s)
        daemon.kill()
        daemon.restart()
        assert kept.sum().item() == MIB
        wait_until(lambda: line_of(daemon, s.id, MIB), what="the line is told")


def test_an_embedded_daemon_is_told(tmp_path):
    code = """
import teletensor as tt
with tt.connect() as s:
    kept = tt.ones(1 << 20)
    s.synchronize()
    s._sites.report(s._core)
    print(s._admin().holdings(most=1)["tensors"][0]["site"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True,
                          cwd=tmp_path)
    assert done.stdout == "<string>:4 in <module>\n"


@pytest.mark.parametrize("path, told", [("short.py", "short.py"), ("d/" * 300 + "long.py", "/d/d/long.py"),
                                        ("<b>\u202e\x1b[31m", "<b>??[31m")])
def test_names_of_files(start_daemon, tt, path, told):
    """The daemon limits the length of a line and its characters; of a long path the end is kept."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        kept = eval(compile("tt.ones(1 << 20)", path, "eval"), {"tt": tt})
        report(s)
        site = line_of(daemon, s.id, MIB)
        assert site.endswith(f"{told}:1 in <module>") and len(site.encode()) <= 200
        del kept


def test_reports_of_a_hostile_client(start_daemon, tt):
    """Lines of commands that a client never issued are not kept, and take no room from other lines."""
    from teletensor._connection.protowire import decode, encode, integers
    from teletensor._connection.transport import CallError
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        s._sites.stop()

        def tell(seqs, upto=0):
            sites = [(1, encode([(1, seq), (2, "x" * 5000)])) for seq in seqs]
            reply = s._transport.unary("Compute", "ReportSites", encode([*sites, (2, upto)]), wait=False)
            return integers(decode(reply), 1)

        for first in range(1_000_000, 1_005_000, 200):
            assert tell(range(first, first + 200)) == []
        with pytest.raises(CallError, match="sites: at most 200 at once"):
            tell(range(201))
        kept = tt.ones(MIB)
        s.synchronize()
        last = s._core.last_seq
        assert last in tell([], upto=(1 << 64) - 1) and tell([], upto=last - 1) == []
        report(s)
        assert "test_lines.py:" in line_of(daemon, s.id, MIB)
        tell([last])
        assert line_of(daemon, s.id, MIB) == "x" * 200
        del kept
