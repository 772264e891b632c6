"""Clients that die, stall, fork or are interrupted: their memory is freed and nothing hangs."""

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.clients import client, finish, read_line, wait_line
from support.daemon import HANG, SANITIZED, wait_until
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "0")


def memory_returns(daemon):
    """Waits until the used bytes fall to zero, which only the client's death can cause."""
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not any(raw.used().values()) and not raw.sessions(),
                   what="memory and session of the dead client gone")


def works(daemon, commands):
    """Waits until the given number of further commands of the one session have run."""
    with Raw(daemon.unix) as raw:
        before = raw.sessions()[0].completed_upto
        wait_until(lambda: raw.sessions()[0].completed_upto >= before + commands, what="the client is at work")


def test_memory_of_a_killed_client_is_back(daemon):
    process = client("""
        x = tt.ones(1000, 1000)
        y = [x + i for i in range(10)]
        print("holds", y[-1].sum().item(), flush=True)
        time.sleep(600)
    """, daemon.unix)
    wait_line(process, "holds")
    with Raw(daemon.unix) as raw:
        assert sum(raw.used().values()) >= 11 * 4_000_000
    process.kill()
    process.wait()
    memory_returns(daemon)


def test_killed_in_the_middle_of_an_upload(daemon):
    process = client("""
        print("uploading", flush=True)
        big = np.zeros(200_000_000, np.uint8)
        while True:
            tt.tensor(big)
    """, daemon.unix)
    wait_line(process, "uploading")
    with Raw(daemon.unix) as raw:
        wait_until(lambda: sum(raw.used().values()) > 0, what="upload under way")
    process.kill()
    process.wait()
    memory_returns(daemon)


def test_killed_while_computing(daemon):
    process = client("""
        x = tt.randn(300, 300)
        print("computing", flush=True)
        while True:
            x = (x @ x).tanh()
    """, daemon.unix)
    wait_line(process, "computing")
    works(daemon, 50)
    process.kill()
    process.wait()
    memory_returns(daemon)


def test_a_client_that_stops_reading(daemon, tt):
    """A stopped process (SIGSTOP) does not make other clients wait."""
    process = client("""
        x = tt.ones(8192)
        print("reading", flush=True)
        while True:
            (x + 1).numpy()
    """, daemon.unix)
    wait_line(process, "reading")
    works(daemon, 50)
    process.send_signal(signal.SIGSTOP)
    try:
        with tt.connect(daemon.unix) as s:
            for i in range(100):
                assert (tt.ones(4) * i).sum().item() == 4 * i
            s.close()
    finally:
        process.kill()
        process.wait()
    memory_returns(daemon)


# Work that Ctrl-C interrupts. Each kind would take minutes.
INTERRUPTED = {
    "waiting for a value": "for i in range(3000): y = (y @ x) / 100\n    y.sum().item()",
    "issuing": "while True: y = (y @ x) / 100",
    "issuing and reading": "while True: y = (y @ x) / 100; y[0, 0].item()",
    "downloading": "while True: (y + 1).numpy()",
    "uploading": "while True: tt.tensor(host)",
}


@pytest.mark.parametrize("kind", INTERRUPTED)
@pytest.mark.parametrize("ran", [0, 5])
def test_interrupt(daemon, kind, ran):
    """Ctrl-C raises KeyboardInterrupt promptly, cancel() drops the rest, the session is still good."""
    process = client(f"""
x = tt.randn(1000, 1000)
kept = (x @ x).sum()
host, want = np.zeros(1 << 20), kept.item()
y = x
try:
    print("busy", flush=True)
    {INTERRUPTED[kind]}
    print("finished too early", flush=True)
except KeyboardInterrupt:
    print("interrupted", s.cancel(), flush=True)
x += 1
print("after", (tt.ones(3) + 1).sum().item(), kept.item() == want, flush=True)
""", daemon.unix)
    wait_line(process, "busy")
    works(daemon, ran)
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert "interrupted" in out and "after 6.0 True" in out, (out, err)
    assert status == 0 and not err.strip(), err
    memory_returns(daemon)


def test_interrupt_twice_and_go_on(daemon):
    """A Ctrl-C may come while what was dropped is being settled; each raises, none is lost later."""
    process = client("""
        x = tt.randn(1000, 1000)
        (x @ x).sum().item()
        print("busy", flush=True)
        count = 0
        while count < 6:
            try:
                y = x
                while True: y = (y @ x) / 100
            except KeyboardInterrupt:
                count += 1
                print("interrupted", count, s.cancel(), flush=True)
        print("after", (tt.ones(3) + 1).sum().item(), flush=True)
    """, daemon.unix)
    wait_line(process, "busy")
    lines = []

    def read():
        while line := read_line(process):
            lines.append(line)
    reader = threading.Thread(target=read)
    reader.start()
    number = seen = 0
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        number += 1
        if number % 3:  # otherwise the next signal comes at once
            wait_until(lambda seen=seen: len(lines) > seen or process.poll() is not None, what="it is told")
            seen = len(lines)
    reader.join()
    _, _, err = finish(process)
    assert any(line.startswith("interrupted 6") for line in lines) or "KeyboardInterrupt" in err, (lines, err)
    memory_returns(daemon)


