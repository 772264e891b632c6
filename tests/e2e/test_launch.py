"""`teletensor launch`: the variables of the processes, and that no process remains however the launch
ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from support.clients import DEFAULT_SIGNALS, finish, wait_line
from support.daemon import binary, wait_until
from support.snippets import snippets

ROOT = Path(__file__).resolve().parents[2]

LAUNCHER = [sys.executable, "-m", "teletensor.distributed.run"]
WORLD = """
import json, os, sys
import teletensor as tt
import teletensor.distributed as dist
dist.init_process_group("gloo")
x = tt.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(x)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TELETENSOR_ADDRESS", "OMP_NUM_THREADS",
         "GRPC_ENABLE_FORK_SUPPORT")
told = {name: os.environ[name] for name in names if name in os.environ}
# One write, so that the lines of two processes do not mix.
sys.stdout.write(json.dumps({"sum": x.tolist(), "arguments": sys.argv[1:], **told}) + "\\n")
"""
# A process of a rank and one that it has started; both outlive SIGTERM and SIGINT if `ignore`.
SLEEPERS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.environ.get("IGNORE"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
sys.stdout.write("asleep\\n")
time.sleep(600)
"""


@pytest.fixture
def box(tmp_path):
    """box(arguments, code, **environment): starts a launch of a script that contains `code`. No process of
    it remains at the end of the test."""
    folder, mark = tempfile.mkdtemp(prefix="ttl-"), str(uuid.uuid4())
    started = []

    def launch(flags, code, arguments=(), launcher=LAUNCHER, **environment):
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(code)
        env = {k: v for k, v in os.environ.items() if not k.startswith("TELETENSOR_")}
        env |= {"XDG_RUNTIME_DIR": folder, "TELETENSORD": binary(), "TT_LAUNCH": mark, **environment}
        started.append(subprocess.Popen([*DEFAULT_SIGNALS, *launcher, *flags, str(script), *arguments], env=env,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True))
        return started[-1]

    launch.pids = lambda: _marked(mark)
    launch.folder = folder
    yield launch
    wait_until(lambda: not _marked(mark), what="all processes of the launch end")
    assert not [each for each in os.listdir(folder) if "launch" in each and each.endswith(".sock")] or \
        any(each.returncode == -signal.SIGKILL for each in started)
    shutil.rmtree(folder, ignore_errors=True)


