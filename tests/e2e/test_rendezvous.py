"""`teletensor launch --rdzv-backend c10d`: launchers of several machines agree on their node ranks through a
store."""

import json
import os
import signal
import subprocess
import sys

import pytest
import teletensor.distributed as dist
from support.clients import DEFAULT_SIGNALS, finish, wait_line
from support.daemon import wait_until
from teletensor.distributed import run
from teletensor.distributed._stores import daemon_store, rendezvous

WORLD = """
import json, os, sys
import teletensor as tt
import teletensor.distributed as dist
dist.init_process_group("gloo")
x = tt.tensor([float(2 ** dist.get_rank())])
dist.all_reduce(x)
told = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")}
if sys.argv[1:] == ["fails"] and told["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(1)
sys.stdout.write(json.dumps({"sum": x.tolist(), **told}) + "\\n")
"""

# The ranks compute together until one of them finds the file that the argument names.
TRAINING = """
import os, sys
import teletensor as tt
import teletensor.distributed as dist
dist.init_process_group("gloo")
told = [os.environ[each] for each in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")]
sys.stdout.write(f"world {' '.join(told)} of {dist.get_world_size()}\\n")
sys.stdout.flush()
found = 0.0
while not found:
    x = tt.tensor([float(os.path.exists(sys.argv[1]))])
    dist.all_reduce(x)
    found = x.item()
"""
RANGE = ("--rdzv-conf", "last_call_timeout=0.1", "--max-restarts", "1")


@pytest.fixture
def launch(start_daemon, new_token, tmp_path, monkeypatch):
    """launch(*flags): starts a launcher as on a separate machine; `launch.daemon` answers at its
    endpoint."""
    started, script = [], tmp_path / "script.py"

    def start(*flags, arguments=(), id="job", code=WORLD, **environment):
        script.write_text(code)
        flags = ["--rdzv-backend", "c10d", "--rdzv-endpoint", launch.daemon.tcp, "--rdzv-id", id, *flags]
        env = {k: v for k, v in os.environ.items() if not k.startswith("TELETENSOR_")} | {
            "TELETENSOR_TOKEN": token, **environment}
        command = [*DEFAULT_SIGNALS, sys.executable, "-m", "teletensor.distributed.run", *flags]
        started.append(subprocess.Popen([*command, str(script), *arguments], env=env, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]
    launch = start
    start.daemon = start_daemon()
    token = new_token(start.daemon, "alice")
    monkeypatch.setenv("TELETENSOR_TOKEN", token)
    yield start
    for process in started:
        process.kill()
        process.wait()


def store_of(launch, id="job"):
    place = daemon_store.Place(launch.daemon.tcp, daemon_store.credentials_of(launch.daemon.tcp))
    return daemon_store.DaemonStore(place, f"rendezvous {id}", daemon_store.Way.SHARE)


def waiting(launch, count, id="job"):
    """Waits until the given number of launchers are in the open round."""
    store = store_of(launch, id)
    wait_until(lambda: len(rendezvous._members(store, f"round {store.add('round', 0)}")[1]) == count,
               what=f"{count} launchers wait")


def told(launchers):
    found = []
    for launcher in launchers:
        status, out, err = finish(launcher)
        assert status == 0, err
        found += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: int(each["RANK"]))


