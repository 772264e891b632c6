"""DataLoader workers as processes: programs without a guard, notebooks, tensors in datasets, death, Ctrl-C,
busy threads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients import client, finish, read_line, wait_line
from support.daemon import HANG, wait_until
from support.raw import Raw

# A dataset and its use, as in the cells of a notebook: a class of the notebook, a transform with a tensor in
# it, a lambda, no guard.
CELLS = ["""
import collections, dataclasses, os
import numpy as np
import teletensor as tt

Pair = collections.namedtuple("Pair", "x y")
mean = tt.tensor([1.0, 2.0])

@dataclasses.dataclass
class Normalize:
    mean: tt.Tensor
    def __call__(self, x):
        return tt.from_numpy(x) - self.mean

if True:
    class Points(tt.utils.data.Dataset):
        def __init__(self, transform):
            self.transform = transform
        def __len__(self):
            return 6
        def __getitem__(self, i):
            return Pair(self.transform(np.full(2, i, np.float32)), i)
""", """
loader = tt.utils.data.DataLoader(Points(Normalize(mean)), batch_size=4, num_workers=2)
for pair in loader:
    print(type(pair) is Pair, pair.x.tolist(), pair.y.tolist(), flush=True)
scaled = tt.utils.data.DataLoader(Points(lambda x: x * 2), batch_size=3, num_workers=1,
                                  collate_fn=lambda pairs: tt.stack([tt.tensor(p.x) for p in pairs]))
print([batch.tolist() for batch in scaled], flush=True)
"""]
PRINTED = """\
True [[-1.0, -2.0], [0.0, -1.0], [1.0, 0.0], [2.0, 1.0]] [0, 1, 2, 3]
True [[3.0, 2.0], [4.0, 3.0]] [4, 5]
[[[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]], [[6.0, 6.0], [8.0, 8.0], [10.0, 10.0]]]
"""
SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
sys.modules["__main__"] = shell.user_module
for cell in {cells!r}:
    shell.run_cell(cell).raise_error()
"""


def run(words, address, text=None, **environment):
    """A Python program with its default session at that address, run to its end."""
    done = subprocess.run([sys.executable, *words], input=text, capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, "TELETENSOR_ADDRESS": address, **environment})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", ["-c", "stdin", "script", "shell"])
def test_a_program_without_a_guard(shared_daemon, tmp_path, how):
    code = "".join(CELLS)
    if how == "shell":
        code = SHELL.format(cells=CELLS)
    if how == "script":
        (tmp_path / "train.py").write_text(code)
    words = {"-c": ["-c", code], "shell": ["-c", code], "stdin": ["-"], "script": [tmp_path / "train.py"]}[how]
    status, out, err = run(words, shared_daemon.unix, code if how == "stdin" else None)
    assert (status, out, err) == (0, PRINTED, "")


def test_without_cloudpickle(shared_daemon, tmp_path):
    """Objects that can be imported are sent by name; for all other objects the error says what to do."""
    (tmp_path / "cloudpickle.py").write_text("raise ImportError('hidden')")
    code = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
import teletensor as tt
from support import datasets

print([b["y"].tolist() for b in tt.utils.data.DataLoader(datasets.Squares(4), 2, num_workers=2)])

class Here(datasets.Squares):
    pass

for options in {{}}, {{"multiprocessing_context": "fork"}}:
    try:
        print([b["y"].tolist() for b in tt.utils.data.DataLoader(Here(4), 2, num_workers=1, **options)])
    except TypeError as error:
        print(error)