def _marked(mark):
    """The processes whose environment contains the mark, without zombies."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def told(process, status=0):
    """The JSON lines of a launch that has ended with that status."""
    got, out, err = finish(process)
    assert got == status, err
    return sorted((json.loads(line) for line in out.splitlines() if line.startswith("{")),
                  key=lambda each: int(each["RANK"]))


def test_a_world_without_a_daemon_gets_one_of_its_own(box):
    first, second = told(box(["--nproc-per-node", "2"], WORLD, ["--lr", "-m"]))
    for rank, each in enumerate((first, second)):
        assert each["sum"] == [3.0, 3.0, 3.0] and each["arguments"] == ["--lr", "-m"]
        assert [each[name] for name in (
            "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
            "TORCHELASTIC_RESTART_COUNT")] == [str(rank), str(rank), "2", "2", "0", "127.0.0.1", "0"]
    for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TELETENSOR_ADDRESS"):
        assert first[name] == second[name]
    assert first["TELETENSOR_ADDRESS"].startswith(f"unix:{box.folder}/")
    assert ("OMP_NUM_THREADS" in first) == ("OMP_NUM_THREADS" in os.environ)
    # The launcher changes this setting for itself alone.
    assert first.get("GRPC_ENABLE_FORK_SUPPORT") == os.environ.get("GRPC_ENABLE_FORK_SUPPORT")
    assert not box.pids()


@pytest.mark.parametrize("title, printed", (
    ("train.py", ["[3.0, 3.0, 3.0]"] * 2), ("hooked.py", ["3 batches", "4 batches"]), ("captured.py", ["1.50"] * 2),
    ("elastic.py", ["[0, 1]"] * 2), ("come_back.py", ["[0, 1]"] * 2),
    ("tensor_parallel.py", ["[4, 4, 3, 4]"] * 2), ("sharded.py", ["[32, 64]", "[32, 64]", "[64, 64]", "[64, 64]"])))
def test_the_programs_of_the_page(box, title, printed):
    (program,) = (s.code for s in snippets(ROOT / "docs/distributed.md") if s.title == title)
    status, out, err = finish(box(["--nproc-per-node", "2"], program))
    lines = re.findall(r"\[.*?\]|\d batches|\d\.\d\d", out)  # the processes' texts and line ends may alternate
    assert status == 0 and sorted(lines) == printed, (out, err)


def test_a_daemon_that_is_configured_is_used(box, start_daemon):
    daemon = start_daemon()
    launcher = [sys.executable, "-m", "teletensor.cli", "launch"]
    found = told(box(["--nproc_per_node=2", "--master_port=4711"], WORLD, launcher=launcher,
                     TELETENSOR_ADDRESS=daemon.unix))
    assert [(each["TELETENSOR_ADDRESS"], each["MASTER_PORT"]) for each in found] == [(daemon.unix, "4711")] * 2


def test_modules_and_programs(box, tmp_path):
    (tmp_path / "trainer.py").write_text(
        "import os, sys\nsys.stdout.write(f'{os.environ[\"RANK\"]} {__name__} {len(sys.argv)}\\n')\n")
    status, out, err = finish(box(["--nproc-per-node=2", "-m", "trainer", "-m"], ""))
    assert status == 0 and sorted(out.splitlines()) == ["0 __main__ 3", "1 __main__ 3"], err
    status, out, err = finish(box(["--no-python", "/bin/echo", "hello"], ""))
    assert status == 0 and out.startswith("hello"), err
    status, out, err = finish(box(["--nproc-per-node=2", "--no-python", "/nowhere/program"], ""))
    assert status == 2 and "'/nowhere/program' is no program" in err


def test_run_path_and_variables_instead_of_flags(box, tmp_path):
    first, second = told(box(["--run-path", "--no-python"], WORLD, ["--lr", "1"], PET_NPROC_PER_NODE="2",
                             PET_MAX_RESTARTS="3"))
    assert first["arguments"] == ["--lr", "1"] and second["WORLD_SIZE"] == "2"


def test_as_many_processes_as_devices(box, start_daemon):
    daemon = start_daemon()
    first, *_ = told(box(["--nproc-per-node=auto"], WORLD, TELETENSOR_ADDRESS=daemon.unix))
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == str(os.cpu_count())
    status, _, err = finish(box(["--nproc-per-node=gpu"], WORLD, TELETENSOR_ADDRESS=daemon.unix))
    assert status == 2 and "--nproc-per-node gpu: the daemon has no GPU" in err
    status, _, err = finish(box(["--nproc-per-node=gpu"], WORLD))  # with a daemon of its own
    assert status == 2 and "the daemon has no GPU" in err


def test_every_flag_of_torchrun_is_accepted(box):
    """A flag without effect is named once, with the reason."""
    flags = ["--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--start-method=spawn",
             "--event-log-handler=console", "--logs_specs=mine", "--numa-binding=node", "--virtual-local-rank",
             "--local-addr=here", "--shutdown-timeout=3", "--signals-to-handle=SIGTERM,SIGUSR1"]
    process = box(["--nproc-per-node=2", *flags], WORLD)
    _, second = told(process)
    assert second["LOCAL_RANK"] == "1"
    status, _, err = finish(box(flags, "pass"))
    assert status == 0
    for name in ("--start-method", "--event-log-handler", "--logs-specs", "--numa-binding", "--virtual-local-rank"):
        assert err.count(f"{name} has no effect: ") == 1, err


def test_a_signal_of_the_program_choice_ends_the_launch(box):
    process = box(["--nproc-per-node=2", "--signals-to-handle=SIGUSR1"], SLEEPERS)
    for _ in range(2):
        wait_line(process, "asleep")
    process.send_signal(signal.SIGUSR1)
    assert finish(process)[0] == 128 + signal.SIGUSR1


def test_the_old_command_passes_the_local_rank(box):
    launcher = [sys.executable, "-m", "teletensor.distributed.launch"]
    code = "import sys; print(sys.argv[1:])"
    assert finish(box(["--nproc-per-node=1"], code, ["x"], launcher))[1] == "['--local-rank=0', 'x']\n"
    assert finish(box(["--use-env"], code, ["x"], launcher))[1] == "['x']\n"


@pytest.mark.parametrize("end, said", (
    ("sys.exit(3)", "exited with code 3"),
    ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
))
def test_a_rank_that_fails_ends_the_others(box, end, said):
    code = f"import os, signal, sys\nif os.environ['RANK'] == '1':\n    {end}\n" + SLEEPERS
    status, _, err = finish(box(["--nproc-per-node=3"], code))
    assert status == 1
    assert "rank 1 (local rank 1, pid " in err and said in err and "s after the start" in err
    assert "rank 0" not in err and "rank 2" not in err


RECORDED = """
import os, sys, time
from teletensor.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no such data")
    while not os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"].replace("/0/error", "/1/error")):
        time.sleep(0.01)
    raise RuntimeError("a consequence")

try:
    main()
finally:
    sys.stderr = open(os.devnull, "w")
    if os.environ["RANK"] == "1":
        time.sleep(600)  # its exception is the first one, but the launcher sees the end of rank 0 first
