"""Without an address: a daemon of the user's own, spawned, shared, gone after its last client."""

import os
import shutil
import subprocess
import sys
import tempfile

import pytest
from support.daemon import binary, wait_until

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
    wait_until(lambda: not daemons_of(path), 20, "the embedded daemon ends after its last client")
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
    return subprocess.Popen([sys.executable, "-c", code], env=environment(folder), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_a_program_without_an_address(folder):
    process = start(folder)
    out, err = process.communicate(timeout=60)
    assert out.strip() == "[2.0, 2.0, 2.0]" and process.returncode == 0, err


def test_programs_of_one_user_share_it(folder):
    waiting = [start(folder, CODE + "input()\n" if False else CODE + "import time; time.sleep(3)\n")
               for _ in range(3)]
    for process in waiting:
        assert process.stdout.readline().strip() == "[2.0, 2.0, 2.0]", process.stderr.read()
    assert len(daemons_of(folder)) == 1
    for process in waiting:
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_killed_client(folder):
    process = start(folder, CODE + "import time; time.sleep(60)\n")
    assert process.stdout.readline().strip() == "[2.0, 2.0, 2.0]"
    process.kill()
    process.communicate()


def test_no_binary(folder):
    env = {**environment(folder), "TELETENSORD": "/nonexistent/teletensord"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode != 0 and "/nonexistent/teletensord" in done.stderr
