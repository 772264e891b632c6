"""Signals whose handlers raise, such as Ctrl-C: wherever they arrive, nothing is lost and no mode remains
set. Commands issued before Ctrl-C still run; a second one, or cancel(), drops them."""

import contextlib
import gc
import os
import random
import re
import signal
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from support.clients import client, finish, wait_asleep, wait_line
from support.daemon import wait_until
from support.trip import Trip, nothing

# Interrupted places are chosen at random for each operation, transport and address; `make chaos` runs all of
# them.
PLACES = int(os.environ.get("TELETENSOR_INTERRUPT_PLACES", "8"))


class Quit(Exception):
    """The exception that the handler of SIGUSR1 raises."""


@pytest.fixture
def quits(monkeypatch):
    # pytest's hook would keep an exception of __del__, with its frame and so the session, until the end of
    # the test.
    monkeypatch.setattr(sys, "unraisablehook", nothing)

    def handler(number, frame):
        raise Quit

    before = signal.signal(signal.SIGUSR1, handler)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture(params=["unix", "tcp"])
def address(request, start_daemon, monkeypatch):
    daemon = start_daemon("--restart", "60")
    if request.param == "tcp":
        monkeypatch.setenv("TELETENSOR_TOKEN_FILE", daemon.token_file)
    return getattr(daemon, request.param)


@pytest.fixture
def tt(each_transport, address):
    import teletensor

    with teletensor.connect(address):
        yield teletensor


# ---------------------------------------------------------------- everywhere