"""


def test_the_first_exception_that_is_recorded_is_shown(box):
    status, _, err = finish(box(["--nproc-per-node=2"], RECORDED))
    assert status == 1
    said = err.partition("the exception of rank 1:\n")[2]
    assert "in main" in said and "ValueError: no such data" in said and "a consequence" not in said


def test_an_error_handler_gets_the_exception():
    from teletensor.distributed.elastic.multiprocessing.errors import record
    seen = []

    class Handler:
        def initialize(self):
            seen.append("initialized")

        def record_exception(self, error):
            seen.append(str(error))

    def main():
        raise ValueError("no such data")

    with pytest.raises(ValueError, match="no such data"):
        record(main, Handler())()
    assert seen == ["initialized", "no such data"]


# Each rank writes a line to each of its streams.
WRITERS = """
import os, sys
print("out", os.environ["ROLE_NAME"], os.environ["ROLE_RANK"], os.environ["ROLE_WORLD_SIZE"], flush=True)
print("err", os.environ["RANK"], file=sys.stderr, flush=True)
"""


def test_redirected_output_goes_to_files(box, tmp_path):
    status, out, err = finish(box(["--nproc-per-node=2", "--redirects=0:3,1:1", f"--log-dir={tmp_path}/logs"], WRITERS))
    (folder,) = (tmp_path / "logs").iterdir()
    assert status == 0 and out == "" and f"the log files are in {folder}" in err
    assert "err 0" not in err and "err 1" in err
    logs = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*.log")}
    assert logs == {"attempt_0/0/stdout.log": "out default 0 2\n", "attempt_0/0/stderr.log": "err 0\n",
                    "attempt_0/1/stdout.log": "out default 1 2\n"}


def test_copied_output_names_the_rank(box, tmp_path):
    status, out, err = finish(box(["--nproc-per-node=2", "-t", "3", "--role=trainer", "--local-ranks-filter=1",
                                   f"--log-dir={tmp_path}/logs"], WRITERS))
    assert status == 0 and out == "[trainer1]:out trainer 1 2\n"
    assert "[trainer1]:err 1\n" in err and "err 0" not in err
    assert (tmp_path / "logs").rglob("0/stderr.log").__next__().read_text() == "err 0\n"


def test_copied_lines_have_a_template_and_filters(box, tmp_path):
    flags = ["--nproc-per-node=2", "--tee=3", "--log-dir=logs", "--role=trainer",
             "--duplicate-stdout-filters=loss,a,,b",
             "--log-line-prefix-template=<${role_name} ${rank}/${local_rank} ${unknown}> "]
    code = "import os; print('loss', os.environ['RANK']); print('a,b'); print('other')"
    status, out, err = finish(box(flags, code))
    assert status == 0, err
    lines = [f"<trainer {rank}/{rank} ${{unknown}}> {text}" for rank in range(2)
             for text in (f"loss {rank}", "a,b", "other")]
    assert sorted(out.splitlines()) == sorted(lines)
    (folder,) = (tmp_path / "logs").iterdir()
    selected = (folder / "attempt_0" / "filtered_stdout.log").read_text().splitlines()
    assert sorted(selected) == sorted(line for line in lines if "other" not in line)
    assert not (folder / "attempt_0" / "filtered_stderr.log").exists()


def test_a_launch_leaves_no_files_of_errors(box, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert finish(box(["--nproc-per-node=2"], RECORDED, TMPDIR=str(temporary)))[0] == 1
    assert list(temporary.glob("launch-*")) == []


def test_a_rank_that_ignores_sigterm_is_killed(box):
    timeout = "--shutdown-timeout=0.2"
    code = SLEEPERS.replace('sys.stdout.write("asleep\\n")', """
open("ready" + os.environ["RANK"], "w").close()
while os.environ["RANK"] == "1":
    if os.path.exists("ready0"): sys.exit(5)
    time.sleep(0.01)
""")
    status, _, err = finish(box(["--nproc-per-node=2", timeout], code, IGNORE="1"))
    assert status == 1 and "rank 1" in err and "code 5" in err


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
def test_a_signal_reaches_all(box, number):
    launched = box(["--nproc-per-node=2"], SLEEPERS)
    for _ in range(2):
        wait_line(launched, "asleep")
    launched.send_signal(number)
    assert finish(launched)[0] == 128 + number


def test_a_second_signal_does_not_wait(box):
    timeout = "--shutdown-timeout=1e6"
    code = SLEEPERS.replace("time.sleep(600)", """
signal.signal(signal.SIGTERM, lambda *_: sys.stdout.write("told\\n"))
sys.stdout.write("awake\\n")
while True: time.sleep(600)
""")
    launched = box(["--nproc-per-node=2", timeout], code)
    for _ in range(2):
        wait_line(launched, "awake")
    launched.send_signal(signal.SIGTERM)
    wait_line(launched, "told")
    launched.send_signal(signal.SIGINT)
    assert finish(launched)[0] == 128 + signal.SIGTERM


def test_a_thread_of_a_library_takes_no_signal_away(box):
    """The rank exits after the launcher has looked at it and before the launcher waits, and SIGCHLD goes to a
    thread that does not block it."""
    launcher = [sys.executable, "-c", """
