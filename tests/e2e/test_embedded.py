"""Without an address a program uses a daemon of its user, which is started, shared, and ended after its last
client."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pytest
import teletensor
from support.daemon import HANG, binary, wait_until
from support.users import need_two_users
from teletensor._connection import daemon as _daemon

CODE = """
import teletensor as tt
x = tt.ones(3, requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist(), flush=True)
"""


@pytest.fixture
def folder():
    """A private XDG_RUNTIME_DIR with a short path."""
    path = tempfile.mkdtemp(prefix="tte-")
    yield path
    wait_until(lambda: not daemons_of(path), what="the embedded daemon ends after its last client")
    shutil.rmtree(path, ignore_errors=True)


def environment(folder):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TELETENSOR_")}
    return {**env, "XDG_RUNTIME_DIR": folder, "TELETENSORD": binary(), "HOME": folder}


def daemons_of(folder):
    """Pids of daemons whose command line or environment names the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                command = f.read()
            if b"teletensord" not in command.split(b"\0")[0]:
                continue
            with open(f"/proc/{pid}/environ", "rb") as f:
                if folder.encode() in command + f.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def start(folder, code=CODE):
    return subprocess.Popen([sys.executable, "-c", code], env=environment(folder), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_program_without_an_address(folder):
    process = start(folder)
    out, err = process.communicate(timeout=HANG)
    assert out.strip() == "[2.0, 2.0, 2.0]" and process.returncode == 0, err


STARTED = "teletensor: no daemon found, started an embedded one (nothing of an earlier daemon is here)\n"


def test_programs_of_one_user_share_it(folder):
    waiting = [start(folder, CODE + "input()\n") for _ in range(3)]
    for process in waiting:
        assert process.stdout.readline().strip() == "[2.0, 2.0, 2.0]", process.stderr.read()
    assert len(daemons_of(folder)) == 1
    told = []
    for process in waiting:
        told.append(process.communicate("\n", timeout=HANG)[1])
        assert process.returncode == 0
    assert sorted(told) == ["", "", STARTED]  # only the one that has started it says so


def test_the_log_says_that_a_daemon_was_started(folder):
    done = start(folder, """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s: %(message)s")
import teletensor as tt
tt.ones(1).item()
with tt.connect() as second:
    second.synchronize()
""")
    out, err = done.communicate(timeout=HANG)
    assert done.returncode == 0, err
    assert (out, err) == (f"teletensor WARNING: {STARTED}", "")


def test_killed_client(folder):
    process = start(folder, CODE + "input()\n")
    assert process.stdout.readline().strip() == "[2.0, 2.0, 2.0]"
    process.kill()
    process.communicate()


def test_no_binary(folder):
    env = {**environment(folder), "TELETENSORD": "/nonexistent/teletensord"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode != 0 and "/nonexistent/teletensord" in done.stderr


FIND = "from teletensor._connection.daemon import find_daemon; print(find_daemon(), flush=True)"
PACKAGE = pathlib.Path(teletensor.__file__).parent


def fake(path):
    """A fake daemon that records that it was run, and ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {path}.run\n")
    path.chmod(0o755)
    return path


def find(folder, cwd, python=sys.executable, **environ):
    """Returns the daemon that a program in the folder `cwd` would start: (path or "", text of the error)."""
    env = environment(folder) | {"PATH": "/usr/bin:/bin", **environ}
    for name in {"TELETENSORD", "PYTHONPATH"} - set(environ):
        env.pop(name, None)
    done = subprocess.run([python, "-c", FIND], env=env, cwd=cwd, capture_output=True, text=True,
                          timeout=60, check=False)
    return done.stdout.strip(), done.stderr


@pytest.fixture
def bare(tmp_path):
    """A Python whose own folders hold no daemon: an environment with a copy of the package, no checkout."""
    home = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    [site] = (home / "venv" / "lib").glob("python*/site-packages")
    shutil.copytree(PACKAGE.resolve(), site / "teletensor")
    (site / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")  # NumPy, grpcio
    return home / "venv" / "bin" / "python"


def test_no_daemon_of_the_working_directory(folder, bare, tmp_path):
    project = tmp_path / "project"
    theirs = fake(project / "build/release/bin/teletensord")
    beside = fake(project / "below" / "teletensord")
    for cwd in (project, beside.parent):
        for search in ("/usr/bin:/bin", ":/usr/bin:.", "../below:/usr/bin"):
            found, error = find(folder, cwd, bare, PATH=search)
            assert found == "" and "no teletensord to start" in error, (cwd, search)
    env = environment(folder) | {"TELETENSORD": "", "PYTHONPATH": "", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([bare, "-c", CODE], env=env, cwd=project, capture_output=True, text=True,
                          timeout=60, check=False)
    assert "no teletensord to start" in done.stderr
    assert not list(project.rglob("*.run")), "it was run"
    assert find(folder, project, bare, PATH=f"/usr/bin:{beside.parent}")[0] == str(beside)
    assert find(folder, project, bare, TELETENSORD=str(theirs))[0] == str(theirs)


def test_a_daemon_beside_the_package(folder, bare, tmp_path):
    own = fake(bare.parent / "teletensord")
    assert find(folder, tmp_path, bare)[0] == str(own)
    [site] = bare.parents[1].glob("lib/python*/site-packages")
    wheel = fake(site / "teletensord" / "bin" / "teletensord")
    assert find(folder, tmp_path, bare)[0] == str(wheel)
    installed = fake(site / "teletensor" / "teletensord")
    assert find(folder, tmp_path, bare)[0] == str(installed)


def test_a_daemon_of_the_checkout(folder, bare, tmp_path):
    checkout = bare.parents[2]
    built = fake(checkout / "build/release/bin/teletensord")
    assert find(folder, tmp_path, bare)[0] == ""  # a folder like any other
    package = checkout / "clients/python/teletensor"
    shutil.copytree(PACKAGE.resolve(), package)
    assert find(folder, tmp_path, bare)[0] == str(built)
    assert find(folder, tmp_path, bare, PYTHONPATH=str(package.parent))[0] == str(built)


def test_a_daemon_that_others_can_replace(folder, bare, tmp_path):
    place = fake(tmp_path / "one" / "two" / "teletensord")
    search = f"/usr/bin:{place.parent}"
    assert find(folder, tmp_path, bare, PATH=search)[0] == str(place)
    for what in (place, place.parent, place.parent.parent):
        mode = what.stat().st_mode
        for write in (0o002, 0o020):
            what.chmod(mode | write)
            os.chown(what, -1, 12345)  # a group with other users
            found, error = find(folder, tmp_path, bare, PATH=search)
            assert found == "", what
            assert f"other users can write to {what}" in error and "set TELETENSORD" in error
            assert find(folder, tmp_path, bare, PATH=search, TELETENSORD=str(place))[0] == str(place)
            what.chmod(mode)
    place.parent.parent.chmod(0o1777)  # as /tmp: users cannot replace files of other users
    assert find(folder, tmp_path, bare, PATH=search)[0] == str(place)


def test_a_daemon_that_another_user_owns(folder, bare, tmp_path):
    need_two_users()
    place = fake(tmp_path / "one" / "teletensord")
    link = tmp_path / "two" / "teletensord"
    link.parent.mkdir()
    link.symlink_to(place)
    search = f"/usr/bin:{link.parent}"
    assert find(folder, tmp_path, bare, PATH=search)[0] == str(link)
    for what in (place, place.parent, link, link.parent):
        os.lchown(what, 12345, -1)
        found, error = find(folder, tmp_path, bare, PATH=search)
        assert found == "" and f"{what} belongs to another user (uid 12345)" in error
        os.lchown(what, 0, -1)
    assert find(folder, tmp_path, bare, PATH=search)[0] == str(link)


@pytest.mark.parametrize(("name", "works"), [("job%2F#1?", True), ("a,b", False)])
def test_folders_whose_names_mean_something_in_a_target(folder, name, works, each_transport):
    path = f"{folder}/{name}"
    os.mkdir(path, 0o700)
    env = environment(path)
    code = CODE + "print(tt.current_session().address)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          env={**env, "TELETENSOR_TRANSPORT": each_transport})
    if works:
        assert done.stdout.startswith(f"[2.0, 2.0, 2.0]\nunix:{path}/"), done.stderr
    else:
        assert done.returncode == 1 and "comma" in done.stderr and "XDG_RUNTIME_DIR" in done.stderr
        assert not daemons_of(folder)


def silent(folder, body):
    path = os.path.join(folder, "silent")
    with open(path, "w", encoding="ascii") as f:
        f.write(f"#!/bin/sh\n{body}\n")
    os.chmod(path, 0o700)
    return path


@pytest.mark.parametrize(("body", "text"), [
    ("echo $$ > $0.pid; exec sleep 1000", "did not say within 0.3 s that it is ready, and was ended"),
    ("echo $$ > $0.pid; printf half; exec sleep 1000", "did not say within 0.3 s"),
    ("echo $$ > $0.pid; exec sleep 1000 >&-", "closed its output"),
    ("exit 7", r"did not start \(exit 7\)"),
])
def test_a_daemon_that_does_not_become_ready(folder, body, text, monkeypatch):
    """connect() raises, ends the daemon, and releases the lock, for which other programs of the user
    wait."""
    program = silent(folder, body)
    monkeypatch.setattr(_daemon, "START_SECONDS", 0.3)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("TELETENSORD", program)
    monkeypatch.delenv("TELETENSOR_ADDRESS", raising=False)
    with pytest.raises(teletensor.TeletensorError, match=text):
        teletensor.connect()
    with open(f"{folder}/teletensor-embedded.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.path.exists(program + ".pid"):
        with open(program + ".pid", encoding="ascii") as f:
            assert not os.path.exists(f"/proc/{int(f.read())}")
