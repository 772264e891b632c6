"""The daemon as a program: flags, files, signals, health, reflection, the CLI."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from support.clients import client, finish, wait_line
from support.daemon import HANG, binary, wait_until
from support.raw import Raw

VERSION = (Path(__file__).resolve().parents[2] / "VERSION").read_text(encoding="utf-8").strip()


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, **options)


def test_version_and_help():
    assert VERSION in run(binary(), "--version").stdout
    text = run(binary(), "--help").stdout
    for flag in ("--listen", "--socket", "--host-memory", "--session-memory", "--lease", "--config"):
        assert flag in text


@pytest.mark.parametrize("flags", [
    ["--nonsense"], ["--listen", "nowhere"], ["--listen", "127.0.0.1:99999"], ["--session-memory", "lots"],
    ["--session-memory", "-5"], ["--lease", "-1"], ["--config", "/nonexistent.toml"], ["--listen", "0.0.0.0:0"]],
    ids=" ".join)
def test_refuses_to_start(flags, tmp_path):
    done = run(binary(), *(flags if "--listen" in flags else ["--listen", "127.0.0.1:0", *flags]), "--socket",
               str(tmp_path / "s"))
    assert done.returncode not in (0, -6, -11)
    assert len(done.stderr + done.stdout) > 10


def test_configuration_file_and_environment(start_daemon, tmp_path, tt):
    config = tmp_path / "teletensord.toml"
    config.write_text('session_memory = "8MiB"\n', encoding="utf-8")
    daemon = start_daemon("--config", str(config))
    with tt.connect(daemon.unix) as s:
        with pytest.raises(tt.OutOfMemoryError):
            tt.empty(4 << 20)
        s.close()
    daemon = start_daemon("--config", str(config), env={"TELETENSOR_SESSION_MEMORY": "64MiB"})
    with tt.connect(daemon.unix) as s:
        assert tt.ones(4 << 20).sum().item() == 4 << 20  # the environment wins over the file
        s.close()


def test_socket_is_private_and_removed(start_daemon):
    daemon = start_daemon()
    assert os.stat(daemon.socket).st_mode & 0o077 == 0
    assert daemon.terminate() == 0
    assert not os.path.exists(daemon.socket)
    daemon.stop = lambda: ""


def test_second_daemon_does_not_steal_the_socket(start_daemon):
    daemon = start_daemon()
    done = run(binary(), "--listen", "127.0.0.1:0", "--socket", daemon.socket, "--state-dir", f"{daemon.folder}/second")
    assert done.returncode == 1
    assert f"another teletensord serves {daemon.socket}: process {daemon.pid}" in done.stderr, done
    with Raw(daemon.unix) as raw:
        assert raw.describe().server_version == VERSION


def test_daemons_that_start_at_once_on_one_socket(tmp_path, tt):
    """One daemon has the socket and the socket for shared memory; the others report its process. None
    removes the files of another daemon."""
    path = str(tmp_path / "s")
    for _ in range(8):
        crowd = [subprocess.Popen([binary(), "--listen", "", "--socket", path, "--state-dir", "", "--cuda-driver", ""],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        ready = [process for process in crowd if "ready" in process.stdout.readline()]
        assert len(ready) == 1
        for process in crowd:
            if process is not ready[0]:
                assert process.wait(60) == 1
                assert f"another teletensord serves {path}" in process.stderr.read()
        assert os.path.exists(path + ".share")
        with tt.connect("unix:" + path):
            assert (tt.ones(3) * 1).tolist() == [1.0] * 3
        ready[0].terminate()
        for process in crowd:
            process.communicate(timeout=60)
        assert ready[0].returncode == 0 and not list(tmp_path.iterdir())


def test_stale_socket_is_replaced(start_daemon, tt):
    from support.daemon import Daemon
    dead = Daemon()
    dead.process.kill()
    dead.process.wait()
    assert os.path.exists(dead.socket)
    done = subprocess.Popen([binary(), "--listen", "127.0.0.1:0", "--socket", dead.socket],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_line_of = done.stdout.readline()
        assert wait_line_of
        wait_until(lambda: answers("unix:" + dead.socket), what="the new daemon answers")
    finally:
        done.terminate()
        assert done.wait(HANG) == 0
        done.stdout.close()
        dead.kill()


def answers(address):
    try:
        with Raw(address) as raw:
            return bool(raw.describe().server_version)
    except grpc.RpcError:
        return False


def test_ends_as_soon_as_it_is_ready(start_daemon):
    """The end also stops the HTTP server, whose thread may not have begun to listen."""
    daemon = start_daemon()
    for _ in range(20):
        assert daemon.terminate() == 0, daemon.log
        daemon.restart()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("forgets", ["", "what clients are told if no daemon follows"], ids=["keeps", "forgets"])
def test_signal_with_clients_at_work(start_daemon, number, forgets):
    daemon = start_daemon(forgets=forgets)
    process = client("""
        x = tt.ones(100)
        print("working", flush=True)
        try:
            while True:
                x = x + 1
                x.sum().item()
        except tt.SessionLostError as e:
            print("lost:", e, flush=True)
    """, daemon.unix)
    wait_line(process, "working")
    with Raw(daemon.unix) as raw:
        wait_until(lambda: raw.sessions()[0].completed_upto > 50, what="it is at work")
    daemon.process.send_signal(number)
    assert daemon.process.wait(HANG) == 0
    if forgets:
        status, out, err = finish(process)
        assert status == 0 and "lost:" in out, (out, err)
    daemon.restart()
    with Raw(daemon.unix) as raw:
        if forgets:
            assert not raw.sessions()
        else:
            before = raw.sessions()[0].completed_upto
            wait_until(lambda: raw.sessions()[0].completed_upto > before + 50, what="it continues its work")
            process.kill()
            process.communicate()


def test_health(start_daemon):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    daemon = start_daemon()
    with grpc.insecure_channel(daemon.unix) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


# ---------------------------------------------------------------- the CLI

def cli(*arguments, **environment):
    command = Path(sys.executable).parent / "teletensor"
    command = [str(command)] if command.exists() else [sys.executable, "-m", "teletensor.cli"]
    return run(*command, *arguments, env={**os.environ, **environment})


def test_cli_version():
    assert VERSION in cli("--version").stdout
    assert "health" in cli("--help").stdout


def test_cli_against_a_daemon(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix, name="notebook-7") as s:
        x = tt.ones(1 << 20)
        x.sum().item()
        for address, environment in ((daemon.unix, {}), (daemon.tcp, {"TELETENSOR_TOKEN_FILE": daemon.token_file})):
            done = cli("health", "--address", address, **environment)
            assert done.returncode == 0 and VERSION in done.stdout
        listed = cli("sessions", "--address", daemon.unix)
        assert listed.returncode == 0 and "notebook-7" in listed.stdout
        memory = cli("memory", "--address", daemon.unix)
        assert memory.returncode == 0 and "cpu" in memory.stdout
        s.close()


def test_cli_where_nobody_answers():
    done = cli("health", "--address", "127.0.0.1:1")
    assert done.returncode != 0 and done.returncode != 139
    assert "127.0.0.1:1" in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_cli_doctor(start_daemon):
    daemon = start_daemon()
    done = cli("doctor", "--address", daemon.unix)
    assert done.returncode == 0, done.stderr
    assert VERSION in done.stdout


def test_cli_serve(tmp_path):
    command = [sys.executable, "-m", "teletensor.cli", "serve", "--listen", "127.0.0.1:0", "--socket",
               str(tmp_path / "s.sock")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: answers(f"unix:{tmp_path}/s.sock"), what="the served daemon answers")
    finally:
        process.terminate()
        process.wait(HANG)
        process.stdout.close()


@pytest.mark.parametrize("words", [
    ["kill", "--", "-1"], ["kill", "18446744073709551617"], ["memory", "--session", "-1"],
    ["memory", "--session", "99999999999999999999"],
    ["top", "--interval", "-1"], ["top", "--interval", "nan"], ["top", "--count", "0"], ["slowlog", "--most", "-1"],
    ["snapshot", "--", "-5"], ["drain", "--seconds", "nan"], ["token", "create", "bob", "--days", "-1"],
    ["token", "create", "bob", "--days", "99999999999"]])
def test_cli_numbers_out_of_range(words):
    """A wrong argument is refused before any daemon is called: 2^64 + 1 would be another session's
    number."""
    done = cli(*words, TELETENSOR_ADDRESS="127.0.0.1:1")
    assert done.returncode == 2 and "number from" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("address", [
    "127.0.0.1:99999", "127.0.0.1", "127.0.0.1:", ":7420", "127.0.0.1:x", "  ", "tls://host:0", "unix:",
    "unix:/" + "x" * 107, "http://127.0.0.1:80/x"])
def test_cli_addresses_that_are_none(address):
    """gRPC would use port 34463 for 99999, and any port for 0."""
    done = cli("health", "--address", address)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("teletensor health: address ") and done.stderr.count("\n") == 1


def test_cli_tokens_that_cannot_be_read(tmp_path):
    bad, long = tmp_path / "bad", tmp_path / "long"
    bad.write_bytes(b"\xff\xfe\n")
    long.write_text("a" * 1_000_000)
    for path, text in ((bad, "printable ASCII"), (long, "1,000 characters"), (tmp_path / "none", "No such file")):
        done = cli("sessions", TELETENSOR_TOKEN_FILE=str(path), TELETENSOR_ADDRESS="127.0.0.1:1")
        assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr
        assert "aaaa" not in done.stderr


def test_cli_with_nobody_to_read(start_daemon):
    """`teletensor top | head -1`."""
    daemon = start_daemon()
    command = f"{sys.executable} -m teletensor.cli top --interval 0.05 --address {daemon.unix} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("cpu") and not done.stderr


@pytest.mark.parametrize("words", ["--help", "--version", "top --help", "sessions --address {}"])
def test_cli_output_that_cannot_be_written(words, shared_daemon):
    command = f"{sys.executable} -m teletensor.cli {words.format(shared_daemon.unix)}"
    full = run("sh", "-c", f"{command} > /dev/full")
    assert full.returncode == 1 and "No space left" in full.stderr and full.stderr.count("\n") == 1
    gone = run("sh", "-c", f"(trap '' PIPE; {command}; echo $? >&2) | true")
    assert gone.stderr in ("0\n", "1\n")  # 0: all was written before the reader had gone
    closed = run("sh", "-c", f"{command} >&-")
    assert "Traceback" not in closed.stderr


def test_cli_paths_that_are_no_text(tmp_path):
    """A path with Latin-1 characters, as bytes or as Python decodes them."""
    done = run(sys.executable, "-m", "teletensor.cli", "health", "--address", b"/tmp/caf\xe9.sock")
    assert done.returncode == 1 and "caf\\udce9" in done.stderr and done.stderr.count("\n") == 1
    assert "no teletensord answers" in done.stderr