def descriptors():
    """The open descriptors of this process, each with what it refers to."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


class Operations:
    """The interrupted operations, each with a function that cleans up if no signal arrives."""

    def __init__(self, tt, address, folder):
        self.tt, self.address, self.folder = tt, address, folder
        self.session = tt.current_session()
        self.small, self.large = np.ones(100_000, np.float32), np.ones(2_000_000, np.float32)
        self.w = tt.ones(3)
        self.x, self.y = tt.ones(100_000), tt.ones(2_000_000)
        self.model = tt.nn.Linear(3, 3)
        self.optimizer = tt.optim.Adam(self.model.parameters())
        self.opened = []
        # The sessions of earlier tests may end meanwhile, so their descriptors and threads are not counted.
        self.others_descriptors, self.others_threads = descriptors(), set(threading.enumerate())

    def upload(self):
        self.tt.tensor(self.small)

    def upload_by_shared_memory(self):
        self.tt.tensor(self.large)

    def upload_of_shared_memory(self):
        array = self.tt.shared_empty(1_000_000)
        self.tt.tensor(array)

    def download(self):
        (self.x + 1).numpy()

    def download_by_shared_memory(self):
        (self.y + 1).numpy()

    def backward_stream(self):
        loss = (self.model(self.w) ** 2).mean()
        for _ in self.tt.autograd.backward_stream(loss, self.model):
            pass

    def _step(self, a):
        self.optimizer.zero_grad()
        loss = (self.model(a) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def trace(self):
        self.tt.jit.trace(lambda a: (a * 2).tanh(), (self.w,))

    def compile(self):
        step = self.tt.compile(self._step)
        for _ in range(3):
            step(self.w)

    def script(self):
        self.tt.jit.script(branches)(self.w)

    def modes(self):
        tt, w = self.tt, self.w
        with tt.no_grad(), tt.autocast("cpu"), tt.device("cpu"), tt.enable_grad():
            w * 2
        with tt.inference_mode(), tt.set_grad_enabled(True), tt.random.fork_rng():
            w * 2
        with tt.autograd.detect_anomaly(), tt.autograd.graph.save_on_cpu():
            w * 2
        with tt.nn.attention.sdpa_kernel(tt.nn.attention.SDPBackend.MATH), \
                tt.backends.cudnn.flags(enabled=False), self.session.as_current():
            w * 2

    def transforms(self):
        tt, w = self.tt, self.w
        tt.vmap(lambda a: a * 2)(w)
        tt.func.jvp(lambda a: a.sin(), (w,), (w,))
        tt.func.grad(lambda a: (a * a).sum())(w)
        tt.func.functional_call(self.model, {"bias": w}, (w,))
        with tt.autograd.forward_ad.dual_level():
            tt.autograd.forward_ad.make_dual(w, w)

    def profile(self):
        with self.session.profile():
            self.w * 2

    def connect(self):
        self.opened.append(self.tt.connect(self.address))

    def connect_and_close(self):
        with self.tt.connect(self.address):
            self.tt.ones(3)

    def save(self):
        self.tt.save({"w": self.w, "x": self.x}, self.folder / "saved.st")

    def keep(self):
        self.session.keep("kept", {"w": self.w, "x": self.x})

    def publish(self):
        self.session.publish("shown", self.w)

    def snapshot(self):
        self.session.snapshot()

    def take_back(self):
        for session in self.opened:
            session.close()
        self.opened.clear()
        self.session.keep("kept", None)
        if "shown" in self.session._published:
            self.session.publish("shown", None)
        self.model.zero_grad()
        for file in self.folder.iterdir():
            file.unlink()

    def state(self):
        """The state that must be the same after an interrupt."""
        from teletensor import _core
        from teletensor._script import capturing as _capturing
        from teletensor._sessions import session as _session
        from teletensor._tensors import convert as _convert
        from teletensor.autograd import forward_ad, graph
        from teletensor.nn import _sdpa_backends

        if self.session._shared is not None:
            self.session._shared._ways.clear()  # shared memory for the next upload
        threads = sorted(t.name for t in set(threading.enumerate()) - self.others_threads
                         if t.name != "teletensor-worker")
        return {
            "memory": self.session.memory()[0]["used"],
            "sessions": len(self.session._admin().sessions()[0]),
            "descriptors": len(descriptors() - self.others_descriptors),
            "threads": [name for name in threads if not name.startswith("Dummy")],
            "modes": (_core.grad_mode(), _core.inference_mode(), _core.depth(),
                      _core.autocast_state(0), _core.autocast_state(1), _core.default_dtype(),
                      str(_convert._default_device[0]), len(_convert._outer_devices),
                      _capturing.current, len(_session._sessions()), len(forward_ad._levels),
                      len(graph._disabled), _core.saved_hooks(self.session._core),
                      self.tt.autograd.is_anomaly_enabled() if hasattr(
                          self.tt.autograd, "is_anomaly_enabled") else False,
                      _sdpa_backends.allowed_backends(), self.tt.backends.cudnn.enabled),
            "values": (self.w.tolist(), self.x.sum().item(), self.session.kept().keys()),
        }


def branches(a):
    if a.sum() > 0:
        return a * 2
    return a * 3


NAMES = [name for name in vars(Operations) if not name.startswith("_") and name not in (
    "take_back", "state")]


def settled(operations):
    """The state once it no longer changes: the daemon frees the memory of the last work a moment later."""
    states = []
    while len(states) < 20 or states.count(states[-1]) < 20:
        gc.collect()
        time.sleep(0.01)
        states = [*states[-19:], operations.state()]
    return states[-1]


def sweep(tt, address, folder, name, quits, most):
    trip, operations = Trip(), Operations(tt, address, folder)
    work = getattr(operations, name)
    for _ in range(3):  # caches fill, threads start
        work()
        operations.take_back()
    places = trip(work)
    operations.take_back()
    before = settled(operations)
    chosen = range(1, places + 1)
    if places > most:
        chosen = sorted(random.Random(f"{name} {operations.session.transport} {address[:4]}").sample(chosen, most))
    interrupted = 0
    for place in chosen:
        try:
            trip(work, place, quits if place % 2 else signal.SIGINT)
            nothing()
        except (Quit, KeyboardInterrupt):
            interrupted += 1
        operations.take_back()
        now = operations.state()
        for _ in range(2000):  # threads of the client and of the daemon clean up
            if now == before:
                break
            gc.collect()
            time.sleep(0.01)
            now = operations.state()
        differences = {key: (before[key], now[key]) for key in before if before[key] != now[key]}
        assert not differences, f"{name}, place {place} of {places}: {differences}"
    assert interrupted > 0


@pytest.mark.parametrize("name", NAMES)
def test_sweep(tt, address, tmp_path, name, quits):
    sweep(tt, address, tmp_path, name, quits, PLACES)


# ---------------------------------------------------------------- uploads and downloads


@pytest.mark.parametrize("size", [10_000, 500_000, 3_000_000])
def test_an_exception_behind_an_upload_ends_nothing(tt, quits, monkeypatch, size):
    """The signal arrives when the bytes already belong to a tensor: they remain its bytes."""
    from teletensor import _core

    session, data = tt.current_session(), np.ones(size, np.float32)
    w = tt.ones(3)
    session.keep("w", w)

    def raising(method):
        def call(*arguments):
            made = method(*arguments)
            signal.raise_signal(quits)
            return made
        return call

    tt.tensor(data)
    before = session.memory()[0]["used"]
    for owner, name in ((_core.Channel, "upload"), (_core.Session, "uploaded"), (_core.Mapping, "send")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(getattr(owner, name)))
            for _ in range(3):
                with contextlib.suppress(Quit):
                    tt.tensor(data)
                assert w.sum().item() == 3
    wait_until(lambda: session.memory()[0]["used"] <= before, 30, "the memory is given back")
    assert not session.taken_over and list(session.kept()) == ["w"]


def test_an_exception_before_an_upload_is_bound_gives_it_back(tt, monkeypatch):
    """All bytes have arrived, and the command that makes them a tensor is not issued any more."""
    from teletensor import _core

    session, data = tt.current_session(), np.ones(300_000, np.float32)
    if session.transport == "native":
        pytest.skip("one native call sends the bytes and binds them")
    before, numbers = session.memory()[0]["used"], []

    def not_bound(core, number, *arguments):
        numbers.append(number)
        raise Quit

    monkeypatch.setattr(_core.Session, "uploaded", not_bound)
    for _ in range(3):
        with pytest.raises(Quit):
            tt.tensor(data)
    assert len(numbers) == 3
    wait_until(lambda: session.memory()[0]["used"] <= before, 30, "the memory is given back")


def test_downloads_that_an_exception_ends_are_given_back(tt, quits):
    session = tt.current_session()
    big = tt.arange(1_500_000)
    big.sum().item()
    before = session.memory()[0]["used"]
    choose = random.Random(4)
    for _ in range(40):
        timer = threading.Timer(choose.uniform(0.001, 0.02), os.kill, (os.getpid(), quits))
        with contextlib.suppress(Quit):
            timer.start()  # it may come while this waits for its thread
            while True:
                (big + 1).numpy()
    gc.collect()
    wait_until(lambda: session.memory()[0]["used"] <= before, 30, "the memory is given back")
    assert big.sum().item() == 1_500_000 * 1_499_999 // 2


def test_a_stream_of_gradients_that_is_not_read_is_given_back(tt):
    session = tt.current_session()
    w = tt.ones(300_000, requires_grad=True)
    (w * 2).sum().backward()
    w.grad = None
    before = session.memory()[0]["used"]
    for read in (True, False):
        stream = tt.autograd.backward_stream((w * 2).sum(), [w])
        if read:
            assert [g.sum().item() for _, g in stream] == [600_000]
        del stream
        w.grad = None
        gc.collect()
        wait_until(lambda: session.memory()[0]["used"] <= before, 30, "the memory is given back")


# ---------------------------------------------------------------- Ctrl-C


class Training:
    """Steps of a small model, statement by statement."""

    def __init__(self, tt, compiled):
        tt.manual_seed(7)
        self.tt = tt
        self.first, self.second = tt.nn.Linear(40, 300), tt.nn.Linear(300, 300)
        self.parameters = [*self.first.parameters(), *self.second.parameters()]
        self.optimizer = tt.optim.Adam(self.parameters, lr=0.01)
        self.done = 0  # statements
        self.compiled = None
        if compiled:
            self.compiled = tt.compile(self.step)
            for _ in range(3):
                self.compiled(tt.rand(16, 40))

    def step(self, x):
        functional = self.tt.nn.functional
        h = functional.dropout(self.first(x).tanh(), 0.3)
        self.count()
        loss = (self.second(h) ** 2).mean()
        self.count()
        self.optimizer.zero_grad()
        self.count()
        loss.backward()
        self.count()
        self.optimizer.step()
        self.count()

    def count(self):
        """One more statement has run; a captured step is one statement, whatever is in it."""
        if self.compiled is None:
            self.done += 1

    def run(self, steps, after=lambda: None):
        for _ in range(steps):
            x = self.tt.rand(16, 40)
            self.done += 1
            if self.compiled is None:
                self.step(x)
            else:
                self.compiled(x)
                self.done += 1
            after()

    def state(self):
        """Returns the weights, the optimizer's state with its count of steps, and the state of the random
        generator."""
        return ([p.tolist() for p in self.parameters],
                [{key: value.tolist() if isinstance(value, self.tt.Tensor) else value
                  for key, value in state.items()}
                 for state in self.optimizer.state_dict()["state"].values()],
                self.tt.get_rng_state())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_what_was_issued_before_an_interrupt_has_run(tt, compiled):
    """A training that stops at Ctrl-C has the state of an uninterrupted training that stops at the same
    statement."""
    steps, trip = 12, Trip()
    reference = Training(tt, compiled)
    states = {reference.done: reference.state()}

    class Stepping(Training):
        """Records the state after every statement."""

        @property
        def done(self):
            return self._done

        @done.setter
        def done(self, value):
            self._done = value
            if noting:
                states[value] = self.state()

    noting = False
    reference = Stepping(tt, compiled)
    noting = not compiled
    states[reference.done] = reference.state()
    if compiled:
        def note():
            states[reference.done] = reference.state()
        reference.run(steps, note)
    else:
        reference.run(steps)
    noting = False
    training = Training(tt, compiled)
    places = trip(lambda: training.run(steps))
    assert training.state() == states[training.done]
    choose = random.Random(3)
    for place in sorted(choose.sample(range(1, places), 50)):
        training = Training(tt, compiled)
        with pytest.raises(KeyboardInterrupt):
            trip(lambda: training.run(steps), place, signal.SIGINT)  # noqa: B023
            nothing()
        here = training.state()
        around = [states[n] for n in range(training.done - 1, training.done + 2) if n in states]
        assert any(_same(here, state, compiled) for state in around), f"place {place} of {places}"


def _same(here, there, compiled):
    # A compiled step and its number arguments are two statements.
    return here[:2] == there[:2] if compiled else here == there


LOOP = """
    x = tt.randn(600, 600)
    (x @ x).sum().item()
    y, count, total = x, 0, tt.zeros(2).sum()  # the client does not know the sum
    print("busy", flush=True)
    try:
        while True:
            y = (y @ x) / 30
            total += 1
            count += 1
    except KeyboardInterrupt as error:
        print("interrupted", error, flush=True)