def test_machines_get_numbers(launch):
    """Two jobs at once, without --node-rank and with no address of the daemon but the endpoint."""
    launchers = [launch("--nnodes", "2", "--nproc-per-node", "2") for _ in range(2)]
    others = [launch("--nnodes", "2", id="other") for _ in range(2)]
    found = told(launchers)
    assert [each["sum"] for each in found] == [[15.0]] * 4
    assert [(each["RANK"], each["GROUP_RANK"], each["LOCAL_RANK"]) for each in found] == [
        ("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
    assert {(each["WORLD_SIZE"], each["GROUP_WORLD_SIZE"], each["TORCHELASTIC_RUN_ID"]) for each in found} == {
        ("4", "2", "job")}
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1
    assert [each["sum"] for each in told(others)] == [[3.0]] * 2


def test_all_begin_again(launch):
    launchers = [launch("--nnodes", "2", "--max-restarts", "1", arguments=["fails"]) for _ in range(2)]
    found = told(launchers)
    assert [(each["sum"], each["TORCHELASTIC_RESTART_COUNT"]) for each in found] == [([3.0], "1")] * 2


def test_a_killed_launcher_is_not_waited_for(launch):
    """The place of a killed launcher in the list makes the round invalid; the other launchers meet in the
    next round."""
    dead = launch("--nnodes", "2")
    waiting(launch, 1)
    dead.kill()
    dead.wait()
    assert [each["sum"] for each in told([launch("--nnodes", "2") for _ in range(2)])] == [[3.0]] * 2


def test_a_world_grows_and_shrinks(launch, tmp_path):
    """A machine that comes restarts all, which is no failure; a machine that dies leaves a smaller world."""
    done = tmp_path / "done"

    def machine():
        return launch("--nnodes", "1:3", *RANGE, arguments=[str(done)], code=TRAINING)
    first = machine()
    wait_line(first, "world 1 1 0 of 1")
    second = machine()
    for each in (first, second):
        wait_line(each, "world 2 2 0 of 2")
    second.kill()
    wait_line(first, "world 1 1 1 of 1")
    done.touch()
    status, _, err = finish(first)
    assert status == 0 and "the number of machines changes" in err, err


def test_a_range_waits_for_its_minimum(launch):
    status, _, err = finish(launch("--nnodes", "2:4", "--rdzv-conf", "join_timeout=0.1"))
    assert status == 1 and "rendezvous: 1 of 2 machines have joined in time" in err
    found = told([launch("--nnodes", "1:2", id="whole") for _ in range(2)])  # the maximum ends the wait
    assert [(each["sum"], each["WORLD_SIZE"]) for each in found] == [([3.0], "2")] * 2


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_a_signal_ends_the_wait(launch, number):
    launcher = launch("--nnodes", "2")
    waiting(launch, 1)
    launcher.send_signal(number)
    assert finish(launcher)[0] == 128 + number
    waiting(launch, 0)


def test_what_goes_wrong(launch):
    status, _, err = finish(launch("--nnodes", "2", "--rdzv-conf", "join_timeout=0.1"))
    assert status == 1 and "rendezvous: 1 of 2 machines have joined in time" in err and "Traceback" not in err
    waiting(launch, 0)
    first = launch("--nnodes", "3")
    waiting(launch, 1)
    status, _, err = finish(launch("--nnodes", "2"))
    assert status == 1 and "this launcher says --nnodes 2, and one that waits for others says 3" in err
    first.kill()
    status, _, err = finish(launch("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1"))
    assert status == 1 and "no daemon answers at 127.0.0.1:1 (--rdzv-endpoint)" in err


@pytest.mark.parametrize("flags, said", (
    (("--nnodes", "1:2", "--rdzv-backend", "static"), "--nnodes 1:2 needs --rdzv-backend c10d"),
    (("--nnodes", "0"), "from 1 to 4096"),
    (("--nnodes", "2:1"), "a range MIN:MAX"),
    (("--nnodes", "1:"), "a range MIN:MAX"),
    (("--monitor-interval", "0"), "more than 0"),
    (("--rdzv-endpoint", "host:x"), "HOST or HOST:PORT"),
    (("--rdzv-backend", "etcd"), "invalid choice"),
    (("--rdzv-conf", "a=1"), "last_call_timeout only"),
    (("--rdzv-conf", "timeout=soon"), "number of seconds"),
))
def test_flags_that_are_refused(capsys, flags, said):
    with pytest.raises(SystemExit):
        run.main([*flags, "script.py"])
    assert said in capsys.readouterr().err


def test_the_static_endpoint_is_the_masters(launch):
    found = told([launch("--nnodes", "2", "--node-rank", str(node), "--rdzv-backend", "static", "--rdzv-endpoint",
                         "the-box:4711", TELETENSOR_ADDRESS=launch.daemon.tcp) for node in (1, 0)])
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found} == {("the-box", "4711")}
    assert [each["sum"] for each in found] == [[3.0]] * 2 and issubclass(dist.DistStoreError, RuntimeError)