import os, signal, sys, threading, time
from teletensor.distributed import run
threading.Thread(target=threading.Event().wait, daemon=True).start()
look = run._Process.status
def slow_look(process):
    found = look(process)
    if found is None:
        os.waitid(os.P_PID, process._popen.pid, os.WEXITED | os.WNOWAIT)
        while signal.SIGCHLD in signal.sigpending():
            time.sleep(0.001)
    return found
run._Process.status = slow_look
sys.exit(run.main())
"""]
    assert finish(box(["--nproc-per-node=1"], "", launcher=launcher))[0] == 0


def test_a_signal_at_the_end_of_an_attempt_prevents_the_next_one(box):
    code = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("awake"): time.sleep(0.01)
    sys.exit(5)
signal.signal(signal.SIGTERM, lambda *_: sys.stdout.write("told\\n"))
open("awake", "w").close()
while True: time.sleep(600)
"""
    launched = box(["--nproc-per-node=2", "--max-restarts=3"], code)
    wait_line(launched, "told")
    launched.send_signal(signal.SIGTERM)
    status, _, err = finish(launched)
    assert status == 128 + signal.SIGTERM and "started again" not in err


def test_no_process_outlives_a_launcher_that_is_killed(box):
    launched = box(["--nproc-per-node=2"], SLEEPERS.replace('subprocess.Popen(["sleep", "600"])', ""), IGNORE="1")
    for _ in range(2):
        wait_line(launched, "asleep")
    assert len(box.pids()) >= 4  # the launcher, two ranks and the daemon
    launched.kill()
    launched.wait()
    wait_until(lambda: not box.pids(), what="ranks and daemon end with the launcher")


def test_all_begin_again_after_a_failure(box):
    code = "import os, sys\nsys.stdout.write(os.environ['MASTER_PORT'] + '\\n')\n" \
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] != '2' and os.environ['RANK'] == '0': sys.exit(1)\n" + WORLD
    launched = box(["--nproc-per-node=2", "--max-restarts=2"], code)
    status, out, err = finish(launched)
    assert status == 0 and err.count("rank 0 (local rank 0") == 2 and "started again (2 of 2)" in err, err
    assert len({line for line in out.splitlines() if line.isdecimal()}) == 3
    last = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [each["sum"] for each in last] == [[3.0] * 3] * 2


def test_several_machines_are_several_launches_with_one_daemon(box, start_daemon):
    daemon = start_daemon()
    flags = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=head"]
    machines = [box([*flags, f"--node-rank={node}"], WORLD, TELETENSOR_ADDRESS=daemon.unix) for node in range(2)]
    found = [each for machine in machines for each in told(machine)]
    assert [(each["RANK"], each["LOCAL_RANK"], each["GROUP_RANK"]) for each in found] == [
        ("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]
    assert all(each["sum"] == [10.0] * 3 and each["WORLD_SIZE"] == "4" for each in found)
    assert len({(each["MASTER_PORT"], each["TORCHELASTIC_RUN_ID"]) for each in found}) == 1
    status, _, err = finish(box(flags, WORLD))
    assert status == 1 and "TELETENSOR_ADDRESS" in err


@pytest.mark.parametrize("flags, said", (
    (["--nproc-per-node=0"], "a number from 1 to 4096"),
    (["--nproc-per-node=gpus"], "not 'gpus'"),
    (["--nnodes=2", "--node-rank=2"], "--node-rank 2 is not one of --nnodes 2 machines"),
    (["--nnodes=1:4"], "--nnodes 1:4 needs --rdzv-backend c10d"),
    (["--max-restarts=-1"], "0 or more"),
    (["-m", "--no-python"], "exclude each other"),
    (["--master-port=65536"], "--master-port is a number from 1 to 65535"),
    (["--signals-to-handle=SIGKILL"], "--signals-to-handle has a name that is no signal or cannot end"),
    (["--signals-to-handle=SIGTERM,SIGNONE"], "no signal or cannot end a launch: SIGNONE"),
    (["--shutdown-timeout=-1"], "--shutdown-timeout is a number of seconds, not -1"),
    (["--start-method=thread"], "invalid choice: 'thread'"),
    (["--tee=4"], "--tee is 0, 1, 2 or 3"),
    (["--redirects=1:3"], "for each of the local ranks 0 to 0"),
    (["--local-ranks-filter=1"], "--local-ranks-filter is a list of local ranks 0 to 0, not '1'"),
))
def test_flags_that_make_no_sense(box, flags, said):
    status, _, err = finish(box(flags, ""))
    assert status == 2 and said in err