"""


def queue_fills(address):
    """Waits until a session has seconds of work queued."""
    import teletensor

    with teletensor.connect(address) as other:
        def long():
            rows, _ = other._admin().sessions()
            return any(row["wait_seconds"] > 3 for row in rows)
        wait_until(long, 60, "work is queued")


@pytest.mark.parametrize("how", ["again", "cancel", "exit"])
def test_a_long_queue_is_told_and_can_be_dropped(each_transport, address, how):
    then = {
        "again": """
            said = ""
            while "dropped" not in said:  # the signal may come before the wait
                try:
                    print("reading", flush=True)
                    total.item()
                except KeyboardInterrupt as error:
                    said = str(error)
                    print("again", said, flush=True)
        """,
        "cancel": "print('cancelled', s.cancel(), flush=True)",
        "exit": "raise KeyboardInterrupt",
    }[how]
    process = client(textwrap.dedent(LOOP) + textwrap.dedent(then) + textwrap.dedent("""
        print("after", (tt.ones(3) + 1).sum().item(), total.item() < count, s.cancel(), flush=True)
    """), address)
    wait_line(process, "busy")
    queue_fills(address)
    process.send_signal(signal.SIGINT)
    line = wait_line(process, "interrupted")
    assert re.search(r"about [\d,]+ commands, \d+ s; session\.cancel\(\) drops them", line), line
    if how == "again":
        while "dropped" not in line:
            wait_line(process, "reading")
            # On a busy machine this thread may be faster than the client each time.
            wait_asleep(process)
            process.send_signal(signal.SIGINT)
            line = wait_line(process, "again")
    elif how == "cancel":
        line = wait_line(process, "cancelled")
    if how != "exit":
        assert re.search(r"dropped [\d,]+ commands, from <string>:\d+ in <module> on", line), line
    status, out, err = finish(process, 60)
    if how == "exit":
        assert status != 0 and "KeyboardInterrupt" in err, err
    else:
        assert status == 0 and "after 6.0 True nothing was queued" in out, (out, err)


def test_a_wait_returns_at_once_and_the_queue_runs(each_transport, address):
    """Later reads give the values that an uninterrupted program would have read."""
    process = client("""
        x = tt.eye(400)
        y, total = x, tt.zeros(2).sum()  # the client does not know the sum
        for _ in range(300):
            y = y @ x
            total += 1
        try:
            print("reading", flush=True)
            total.item()
            print("was quicker", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print("total", total.item(), y.sum().item(), flush=True)
    """, address)
    wait_line(process, "reading")
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process, 60)
    assert status == 0 and "total 300.0 400.0" in out, (out, err)


def test_cancel_in_the_middle(tt):
    """The dropped commands did not happen: tensors keep their last values."""
    x = tt.randn(500, 500)
    total, y = tt.zeros(()), x
    tt.synchronize()
    for _ in range(400):
        y = (y @ x) / 30
        total += 1
    dropped = tt.current_session().cancel()
    assert 0 <= total.item() <= 400
    assert bool(dropped.commands) == (total.item() < 400)
    assert str(dropped) == repr(dropped)
    if dropped.commands:
        assert f"{dropped.commands:,}" in str(dropped) and "test_interrupts.py" in dropped.line
        with pytest.raises(tt.InterruptedOpError):
            y.sum().item()
    assert tt.current_session().cancel() == (0, "") and (tt.ones(3) + 1).sum().item() == 6


def test_an_optimizer_step_is_whole(tt, monkeypatch):
    """Ctrl-C in a step is raised at its end; a second one at once."""
    from teletensor import _core

    parameters = [tt.nn.Parameter(tt.ones(3)) for _ in range(4)]
    groups = [{"params": [p]} for p in parameters]
    optimizer = tt.optim.SGD(groups, lr=1.0)
    update = type(optimizer)._update
    for times in (1, 2):
        for p in parameters:
            p.data.fill_(1.0)
            p.grad = tt.ones(3)
        calls = []

        def interrupted(self, group):
            calls.append(group)  # noqa: B023
            if len(calls) <= times:  # noqa: B023
                signal.raise_signal(signal.SIGINT)
            update(self, group)

        monkeypatch.setattr(type(optimizer), "_update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        assert _core.grad_mode() and not _core.postpone_interrupt()
        values = [p.sum().item() for p in parameters]
        assert values == ([0, 0, 0, 0] if times == 1 else [0, 3, 3, 3])


@pytest.mark.parametrize("opened", ["before", "inside"])
def test_asyncio_cancels_its_main_task_first(each_transport, address, opened):
    """As in a program without teletensor, the clean-up of main() may still wait."""
    process = client(f"""
        import asyncio
        s.close()
        connect = lambda: tt.connect(os.environ["TT_TEST_ADDRESS"]).as_current().__enter__()
        if {opened == "before"}:
            connect()
        async def main():
            if {opened == "inside"}:
                connect()
            x = tt.ones(3) + 1
            try:
                print("sleeping", flush=True)
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
                print("cleaned up", x.sum().item(), flush=True)
                raise
        for _ in range(2):
            try:
                asyncio.run(main())
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        try:
            print("without", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted at last", flush=True)
    """, address)
    for _ in range(2):
        wait_line(process, "sleeping")
        wait_asleep(process)
        process.send_signal(signal.SIGINT)
        assert wait_line(process, "cleaned up") == "cleaned up 6.0\n"
        wait_line(process, "interrupted")
    wait_line(process, "without")
    wait_asleep(process)
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process, 60)
    assert status == 0 and "interrupted at last" in out, (out, err)