def test_an_uncaught_interrupt_ends_the_program(daemon):
    """The exit does not wait for queued work."""
    process = client("""
        x = tt.randn(1000, 1000)
        (x @ x).sum().item()
        print("busy", flush=True)
        y = x
        while True: y = (y @ x) / 100
    """, daemon.unix)
    wait_line(process, "busy")
    works(daemon, 5)
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert "KeyboardInterrupt" in err and "teletensor" not in err.splitlines()[-1], err
    memory_returns(daemon)


def test_a_handler_of_ones_own_stays(daemon):
    """A program that handles SIGINT itself, without an exception, loses nothing."""
    process = client("""
        import signal
        asked = []
        signal.signal(signal.SIGINT, lambda *_: asked.append(1))
        x = tt.eye(200)
        print("busy", flush=True)
        while not asked: x = x @ x
        print("stopped", x.sum().item(), flush=True)
    """, daemon.unix)
    wait_line(process, "busy")
    works(daemon, 5)
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert status == 0 and "stopped 200." in out, (out, err)


def test_fork(daemon):
    """The child's tensors raise one clear error and its exit does nothing; the parent continues."""
    process = client("""
        x = tt.ones(5)
        x.sum().item()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                (x + 1).sum().item()
            except RuntimeError as e:
                code = 0 if "forkserver" in str(e) else 2
            for action in (lambda: tt.connect(os.environ["TT_TEST_ADDRESS"]), tt.connect):
                try:
                    action()
                    code = 3
                except RuntimeError as e:
                    code = code or (0 if "forkserver" in str(e) else 4)
            sys.stdout.flush()
            sys.exit(code)  # finalizers of the child run
        _, status = os.waitpid(pid, 0)
        print("child", os.waitstatus_to_exitcode(status))
        print("parent", (x + 1).sum().item())
    """, daemon.unix)
    status, out, err = finish(process)
    assert status == 0 and "child 0" in out and "parent 10.0" in out, (out, err)


def test_a_process_that_has_only_imported_may_fork(start_daemon):
    """Parent, children and a grandchild are separate clients, and none of their sessions remains."""
    daemon = start_daemon()
    program = """
import multiprocessing, os, sys
import teletensor as tt
import teletensor._sessions.session as of_this_process

def work(number):
    if number == 3:
        context = multiprocessing.get_context("fork")
        inner = context.Process(target=work, args=(4,))
        inner.start()
        inner.join()
        return
    tt.connect(sys.argv[1])
    x = tt.full((1000,), float(number)).requires_grad_()
    (x * x).sum().backward()
    shown = (number, x.grad.sum().item(), x.detach().numpy().sum(), of_this_process._INSTANCE.hex())
    os.write(1, (" ".join(map(str, shown)) + "\\n").encode())  # whole, whatever the other processes write

context = multiprocessing.get_context("fork")
processes = [context.Process(target=work, args=(i,)) for i in (1, 2, 3)]
for process in processes: process.start()
for process in processes: process.join()
child = os.fork()
if child == 0:
    work(5)
    sys.exit(0)
os.waitpid(child, 0)
work(0)
"""
    done = subprocess.run([sys.executable, "-c", program, daemon.unix], capture_output=True, text=True, timeout=HANG)
    # The client may report there that it waits for a busy daemon.
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr
    found = sorted(line.split() for line in done.stdout.splitlines())
    assert [(int(n), float(g), float(s)) for n, g, s, _ in found] == [(n, n * 2000.0, n * 1000.0)
                                                                     for n in (0, 1, 2, 4, 5)]
    assert len({instance for *_, instance in found}) == 5
    with Raw(daemon.unix) as raw:
        assert not raw.sessions()


def test_fork_and_a_new_connection_in_the_child(daemon):
    process = client("""
        x = tt.ones(5)
        x.sum().item()
        import multiprocessing
        def work(address, q):
            import subprocess
            code = ("import os, teletensor as tt; s = tt.connect(os.environ['TT_TEST_ADDRESS']);"
                    "s.__enter__(); print(tt.ones(3).sum().item())")
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            q.put(done.stdout)
        q = multiprocessing.get_context("fork").Queue()
        p = multiprocessing.get_context("fork").Process(target=work, args=("", q))
        p.start()
        print("grandchild", q.get())
        p.join()
        print("parent", p.exitcode, (x + 1).sum().item())
    """, daemon.unix)
    status, out, err = finish(process)
    assert status == 0 and "grandchild 3.0" in out and "parent 0 10.0" in out, (out, err)


