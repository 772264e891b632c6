"""Random histories of several clients on one daemon, compared with a model of NumPy arrays.

Sessions open, compute, alias, differentiate, keep, publish and use each other's tensors, close and are taken
over. They use more than the memory, so that tensors are moved to the disk and back; connections are cut; the
daemon is shut down, killed and restarted; quotas are exceeded. In all cases each value that is read must be
that of the model, at present or (if a session reports a rollback) at its last snapshot. The memory of a
shared tensor is the same in all sessions, and after a crash it is that of the last snapshot of any of them.
"""

import contextlib
import functools
import itertools
import time
from collections import Counter

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from support.daemon import Daemon, wait_until
from support.http import samples, scrape
from support.proxy import Proxy
from support.raw import Raw

QUOTA = 2 << 20
LARGE = 1 << 15  # elements, a quarter of a MiB
MOST = 6  # the maximum number of such tensors in a session; those of two sessions do not fit into memory
FLAGS = ("--lease", "300", "--restart", "120", "--drain", "120", "--session-memory", str(QUOTA),
         "--host-memory", "2MiB", "--disk-memory", "256MiB", "--lanes", "2")
SLOTS = 3
DONE = Counter()  # counts of what has happened, for the report


class Array:
    """A tensor of the model: a view of a buffer that may have several views."""

    def __init__(self, buffer, offset, shape, strides, grad=None, leaf=False):
        self.buffer, self.offset, self.shape, self.strides = buffer, offset, shape, strides
        self.grad, self.leaf = grad, leaf

    @classmethod
    def of(cls, values, leaf=False):
        values = np.ascontiguousarray(values)
        strides = tuple(s // values.itemsize for s in values.strides)
        return cls(values.reshape(-1).copy(), 0, values.shape, strides, leaf=leaf)

    @property
    def values(self):
        size = self.buffer.itemsize
        return np.lib.stride_tricks.as_strided(
            self.buffer[self.offset:], self.shape, tuple(s * size for s in self.strides))


class Common(np.ndarray):
    """The buffer of a tensor that several sessions use. `saved` is its contents at the last snapshot, or
    None."""

    saved = None


def copied(named):
    """Copies of the arrays in a dict: arrays that share memory with each other still do, and arrays that
    share memory with other sessions are not copied."""
    buffers = {id(a.buffer): a.buffer for a in named.values() if isinstance(a.buffer, Common)}
    return {name: Array(buffers.setdefault(id(a.buffer), a.buffer.copy()), a.offset, a.shape, a.strides,
                        None if a.grad is None else a.grad.copy(), a.leaf) for name, a in named.items()}


class Slot:
    """One session: the client's object, its tensors together with those of the model, and what the daemon
    has on disk."""

    def __init__(self, session, proxy, name):
        self.session, self.proxy, self.name, self.address = session, proxy, name, session.address
        self.pairs = []  # (tensor, Array)
        self.kept = {}  # name -> Array
        self.saved = None  # the tensors that were kept at the last snapshot

    def end(self):
        self.session.close()
        if self.proxy:
            self.proxy.close()

    def ask(self):
        """Computes a value and reads it, so that all earlier commands have run."""
        import teletensor as tt

        with self.session.as_current():
            assert tt.full((2,), 3.0).sum().item() == 6.0

    def arrive(self, array):
        """Waits for the session's operations on a shared array, so that they precede those of other
        sessions."""
        if isinstance(array.buffer, Common):
            self.session.synchronize()

    def written(self):
        """Records that the daemon has written a snapshot."""
        self.saved = copied(self.kept)
        for _, array in self.pairs + [(None, a) for a in self.kept.values()]:
            if isinstance(array.buffer, Common):
                array.buffer.saved = np.array(array.buffer)

    def check(self, tensor, array):
        with self.session.as_current():
            np.testing.assert_array_equal(tensor.detach().numpy(), array.values)
            if array.leaf:
                assert tensor.requires_grad
                assert (tensor.grad is None) == (array.grad is None)
                if array.grad is not None:
                    np.testing.assert_array_equal(tensor.grad.numpy(), array.grad)

    def begin_with(self, kept):
        """Starts with only the tensors that the session keeps."""
        self.kept = kept
        found = self.session.kept()
        assert sorted(found) == sorted(kept)
        self.pairs = [(found[name], array) for name, array in kept.items()]
        for tensor, array in self.pairs:
            self.check(tensor, array)


numbers = st.integers(0, 1 << 16)


def step(**drawn):
    """A rule of the state machine that also counts its calls."""
    def decorate(act):
        @rule(**drawn)
        @functools.wraps(act)
        def run(self, **values):
            begin = time.monotonic()
            act(self, **values)
            DONE["ms in " + act.__name__] += round((time.monotonic() - begin) * 1000)
            DONE["steps"] += 1
        return run
    return decorate


class Histories(RuleBasedStateMachine):
    """The state machine. `machine` sets `daemon`, `raw` (a raw client of it) and `tt`."""

    daemon = raw = tt = None
    names = itertools.count()

    @initialize()
    def begin(self):
        self.slots = {}
        self.deaths = 0
        self.moved = set()  # the sessions that have had data on the disk
        DONE["histories"] += 1

    def slot(self, number):
        """The session with this number, which is opened if there is none."""
        number %= SLOTS
        if number not in self.slots:
            # the connection of one session can be cut
            proxy = Proxy(self.daemon.socket) if number == 0 else None
            name, address = f"s{next(self.names)}", proxy.address if proxy else self.daemon.unix
            self.slots[number] = Slot(self.tt.connect(address, name=name), proxy, name)
            DONE["sessions"] += 1
        return self.slots[number]

    def look(self):
        """Records which sessions have data on the disk now."""
        away = {s.name for s in self.raw.sessions() if any(m.away for m in s.memory)}
        DONE["histories with moved sessions"] += bool(away and not self.moved)
        DONE["sessions moved"] += len(away - self.moved)
        self.moved |= away
        return away

    def fault(self, name):
        DONE[name] += 1
        DONE[name + " beside tensors on the disk"] += bool(self.look())

    @classmethod
    def count_moved(cls):
        """Called before the daemon ends, because its counters start again with each process."""
        metrics = samples(scrape(cls.daemon))
        for way in ("out", "in"):
            DONE["KiB moved " + way] += int(metrics["teletensor_moved_bytes_total", (("direction", way),)]) >> 10
        DONE["files lost"] += int(metrics["teletensor_moving_failures_total", ()])

    def pick(self, slot, number, leaf=False):
        if not any(a.leaf == leaf for _, a in slot.pairs):
            self.make(slot, number, leaf)
        choice = [p for p in slot.pairs if p[1].leaf == leaf]
        return choice[number % len(choice)]

    def make(self, slot, number, leaf):
        shape = ((4, 3), (12,), (2, 2, 3), (500,))[number % 4]
        values = (np.arange(np.prod(shape)).reshape(shape) * 7 + number) % 11
        values = values.astype(np.float64 if leaf else np.int64)
        with slot.session.as_current():
            slot.pairs.append((self.tt.tensor(values, requires_grad=leaf), Array.of(values, leaf)))

    @step(where=numbers, number=numbers, leaf=st.booleans())
    def make_one(self, where, number, leaf):
        self.make(self.slot(where), number, leaf)

    @step(where=numbers, number=numbers, kind=st.sampled_from(["slice", "transpose", "row"]))
    def view(self, where, number, kind):
        slot = self.slot(where)
        tensor, a = self.pick(slot, number)
        if len(a.shape) < 1 or a.shape[0] < 2 or len(slot.pairs) > 12:
            return
        with slot.session.as_current():
            if kind == "slice":
                made = tensor[1:]
                b = Array(a.buffer, a.offset + a.strides[0], (a.shape[0] - 1, *a.shape[1:]), a.strides)
            elif kind == "row" and len(a.shape) > 1:
                made = tensor[1]
                b = Array(a.buffer, a.offset + a.strides[0], a.shape[1:], a.strides[1:])
            else:
                made = tensor.permute(*reversed(range(len(a.shape))))
                b = Array(a.buffer, a.offset, a.shape[::-1], a.strides[::-1])
        slot.pairs.append((made, b))

    @step(where=numbers, number=numbers, other=numbers, times=st.sampled_from([1, 3, 40]))
    def compute(self, where, number, other, times):
        slot = self.slot(where)
        tensor, a = self.pick(slot, number)
        values = a.values.copy()
        with slot.session.as_current():
            made = tensor
            for i in range(times):
                made = made * (other + i) + tensor
                values = values * (other + i) + a.values
        slot.arrive(a)
        slot.pairs.append((made, Array.of(values)))

    @step(where=numbers, number=numbers, other=numbers, times=st.sampled_from([1, 2, 30]))
    def write(self, where, number, other, times):
        self.change(self.slot(where), number, other, times)

    def change(self, slot, number, other, times):
        tensor, a = self.pick(slot, number)
        with slot.session.as_current():
            for i in range(times):
                tensor.mul_(3).add_(other + i)
                a.values[...] = a.values * 3 + (other + i)
        slot.arrive(a)

    @step(where=numbers, number=numbers, factor=st.integers(1, 3))
    def train(self, where, number, factor):
        slot = self.slot(where)
        tensor, a = self.pick(slot, number, leaf=True)
        with slot.session.as_current():
            ((tensor * tensor).sum() * factor).backward()
            with self.tt.no_grad():
                tensor -= 1.0
        step = 2.0 * factor * a.values
        a.grad = step if a.grad is None else a.grad + step
        a.values[...] -= 1.0

    @step(where=numbers, number=numbers, leaf=st.booleans(), name=st.sampled_from("abc"))
    def keep(self, where, number, leaf, name):
        slot = self.slot(where)
        tensor, a = self.pick(slot, number, leaf)
        slot.session.keep(name, tensor)
        slot.kept[name] = a

    @step(where=numbers, number=numbers)
    def forget(self, where, number):
        slot = self.slot(where)
        if slot.pairs:
            slot.pairs.pop(number % len(slot.pairs))

    @step(where=numbers, number=numbers, leaf=st.booleans())
    def read(self, where, number, leaf):
        slot = self.slot(where)
        slot.check(*self.pick(slot, number, leaf))
        DONE["reads"] += 1

    @step(where=numbers)
    def run_out(self, where):
        """A request that exceeds the quota fails, and everything else stays."""
        slot = self.slot(where)
        with slot.session.as_current():
            large = self.tt.ones(QUOTA // 8 * 5 // 4)
            try:
                made = large + 1
                slot.session.synchronize()
            except self.tt.OutOfMemoryError:
                DONE["out of memory"] += 1
            else:
                raise AssertionError("the quota does not hold")
            del large, made
            slot.session.synchronize()
        self.look()

    def hold(self, slot, number, count, leaf):
        """Creates this number of large tensors."""
        for i in range(count - sum(a.values.size == LARGE for _, a in slot.pairs)):
            values = (np.arange(LARGE, dtype=np.float64 if leaf else np.int64) * 5 + number + i) % 1009
            with slot.session.as_current():
                slot.pairs.append((self.tt.tensor(values, requires_grad=leaf), Array.of(values, leaf)))
        slot.ask()

    @step(where=numbers, number=numbers, count=st.integers(2, MOST), leaf=st.booleans())
    def fill(self, where, number, count, leaf):
        self.hold(self.slot(where), number, count, leaf)
        self.look()

    def press(self, first):
        """All sessions together use more than the memory; the last one has most of it."""
        for i in range(SLOTS):
            self.hold(self.slot(first + i), first, MOST, False)

    @step(first=numbers)
    def crowd(self, first):
        self.press(first)
        self.look()

    @step(where=numbers, number=numbers, others=st.sets(numbers, max_size=2))
    def share(self, where, number, others):
        """Several sessions share one memory; they write to it, read, keep and forget it like any other."""
        one, name = self.slot(where), f"t{next(self.names)}"
        values = np.arange(40 + number % 7, dtype=np.int64) * 3 + number
        array = Array.of(values)
        array.buffer = array.buffer.view(Common)
        with one.session.as_current():
            mine = self.tt.tensor(values)
            self.tt.publish(name, mine, writable=True)
        one.pairs.append((mine, array))
        for other in others:
            two = self.slot(other)
            with two.session.as_current():
                two.pairs.append((self.tt.published(name), Array(array.buffer, 0, array.shape, array.strides)))
        DONE["shared"] += 1

    @step(where=numbers, other=numbers, number=numbers, writable=st.booleans())
    def share_for_a_while(self, where, other, number, writable):
        """Publishes a tensor, uses it in another session, writes to it in both, and withdraws it; the last
        session that holds it frees it."""
        one, two, name = self.slot(where), self.slot(other), f"t{next(self.names)}"
        values = np.arange(40 + number % 7, dtype=np.int64) * 3
        with one.session.as_current():
            mine = self.tt.tensor(values)
            self.tt.publish(name, mine, writable=writable)
            mine.add_(number)
            one.session.synchronize()
        values += number
        with two.session.as_current():
            theirs = self.tt.published(name)
            if writable:
                theirs.mul_(2)
                values *= 2
            np.testing.assert_array_equal(theirs.numpy(), values)
        with one.session.as_current():
            self.tt.publish(name, None)
            np.testing.assert_array_equal(mine.numpy(), values)
        del mine
        one.ask()
        with two.session.as_current():
            np.testing.assert_array_equal(theirs.numpy(), values)
        del theirs
        two.ask()
        DONE["shared for a while"] += 1

    @step()
    def cut(self):
        self.slot(0).proxy.cut()
        self.fault("cuts")

    @step(where=numbers)
    def take_over(self, where):
        """Another program connects by the name: it gets the tensors that were kept."""
        slot = self.slot(where)
        slot.ask()  # commands that were cut off in transit have arrived
        if where % 2:
            slot.session.detach()
        old, slot.session = slot.session, self.tt.connect(slot.address, name=slot.name, fresh=True)
        with contextlib.suppress(self.tt.SessionLostError):
            old.detach()
        assert slot.session.taken_over
        slot.begin_with(slot.kept)
        if slot.saved is not None:  # the daemon writes another snapshot for the new client
            slot.session.snapshot()
            slot.written()
        DONE["taken over"] += 1

    @step(where=numbers)
    def snapshot(self, where):
        slot = self.slot(where)
        slot.session.snapshot()
        slot.written()
        DONE["snapshots"] += 1

    def before_the_end(self, how, crowd):
        self.deaths += 1
        if crowd is not None:
            self.press(crowd)
        self.fault(how)
        self.count_moved()

    @step(crowd=st.none() | numbers, arrives=st.booleans(), waits=st.booleans())
    def restart(self, crowd, arrives, waits):
        """Restarts the daemon, also while commands are in transit: these are sent again, and are in no
        snapshot yet."""
        if self.deaths >= 2:
            return
        self.before_the_end("restarts", crowd)
        for slot in self.slots.values():
            if arrives:
                slot.session.synchronize()
            else:
                self.change(slot, 0, 1, 30)
        assert self.daemon.terminate(120) == 0, self.daemon.log[-4000:]
        assert "event=session_lost" not in self.daemon.log, self.daemon.log[-4000:]
        self.come_back()
        for slot in self.slots.values():
            if waits or not arrives:
                slot.ask()
        for slot in self.slots.values():
            if not arrives:
                slot.session.snapshot()
            slot.written()

    @step(crowd=st.none() | numbers, busy=st.booleans())
    def crash(self, crowd, busy):
        if self.deaths >= 2:
            return
        self.before_the_end("crashes", crowd)
        for slot in self.slots.values():
            if busy:
                self.change(slot, 0, 1, 30)
        self.daemon.kill()
        self.come_back()
        for slot in self.slots.values():
            for _, array in slot.pairs + [(None, a) for a in slot.kept.values()]:
                if isinstance(array.buffer, Common) and array.buffer.saved is not None:
                    array.buffer[...] = array.buffer.saved
        for number, slot in list(self.slots.items()):
            try:
                slot.ask()
                DONE["went on"] += 1
            except self.tt.SessionLostError as lost:
                if slot.saved is None:
                    assert lost.reason in ("unknown", "daemon"), lost
                    slot.end()
                    del self.slots[number]
                    DONE["gone"] += 1
                    continue
                assert lost.reason in ("rollback", "unknown"), lost
                if lost.reason == "rollback":
                    slot.session.accept_rollback()
                else:  # taken over in the meantime: the snapshot belongs to the previous client
                    slot.session.close()
                    slot.session = self.tt.connect(slot.address, name=slot.name, fresh=True)
                slot.begin_with(copied(slot.saved))
                slot.session.snapshot()  # the daemon would take one at some time anyway
                slot.written()
                DONE["rolled back"] += 1

    def come_back(self):
        self.daemon.restart()
        self.raw.close()
        type(self).raw = Raw(self.daemon.unix)
        assert "event=session_not_restored" not in self.daemon.log, self.daemon.log[-4000:]

    def teardown(self):
        for slot in self.slots.values():
            for tensor, array in slot.pairs:
                slot.check(tensor, array)
            slot.pairs.clear()
            slot.end()
        if self.slots:
            assert self.daemon.alive()
            raw = self.raw
            try:
                wait_until(lambda: not any(raw.used().values()) and not raw.sessions())
            except AssertionError:
                raise AssertionError(f"{raw.used()} of {[str(s) for s in raw.sessions()]} stay: "
                                     f"{self.daemon.log[-4000:]}") from None
            wait_until(lambda: not list(self.daemon.state.glob("*.session")), what="no file is left")


@contextlib.contextmanager
def machine():
    """The state machine, with a daemon of its own."""
    import teletensor

    class Here(Histories):
        daemon, tt = Daemon(*FLAGS), teletensor
        raw = Raw(daemon.unix)

    DONE.clear()
    try:
        yield Here
        Here.count_moved()
        problem = Here.daemon.stop()
        assert not problem, problem
    finally:
        with contextlib.suppress(ProcessLookupError):
            Here.raw.close()
            Here.daemon.kill()
        print(dict(DONE))
