"""The operator's view of resources: calls and commands, /metrics, health, the slow log."""

import getpass
import json
import subprocess
import sys

import grpc
import pytest
from support.busy import occupy
from support.clients import client, finish, wait_line
from support.daemon import wait_until
from support.http import ask, samples, scrape
from support.raw import ADMIN, Raw

MIB = 1 << 20


def cli(daemon, command, *arguments, address=None):
    return subprocess.run([sys.executable, "-m", "teletensor.cli", command, "--address",
                           address or daemon.unix, *arguments], capture_output=True, text=True, timeout=60)


def test_metrics_tell_what_clients_hold(start_daemon, tt):
    daemon = start_daemon()
    user = getpass.getuser()
    with tt.connect(daemon.unix), tt.connect(daemon.unix) as second:
        kept = [tt.ones(MIB // 4 * 3)]
        with second:
            kept.append(tt.ones(MIB // 4))
        with tt.connect(daemon.tcp, token=daemon.token) as third:
            kept.append(tt.ones(MIB // 2))
            for s in (second, third, tt.current_session()):
                s.synchronize()
            tt.synchronize()
            lane = "teletensor_user_lane_seconds_total", (("user", user),)
            # A lane counts its time at the end of its turn, after the value that the client waits for was
            # sent.
            wait_until(lambda: samples(scrape(daemon)).get(lane, 0) > 0)
            found = samples(scrape(daemon))
    assert found["teletensor_sessions", (("user", user),)] == 2
    assert found["teletensor_sessions", (("user", "tester"),)] == 1
    own = found["teletensor_user_memory_bytes", (("device", "cpu"), ("user", user))]
    assert 4 * MIB <= own <= 4.1 * MIB
    other = found["teletensor_user_memory_bytes", (("device", "cpu"), ("user", "tester"))]
    assert 2 * MIB <= other <= 2.1 * MIB
    used = found["teletensor_device_memory_bytes", (("device", "cpu"), ("kind", "used"))]
    assert own + other <= used <= own + other + MIB
    assert found["teletensor_ready", ()] == 1
    assert found["process_resident_memory_bytes", ()] > 10 * MIB
    assert found["teletensor_handles", ()] >= 3


def test_counters_stay_when_sessions_end(start_daemon, tt):
    daemon = start_daemon()
    for _ in range(2):
        with tt.connect(daemon.unix):
            tt.ones(100).sum().item()
    user = (("user", getpass.getuser()),)

    def commands():
        return samples(scrape(daemon)).get(("teletensor_user_commands_total", user), 0)
    wait_until(lambda: commands() >= 6, what="all are counted")
    found = samples(scrape(daemon))
    assert found["teletensor_sessions_opened_total", ()] == 2
    assert found["teletensor_sessions_ended_total", (("code", "CANCELLED"), ("reason", "closed"))] == 2
    assert ("teletensor_sessions", user) not in found or found["teletensor_sessions", user] == 0


def test_health_over_http(start_daemon):
    daemon = start_daemon()
    assert ask(daemon.http, "/healthz").text == "ok\n"
    ready = ask(daemon.http, "/readyz")
    assert (ready.status, ready.text) == (200, "ready\n")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_foreign_host_names_are_refused(start_daemon, host):
    """DNS rebinding: a page of evil.example whose name now points here."""
    daemon = start_daemon()
    assert ask(daemon.http, "/metrics", token=daemon.monitor, headers={"Host": host}).status in (400, 421)
    assert ask(daemon.http, "/metrics", token=daemon.monitor, headers={"Host": "localhost:1"}).status == 200


def test_what_is_not_there_and_headers(start_daemon):
    daemon = start_daemon()
    for path in ("/nothing", "/../etc/passwd", "/%2e%2e/etc/passwd", "/metrics/x"):
        assert ask(daemon.http, path).status in (400, 404)
    assert ask(daemon.http, "/metrics", "POST", body={}).status in (404, 405)
    headers = ask(daemon.http, "/healthz").headers
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_http_off_loopback_is_refused():
    from support.daemon import binary
    done = subprocess.run([binary(), "--listen", "127.0.0.1:0", "--no-socket", "--http", "0.0.0.0:0"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "0.0.0.0" in done.stderr


def test_memory_names_the_lines(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        small = tt.ones(1000)
        big = tt.ones(MIB)
        report = s.memory()[0]
        assert report["device"] == "cpu" and report["used"] >= 4 * MIB + 4000
        first, second = report["tensors"][:2]
        assert first["bytes"] >= 4 * MIB > second["bytes"] >= 4000
        assert "test_sight.py" in first["site"] and "test_memory_names_the_lines" in first["site"]
        assert first["site"] != second["site"]
        assert (first["shape"], first["dtype"]) == ([MIB], "float32") and second["shape"] == [1000]
        assert len(s.memory(tensors=1)[0]["tensors"]) == 1
        del small, big


def test_operator_sees_the_lines_of_others(start_daemon, tt):
    """The client reports them by itself."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        kept = tt.ones(MIB)
        s.synchronize()

        def sites():
            done = cli(daemon, "memory", "--session", str(s.id), "--json")
            return [t["site"] for t in json.loads(done.stdout)["tensors"]]
        wait_until(lambda: any("test_operator_sees_the_lines_of_others" in site for site in sites()))
        assert "test_sight.py" in cli(daemon, "memory", "--session", str(s.id)).stdout
        del kept


def test_lane_time_is_told_while_a_program_runs(start_daemon, tt):
    """A program with one long command, whose session has the lane all the time."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as session:
        with session.as_current():
            running = occupy(tt)
        for least in (0.01, 0.1, 0.3):
            wait_until(lambda least=least: session.status()["lane_seconds"] > least, what=f"{least} s of lane time")
        session.cancel()
        del running


def test_commands(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix, name="training") as s:
        kept = tt.ones(MIB)
        s.synchronize()
        with Raw(daemon.unix) as raw:  # a lane counts its time when its turn ends
            wait_until(lambda: raw.sessions()[0].lane_seconds > 0, what="the lane's time")
        found = json.loads(cli(daemon, "sessions", "--json").stdout)
        assert [(f["name"], f["user"], f["id"]) for f in found] == [("training", getpass.getuser(), s.id)]
        assert found[0]["lane_seconds"] > 0 and found[0]["memory"][0]["used"] >= 4 * MIB
        assert "training" in cli(daemon, "sessions").stdout
        top = cli(daemon, "top", "--interval", "0.2", "--count", "1")
        assert top.returncode == 0 and "training" in top.stdout and "LANES" in top.stdout
        assert "cpu" in cli(daemon, "memory").stdout
        del kept
    assert "OP" in cli(daemon, "slowlog").stdout


def test_bench_command(start_daemon):
    daemon = start_daemon()
    found = json.loads(cli(daemon, "bench", "--json").stdout)
    assert len(found) == 5 and all(value > 0 for value in found.values())


def test_slow_log(start_daemon, tt):
    daemon = start_daemon("--slow-ms", "50")
    with tt.connect(daemon.unix, name="slow one") as s:
        a = tt.ones(5000, 5000)  # ten times 50 ms on two fast cores
        (a @ a).sum().item()
        entries = json.loads(cli(daemon, "slowlog", "--json").stdout)
        # On a busy machine other instructions, and the daemon's own, may be slow as well.
        assert all(e["seconds"] >= 0.05 for e in entries)
        own = [e for e in entries if e["session"] == s.id]
        assert [e["name"] for e in own if e["op"] == "matmul"] == ["slow one"]


def test_kill(start_daemon, tt):
    daemon = start_daemon()
    victim = client("""
        kept = tt.ones(1 << 20)
        s.synchronize()
        print("holding", s.id, flush=True)
        import sys
        sys.stdin.readline()
        try:
            kept.sum().item()
        except tt.SessionLostError as e:
            print("lost:", e)
    """, daemon.unix, stdin=subprocess.PIPE)
    number = wait_line(victim, "holding").split()[1]
    with tt.connect(daemon.unix):
        other = tt.arange(5)
        assert cli(daemon, "kill", number, "--reason", "räumen – 12 Uhr").returncode == 0
        with Raw(daemon.unix) as raw:
            wait_until(lambda: raw.used()["cpu"] < MIB, what="the memory is back")
        victim.stdin.write("\n")
        victim.stdin.flush()
        status, out, _ = finish(victim)
        assert status == 0 and "ended by" in out and "räumen – 12 Uhr" in out
        assert other.tolist() == [0, 1, 2, 3, 4]
        missing = cli(daemon, "kill", number)
        assert missing.returncode == 1 and f"no session {number}" in missing.stderr


def test_sessions_are_found_by_name(start_daemon, tt):
    daemon = start_daemon("--restart", "5")
    user = getpass.getuser()
    with tt.connect(daemon.unix, name="exp") as s:
        x = tt.ones(MIB)
        x.sum().item()
        found = cli(daemon, "memory", "--session", "exp", "--json")
        assert json.loads(found.stdout)["tensors"][0]["bytes"] == 4 * MIB
        written = cli(daemon, "snapshot", "exp")
        assert written.returncode == 0 and written.stdout.splitlines()[1].split()[:2] == [str(s.id), "exp"]
        done = cli(daemon, "kill", "exp", "--interrupt")
        assert done.stdout == f'what session {s.id} "exp" of {user} had queued is dropped\n'
        assert x.sum().item() == MIB
        done = cli(daemon, "kill", "exp")
        assert done.stdout == f'session {s.id} "exp" of {user} is ended\n'
        with pytest.raises(tt.SessionLostError, match="ended by"):
            x.sum().item()
            s.synchronize()
    for words in (["kill", "exp"], ["memory", "--session", "exp"], ["snapshot", "exp"]):
        done = cli(daemon, *words)
        assert done.returncode == 1 and "there is no session 'exp'" in done.stderr
    with tt.connect(daemon.unix, name="twice") as own, tt.connect(daemon.tcp, name="twice",
                                                                  token=daemon.token) as other:
        done = cli(daemon, "kill", "twice")
        assert done.returncode == 1
        assert "2 sessions have the name 'twice': give the session's number instead (" in done.stderr
        assert f"({own.id} of {user}, {other.id} of " in done.stderr


def test_sessions_whose_client_has_left(start_daemon, tt):
    daemon = start_daemon()
    tt.connect(daemon.unix, name="left").detach()
    with tt.connect(daemon.unix, name="here"):
        def seen():
            return {s["name"]: s for s in json.loads(cli(daemon, "sessions", "--json").stdout)}
        wait_until(lambda: not seen()["left"]["attached"], what="the daemon knows that the client has left")
        wait_until(lambda: seen()["left"]["detached_seconds"] > 0.1, what="time passes")
        found = seen()
        assert found["here"]["attached"] and found["here"]["detached_seconds"] == 0
        assert found["left"]["detached_seconds"] <= found["left"]["age_seconds"] + 0.1
        rows = {row.split()[2]: row for row in cli(daemon, "sessions").stdout.splitlines()}
        assert " attached " in rows["here"] and " s ago " in rows["left"] and "CLIENT" in rows["SESSION"]


def test_interrupt_of_another(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        a = occupy(tt)
        assert cli(daemon, "kill", str(s.id), "--interrupt").returncode == 0
        with pytest.raises(tt.InterruptedOpError):
            a.sum().item()
        assert (tt.ones(3) * 1).tolist() == [1.0] * 3


def test_users_see_sums_of_others(start_daemon, tt):
    """A caller without an identity is no admin, and another user's session is answered as if it did not
    exist."""
    daemon = start_daemon(anonymous="what callers without an identity see")
    with tt.connect(daemon.unix, name="secret project") as s:
        kept = tt.ones(MIB)
        s.synchronize()
        with tt.connect(daemon.tcp, name="mine") as own, Raw(daemon.tcp) as raw:
            listed = cli(daemon, "sessions", address=daemon.tcp)
            assert "mine" in listed.stdout and "secret project" not in listed.stdout
            assert "1 of others" in listed.stdout and "4.0 MiB" in listed.stdout
            pb = raw.admin_pb
            for call, request, reply in (("Kill", pb.KillRequest(session=s.id), pb.KillReply),
                                         ("InterruptSession", pb.InterruptSessionRequest(session=s.id),
                                          pb.InterruptSessionReply),
                                         ("Holdings", pb.HoldingsRequest(session=s.id), pb.HoldingsReply)):
                with pytest.raises(grpc.RpcError) as refused:
                    raw.unary(ADMIN + call, request, reply)
                assert refused.value.code() == grpc.StatusCode.NOT_FOUND
                with pytest.raises(grpc.RpcError) as missing:
                    raw.unary(ADMIN + call, type(request)(session=999), reply)
                assert missing.value.details().replace("999", "N") == refused.value.details().replace(
                    str(s.id), "N")
            assert cli(daemon, "kill", str(own.id), address=daemon.tcp).returncode == 0
        assert kept.sum().item() == MIB


def test_another_users_token_is_no_token(start_daemon, tt):
    """A session's secret is good only for its own user."""
    daemon = start_daemon()
    with Raw(daemon.unix) as own, Raw(daemon.tcp, token=daemon.token) as stranger:
        session = own.session()
        pb = own.session_pb
        metadata = (("teletensor-token", session.token),)
        interrupt = "/teletensor.v1.Compute/Interrupt"
        own.unary(interrupt, pb.InterruptRequest(), pb.InterruptReply, metadata)
        with pytest.raises(grpc.RpcError) as refused:
            stranger.unary(interrupt, pb.InterruptRequest(), pb.InterruptReply, metadata)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        session.close()


@pytest.mark.parametrize("reason, told", [
    ("räumen – 12 Uhr", "räumen – 12 Uhr"), ("наука 日本", "наука 日本"), ("a\nb\x1b[31m\"", "a?b?[31m?")])
def test_a_reason_in_any_script(start_daemon, tt, each_transport, reason, told):
    daemon = start_daemon()
    s = tt.connect(daemon.unix)
    done = subprocess.run([sys.executable, "-m", "teletensor.cli", "kill", str(s.id), "--reason", reason,
                           "--address", daemon.unix], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with pytest.raises(tt.SessionLostError) as lost, s.as_current():
        while True:
            tt.ones(2).prod().item()
    assert f": {told} [killed]" in str(lost.value) and lost.value.reason == "killed"
    s.close()


def test_memory_names_shapes_and_dtypes(start_daemon, tt):
    """The table has shapes and dtypes of results, of uploads and constants, and of writes into views."""
    import numpy as np
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        result = tt.ones(300, 200) + 1.0
        uploaded = tt.tensor(np.zeros((2, 1 << 19), np.float64))
        sent = tt.tensor(np.zeros((7, 100), np.int16))
        written = tt.zeros(500, 300, dtype=tt.int32)
        alias = written.clone()  # so that the write below takes a new storage
        written[3] = 1
        scalar = tt.tensor(1.5, dtype=tt.float64)
        s.synchronize()
        found = [(tuple(t["shape"]), t["dtype"]) for t in s.memory()[0]["tensors"]]
        assert found[0] == ((2, 1 << 19), "float64")
        assert found.count(((500, 300), "int32")) == 2
        assert ((300, 200), "float32") in found and ((7, 100), "int16") in found
        assert ((), "float64") in found
        del result, uploaded, sent, alias, scalar