def test_collection_inside_an_append(daemon, tt):
    """Finalizers run in the middle of calls: tensors in cycles, collected at every allocation."""
    class Loop:
        def __init__(self, t):
            self.t, self.me = t, self

    with tt.connect(daemon.unix):
        gc.set_threshold(1)
        try:
            x = tt.ones(4)
            total = tt.zeros(4)
            for i in range(2000):
                Loop(x + i)
                total = total + Loop(x * 2).t
            assert total.tolist() == [4000.0] * 4
        finally:
            gc.set_threshold(700, 10, 10)
        gc.collect()


def test_exit_without_close(daemon):
    process = client("""
        keep = [tt.ones(100, 100) + i for i in range(50)]
        print("bye", flush=True)
    """, daemon.unix)
    status, out, err = finish(process)
    assert status == 0 and not err.strip(), (out, err)
    memory_returns(daemon)


def test_exception_in_another_thread_at_exit(daemon):
    process = client("""
        begun = threading.Event()
        def work():
            x = tt.ones(10)
            while True:
                x = x + 1
                if x.sum().item() > 1000:
                    begun.set()
        with s:
            threading.Thread(target=work, daemon=True).start()
            begun.wait()
        print("leaving", flush=True)
    """, daemon.unix)
    status, out, _ = finish(process)
    assert status == 0 and "leaving" in out
    memory_returns(daemon)


@pytest.mark.parametrize("work", [
    "w.register_hook(spin); w.sum().backward()",
    "(w * w).grad_fn.register_prehook(spin); y = w * w; y.grad_fn.register_prehook(spin); y.sum().backward()",
    "y = w * w; y.grad_fn.register_hook(spin); y.sum().backward()",
    "w.register_post_accumulate_grad_hook(spin); w.sum().backward()",
    "F.apply(w).sum().backward()",
    "with tt.autograd.graph.saved_tensors_hooks(spin, spin): (w * w).sum()",
    "tt.utils.checkpoint.checkpoint(again, w, use_reentrant=False).sum().backward()",
], ids=["hook", "prehook", "node", "accumulated", "function", "saved", "checkpoint"])
def test_python_code_that_we_call_at_exit(daemon, work):
    """When the interpreter ends, a daemon thread is in Python code that the client has called; the end
    unwinds it."""
    process = client(f"""
        entered = threading.Event()
        def spin(*_):
            entered.set()
            while True:
                pass
        calls = []
        def again(x):
            calls.append(0)
            if len(calls) > 1:
                spin()
            return x.exp()
        class F(tt.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                spin()
        def act():
            with s.as_current():
                w = tt.ones(3, requires_grad=True)
                {work}
        threading.Thread(target=act, daemon=True).start()
        assert entered.wait(60)
        print("leaving", flush=True)
    """, daemon.unix)
    status, out, err = finish(process)
    assert status == 0 and "leaving" in out, (status, err)


def test_daemon_killed(start_daemon, tt):
    """SessionLostError is raised at the next read, and again for every tensor."""
    from support.daemon import Daemon
    daemon = Daemon()
    try:
        with tt.connect(daemon.unix):
            x = tt.ones(3)
            assert x.sum().item() == 3
            daemon.process.kill()
            daemon.process.wait()
            with pytest.raises(tt.SessionLostError):
                (x + 1).sum().item()
            with pytest.raises(tt.SessionLostError):
                x.numpy()
            with pytest.raises(RuntimeError):  # the error is a RuntimeError, as in PyTorch
                x.numpy()
    finally:
        daemon.kill()


def test_many_sessions_come_and_go(daemon, tt):
    before = len(os.listdir("/proc/self/fd"))
    for i in range(30):
        with tt.connect(daemon.unix) as s:
            assert (tt.ones(10) * i).sum().item() == 10 * i
            s.close()
    memory_returns(daemon)
    assert len(os.listdir("/proc/self/fd")) < before + 30


@pytest.mark.skipif(SANITIZED, reason="a sanitizer keeps freed memory for a while")
def test_daemon_memory_after_a_crowd(daemon, tt):
    """The daemon's own memory does not grow: after 40 sessions with 8 MiB each it is about the same."""
    def size():
        with open(f"/proc/{daemon.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))  # KiB
    def crowd(n):
        for _ in range(n):
            with tt.connect(daemon.unix) as s:
                x = tt.tensor(np.ones(1 << 21, np.float32))
                assert (x + x).sum().item() == 2 << 21
                s.close()
        memory_returns(daemon)
    crowd(5)
    after_few = size()
    crowd(35)
    assert size() - after_few < 64 << 10, (after_few, size())