"""
    status, out, err = run(["-c", code], shared_daemon.unix, PYTHONPATH=str(tmp_path))
    lines = out.splitlines()
    assert status == 0 and lines[0] == lines[2] == "[[0, 1], [4, 9]]", (out, err)
    assert "cannot be sent to worker processes" in lines[1] and "Here" in lines[1]
    assert "pip install cloudpickle" in lines[1] and 'multiprocessing_context="fork"' in lines[1]


def loading(daemon, slow="", **options):
    """A program that iterates over samples of (pid of the worker, number), each of which runs `slow` first;
    prints the pids, then waits for a line of input in the middle of its iteration."""
    words = ", ".join(f"{name}={value!r}" for name, value in options.items())
    code = """
        import gc
        class Pids(tt.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                SLOW
                return os.getpid(), i
        batches = iter(tt.utils.data.DataLoader(Pids(), num_workers=2, WORDS))
        try:
            first = [next(batches)[0].item(), next(batches)[0].item()]
            print("pids", *first, flush=True)
            AFTER
        except BaseException as error:
            print(type(error).__name__, str(error), flush=True)
    """
    return code.replace("SLOW", slow or "pass").replace("WORDS", words)


def pids_of(process):
    return [int(pid) for pid in wait_line(process, "pids").split()[1:]]


def gone(pids):
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), what="the workers have ended")


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"multiprocessing_context": "fork"},
                                     {"multiprocessing_context": "spawn"}])
def test_workers_end_with_their_loader(shared_daemon, options):
    process = client(loading(shared_daemon, **options).replace("AFTER", """
            input()
            del batches
            print("dropped", flush=True)
            input()
    """), shared_daemon.unix, stdin=subprocess.PIPE)
    pids = pids_of(process)
    assert len(set(pids)) == 2
    process.stdin.write("\n")
    process.stdin.flush()
    wait_line(process, "dropped")
    gone(pids)
    status, out, err = finish(process)
    assert status == 0 and not err, (out, err)


@pytest.mark.parametrize("slow", ["", "i < 4 or time.sleep(600)"])
@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "fork"}])
def test_workers_end_with_their_program(shared_daemon, options, slow):
    process = client(loading(shared_daemon, slow, **options).replace("AFTER", "time.sleep(600)"),
                     shared_daemon.unix)
    pids = pids_of(process)
    process.kill()
    process.wait()
    gone(pids)
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "fork"}])
def test_control_c(shared_daemon, options):
    """Ctrl-C of the whole group of processes, as a terminal sends it, while the program waits for a
    batch."""
    process = client(loading(shared_daemon, "i < 4 or time.sleep(600)", **options).replace("AFTER", """
            for batch in batches:
                print("at", batch[1].item(), flush=True)
    """), shared_daemon.unix, start_new_session=True)
    pids = pids_of(process)
    wait_line(process, "at 2")
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = finish(process)
    assert status == 0 and out.splitlines()[-1].startswith("KeyboardInterrupt") and not err, (out, err)
    gone(pids)


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "fork"}])
@pytest.mark.parametrize("slow, text", [
    ("i < 5 or os.kill(os.getpid(), signal.SIGKILL)", "killed by signal SIGKILL (Killed)"),
    ("i < 5 or os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal SIGSEGV (Segmentation fault)"),
    ("i < 5 or os._exit(3)", "exit code 3"),
])
def test_a_worker_dies(shared_daemon, slow, text, options):
    """The program gets the error without a timeout, while the other worker sleeps."""
    process = client(loading(shared_daemon, slow + "; i == 4 and time.sleep(600)", **options).replace("AFTER", """
            list(batches)
    """), shared_daemon.unix)
    pids = pids_of(process)
    status, out, err = finish(process)
    assert status == 0 and f"RuntimeError DataLoader worker (pid(s) {pids[1]}) exited unexpectedly: {text}" in out
    gone(pids)


def test_an_error_takes_nothing_from_the_batches_before_it(shared_daemon, tmp_path):
    """Neither the death of a worker, nor an error of the sampler or of sending its indices, loses a batch
    that has arrived before; a batch is returned although the batch after it never arrives."""
    process = client(f"""
        import multiprocessing, pathlib
        dying = pathlib.Path({str(tmp_path / "dying")!r})
        class Numbers(tt.utils.data.Dataset):
            def __getitem__(self, i):
                while i == 3 and not dying.exists(): time.sleep(0.01)
                if i == 3: os._exit(3)
                if i == 4: time.sleep(600)
                return i
        def failing():
            yield from (5, 6, 7)
            raise ValueError("of the sampler")
        def unsent():
            yield from (5, 6, 7)
            yield threading.Lock()
        def numbers(sampler):
            return iter(tt.utils.data.DataLoader(Numbers(), sampler=sampler, batch_size=None, num_workers=1))
        def show(batches):
            try:
                for number in batches: print(number, end=" ")
            except Exception as error:
                print(type(error).__name__, str(error)[-30:])
        batches = numbers(range(5))
        assert [next(batches), next(batches)] == [0, 1]
        while not (batches._early or batches._epoch.ready()): time.sleep(0.01)
        dying.touch()
        while multiprocessing.active_children(): time.sleep(0.01)
        show(batches)
        show(batches)  # the error is raised again
        show(numbers(failing()))
        show(numbers(unsent()))
        batches = numbers((0, 1, 2, 4))
        print(next(batches), next(batches), next(batches))
    """, shared_daemon.unix)
    status, out, err = finish(process)
    assert (status, err) == (0, "")
    death, again, sampler, sending, slow = out.splitlines()
    assert death.startswith("2 RuntimeError") and death.endswith("exit code 3"), out
    assert again.startswith("RuntimeError") and again.endswith("exit code 3"), out
    assert sampler == "5 6 7 ValueError of the sampler", out
    assert sending.startswith("5 6 7 TypeError") and "pickle" in sending, out
    assert slow == "0 1 2", out


# OpenBLAS loses the threads of a product that runs while the process forks (docs/design/0018).
@pytest.mark.parametrize("method, product", [("forkserver", True), ("spawn", True), ("fork", False)])
def test_under_load(start_daemon, method, product):
    """Workers come and go while threads of the program compute, read, and open and close sessions."""
    daemon = start_daemon()
    process = client(f"""
        method, product = {method!r}, {product}
        class Rows(tt.utils.data.Dataset):
            def __len__(self):
                return 12
            def __getitem__(self, i):
                return np.full(50_000, i, np.float32), i
        over = threading.Event()
        failed = []
        def work(number):
            try:
                while not over.wait(0.01):
                    if number % 2:
                        with tt.connect(os.environ["TT_TEST_ADDRESS"]):
                            tt.ones(300_000).numpy()
                    else:
                        (tt.ones(1000) * number).sum().item()
                        if product:
                            np.dot(np.ones((200, 200)), np.ones((200, 200)))
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads: thread.start()
        for round in range(3):
            loader = tt.utils.data.DataLoader(Rows(), 4, num_workers=2, multiprocessing_context=method)
            got = [(x.sum().item(), y.tolist()) for x, y in loader]
            assert got == [(50_000.0 * (16 * i + 6), list(range(4 * i, 4 * i + 4))) for i in range(3)], got
        over.set()
        for thread in threads: thread.join()
        print("done", failed)
    """, daemon.unix)
    status, out, err = finish(process)
    assert status == 0 and "done []" in out, (out, err)


def test_sessions_of_workers(start_daemon):
    """A worker opens a session if its dataset needs tensors, on the program's daemon, and ends it."""
    daemon = start_daemon("--lease", "0")
    process = client("""
        class Numbers(tt.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return np.float32(i)
        class Tensors(Numbers):
            def __getitem__(self, i):
                return tt.full((2,), i)
        for kind in Numbers, Tensors:
            batches = iter(tt.utils.data.DataLoader(kind(), num_workers=2))
            print("read", next(batches).tolist(), next(batches).tolist(), flush=True)
            input()
            del batches
            print("dropped", flush=True)
            input()
    """, daemon.unix, stdin=subprocess.PIPE)

    def line():
        return read_line(process).strip()

    def go():
        process.stdin.write("\n")
        process.stdin.flush()

    with Raw(daemon.unix) as raw:
        for text, sessions in ("read [0.0] [1.0]", 1), ("read [[0, 0]] [[1, 1]]", 3):
            assert line() == text
            assert len(raw.sessions()) == sessions
            go()
            assert line() == "dropped"
            wait_until(lambda: len(raw.sessions()) == 1, what="the workers' sessions have ended")
            go()
    status, out, err = finish(process)
    assert status == 0 and not err, (out, err)
