"""Short GPU memory, over the fake driver: tensors of idle sessions, and of the session itself, move to the
host and on to the disk, and are read back before they are used."""

import contextlib
import re
import threading
from collections import Counter

import numpy as np
import pytest
from support.cuda import Control, fake
from support.daemon import HANG, wait_until
from support.http import scrape
from support.raw import Raw

MIB = 1 << 20
TWO = MIB // 2  # elements of 2 MiB


@pytest.fixture
def start(start_daemon):
    def begin(*flags, forgets="", **options):
        arguments, environment = fake("--device-memory", "8MiB", *flags, memory=64, **options)
        return start_daemon(*arguments, env=environment, forgets=forgets)
    return begin


def use(session, device="cuda:0"):
    return next(use for use in session.memory() if use["device"] == device)


def numbers(seed, count=TWO):
    return np.random.default_rng(seed).integers(0, 10, count).astype(np.float32)


def empty(daemon):
    """Checks that no memory remains on the device, on the host, or in files."""
    with Raw(daemon.unix) as raw:
        wait_until(lambda: raw.used()["cuda:0"] == 0 and raw.used()["cpu"] < MIB // 4, what="the memory is back")


def side_by_side(works):
    """Runs them on threads; raises what they raise."""
    errors = []

    def guard(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_a_session_of_twice_the_devices_memory(start, tt):
    daemon = start()
    with tt.connect(daemon.unix) as session:
        held = [tt.tensor(numbers(i)).to("cuda") for i in range(8)]
        for _ in range(2):
            for i, x in enumerate(held):
                x.add_(1.0)
                held[i] = x * 2.0
        found = use(session)
        assert found["used"] <= 8 * MIB and found["away"] >= 8 * MIB
        assert use(session, "cpu")["used"] >= 8 * MIB  # that is where they are
        for i, x in enumerate(held):
            np.testing.assert_array_equal(x.numpy(), 4 * numbers(i) + 6)
        view = held[0].view(2, TWO // 2)[1]  # both tensors have one storage, spilled or not
        view.mul_(0.0)
        np.testing.assert_array_equal(held[0].numpy()[TWO // 2:], 0)
        del held, x, view
        session.synchronize()
        wait_until(lambda: use(session)["away"] == 0 and use(session)["used"] == 0, what="nothing is left")
    empty(daemon)


def test_idle_sessions_give_way(start, tt):
    daemon = start()
    with tt.connect(daemon.unix) as idle, tt.connect(daemon.unix) as busy:
        with idle.as_current():
            kept = tt.tensor(numbers(1)).to("cuda")
            idle.keep("kept", kept)
            others = [tt.tensor(numbers(2 + i)).to("cuda") for i in range(2)]
            idle.synchronize()
        with busy.as_current():
            x = tt.tensor(numbers(9)).to("cuda")
            assert (x + x).sum().item() == 2 * numbers(9).sum(dtype=np.float64)
            busy.synchronize()
        assert 0 < use(idle)["away"] <= 4 * MIB  # what is kept by name, last
        page = scrape(daemon)
        away = re.search(r'teletensor_device_memory_bytes\{device="cuda:0",kind="away"\} (\S+)', page)
        out = re.search(r'teletensor_device_moved_bytes_total\{device="cuda:0",direction="out"\} (\S+)', page)
        assert float(away[1]) == use(idle)["away"] and float(out[1]) >= 2 * MIB
        with idle.as_current():
            for i, other in enumerate(others):
                np.testing.assert_array_equal(other.numpy(), numbers(2 + i))
            np.testing.assert_array_equal(kept.numpy(), numbers(1))


def test_moves_run_beside_what_others_compute(start, tt, tmp_path):
    """While the copy of a tensor to the host is held up, allocations wait for its room, and all other
    sessions compute."""
    control = Control(tmp_path)
    daemon = start(control=control.path)
    with tt.connect(daemon.unix) as idle, tt.connect(daemon.unix) as short, tt.connect(daemon.unix) as busy:
        with idle.as_current():
            held = [tt.tensor(numbers(i)).to("cuda") for i in range(3)]
            idle.synchronize()
        with busy.as_current():
            x = tt.tensor(numbers(7, 1000)).to("cuda")
            busy.synchronize()
        control("hold 0")
        control.taken()
        made, there = [], threading.Event()

        def ask_for_room():
            with short.as_current():
                made.extend(tt.full((TWO,), float(i), device="cuda") for i in range(3))
                assert [y[-1].item() for y in made] == [0.0, 1.0, 2.0]
            there.set()
        thread = threading.Thread(target=ask_for_room)
        thread.start()
        with busy.as_current():
            for i in range(40):
                np.testing.assert_array_equal((x * 2 + i).numpy(), numbers(7, 1000) * 2 + i)
        assert not there.is_set() and use(idle)["away"] == 0
        control("release 0")
        thread.join(HANG)
        assert there.is_set() and use(idle)["away"] > 0
        with idle.as_current():
            for i, y in enumerate(held):
                np.testing.assert_array_equal(y.numpy(), numbers(i))


def test_sessions_of_four_times_the_devices_memory(start, tt):
    """Four sessions of 8 MiB each, in tensors of random sizes, at once."""
    daemon = start()

    def work(seed):
        def run():
            random = np.random.default_rng(seed)
            sizes = [int(size) for size in random.integers(MIB // 16, MIB // 3, 10)]
            with tt.connect(daemon.unix):
                data = [numbers(10 * seed + k, size) for k, size in enumerate(sizes)]
                held = [tt.tensor(x).to("cuda") for x in data]
                for _ in range(15):
                    k = int(random.integers(len(held)))
                    other = int(random.integers(len(held)))
                    n = min(sizes[k], sizes[other])
                    held[k][:n] += held[other][:n] * 0.5
                    data[k][:n] += data[other][:n] * np.float32(0.5)
                for x, y in zip(held, data, strict=True):
                    np.testing.assert_array_equal(x.numpy(), y)
        return run
    side_by_side([work(seed) for seed in range(4)])
    empty(daemon)


def test_two_large_jobs_at_once(start, tt):
    """The two jobs do not fit at the same time; both end with the right numbers."""
    daemon = start()

    def work(start_at):
        def run():
            with tt.connect(daemon.unix):
                weights = [tt.full((TWO,), start_at, device="cuda") for _ in range(3)]

                @tt.compile
                def step(w):
                    return w * 0.5 + 1.0
                for _ in range(6):
                    weights = [step(w) for w in weights]
                expected = start_at
                for _ in range(6):
                    expected = expected * 0.5 + 1.0
                for w in weights:
                    assert w[0].item() == w[-1].item() == expected
        return run
    side_by_side([work(64.0), work(1024.0)])
    empty(daemon)


def test_from_the_host_on_to_the_disk(start, tt):
    daemon = start("--host-memory", "16MiB", "--disk-memory", "1GiB")
    with tt.connect(daemon.unix) as session:
        held = []
        for i in range(16):
            held.append(tt.full((TWO,), float(i), device="cuda"))
            session.synchronize()
        assert use(session, "cpu")["disk_used"] > 0 and use(session)["away"] >= 24 * MIB
        for i, x in enumerate(held):
            assert (x.sum() / TWO).item() == i and x[7].item() == i
        del held, x
    empty(daemon)


def test_what_cannot_move_is_out_of_memory(start, tt):
    daemon = start()
    with tt.connect(daemon.unix) as session:
        x = tt.ones(TWO, device="cuda")
        with pytest.raises(tt.OutOfMemoryError, match=r"on cuda:0: requested 10.0 MiB .* quota of 8.0 MiB"):
            tt.ones(5 * TWO, device="cuda").sum().item()
        # Three tensors of 4 MiB at once are more than the device has, whatever is spilled.
        y, z = tt.ones(2 * TWO, device="cuda"), tt.ones(2 * TWO, device="cuda")
        with pytest.raises(tt.OutOfMemoryError, match=r"on cuda:0: requested 4.0 MiB"):
            (y + z)[0].item()
        assert (x + 1)[5].item() == 2.0 and y[3].item() == z[4].item() == 1.0
        session.synchronize()


def test_published_tensors_stay(start, tt):
    daemon = start()
    with tt.connect(daemon.unix) as one, tt.connect(daemon.unix) as two:
        with one.as_current():
            common = tt.tensor(numbers(3)).to("cuda")
            one.publish("common", common)
            one.synchronize()
        with two.as_current():
            held = [tt.full((TWO,), float(i), device="cuda") for i in range(6)]
            assert [x[-1].item() for x in held] == [float(i) for i in range(6)]
        assert use(one)["away"] == 0
        with one.as_current():
            np.testing.assert_array_equal(common.numpy(), numbers(3))


def test_a_restart_brings_back_what_had_moved(start, tt):
    """The snapshot of a session with more tensors than the device holds is written from wherever they
    are."""
    daemon = start("--lease", "120", "--restart", "60", "--drain", "60")
    with tt.connect(daemon.unix, name="moved").as_current() as session:
        for i in range(7):
            session.keep(f"t{i}", tt.tensor(numbers(i)).to("cuda"))
        session.synchronize()
        assert use(session)["away"] > 0
        session.detach()
    daemon.drain()
    daemon.restart()
    with tt.connect(daemon.unix, name="moved", fresh=True).as_current() as session:
        kept = session.kept()
        for i in range(7):
            assert str(kept[f"t{i}"].device) == "cuda:0"
            np.testing.assert_array_equal(kept[f"t{i}"].numpy(), numbers(i))


class Copies:
    """The copies between host and device that the driver was asked for, in pieces of more than 64 KiB."""

    def __init__(self, folder):
        self.path = folder / "copies"

    def take(self):
        """Returns {("out", "locked"), ("in", "slot"), ...}: bytes copied since the last call."""
        found = Counter()
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            way, kind, size = line.split()
            if int(size) > MIB // 16:
                found[way, kind] += int(size)
        self.path.unlink(missing_ok=True)
        return found


def locked(daemon):
    page = scrape(daemon)
    return int(float(re.search(r'teletensor_device_memory_bytes\{device="cpu",kind="locked"\} (\S+)', page)[1]))


@pytest.mark.parametrize("locks", ["any", "none"])
def test_what_moves_is_copied_straight(start, tt, tmp_path, locks):
    """Tensors are spilled through page-locked host memory, or through the slots if the driver cannot lock
    memory."""
    copies = Copies(tmp_path)
    daemon = start(copies=copies.path, locks=locks)
    kind, other = ("locked", "slot") if locks == "any" else ("slot", "locked")
    with tt.connect(daemon.unix) as session:
        assert locked(daemon) == 0
        held = [tt.arange(TWO, device="cuda") + float(i) for i in range(8)]
        for _ in range(2):
            held = [x * 2.0 for x in held]
        session.synchronize()
        found = copies.take()
        assert found["out", kind] >= 16 * MIB and found["in", kind] >= 8 * MIB
        assert found["out", other] == found["in", other] == 0
        away = use(session)["away"]
        assert locked(daemon) >= away > 0 if locks == "any" else locked(daemon) == 0
        for i, x in enumerate(held):
            np.testing.assert_array_equal(x.numpy(), 4 * (np.arange(TWO, dtype=np.float32) + i))
        del held, x
    empty(daemon)
    assert locked(daemon) >= away if locks == "any" else locked(daemon) == 0  # kept for what moves next


def test_blocks_that_are_kept_give_way(start, tt):
    """A locked block is reused by other sessions without locking it again; at most half of the host's memory
    is locked."""
    daemon = start("--host-memory", "32MiB", "--disk-memory", "1GiB")
    with tt.connect(daemon.unix) as session:
        held = [tt.full((TWO,), float(i), device="cuda") for i in range(16)]
        session.synchronize()
        assert use(session)["away"] >= 24 * MIB and 8 * MIB <= locked(daemon) <= 16 * MIB
        for i, x in enumerate(held):
            assert x[0].item() == x[-1].item() == i
        del held, x
        session.synchronize()
        wait_until(lambda: use(session)["away"] == 0, what="nothing is away")
        assert locked(daemon) >= 8 * MIB
        on_host = [tt.full((TWO,), float(i)) for i in range(14)]
        assert [x[-1].item() for x in on_host] == list(range(14))
        assert locked(daemon) <= 4 * MIB
    empty(daemon)


@contextlib.contextmanager
def in_flight(tt, daemon, control, copies):
    """Returns a session with a spilled tensor and further tensors, one of which is held up while it is
    copied out."""
    def ask_for_room(seen):
        with contextlib.suppress(tt.TeletensorError), tt.connect(daemon.unix):
            made = [tt.full((TWO,), float(i), device="cuda") for i in range(3)]
            seen.extend(y[-1].item() for y in made)
    with tt.connect(daemon.unix) as idle:
        with idle.as_current():
            held = [tt.tensor(numbers(i)).to("cuda") for i in range(4)]
            idle.synchronize()
        seen = []
        ask_for_room(seen)
        assert seen == [0.0, 1.0, 2.0] and use(idle)["away"] > 0
        with idle.as_current():
            held[-1].add_(0.0)
            idle.synchronize()
        copies.take()
        control("hold 0")
        control.taken()
        thread = threading.Thread(target=ask_for_room, args=(seen,))
        thread.start()
        wait_until(lambda: copies.path.exists() and copies.take()["out", "locked"] > 0, what="a copy is asked for")
        try:
            yield idle, held
        finally:
            control("release 0")
            thread.join(HANG)
            assert not thread.is_alive()


def test_a_session_that_ends_while_it_is_copied(start, tt, tmp_path):
    """The block of a copy is not reused before the copy has ended."""
    control, copies = Control(tmp_path), Copies(tmp_path)
    daemon = start(control=control.path, copies=copies.path)
    with tt.connect(daemon.unix) as other:
        with in_flight(tt, daemon, control, copies) as (idle, held):
            idle.close()
            del held
            with other.as_current():
                x = [tt.tensor(numbers(i)) for i in range(8)]
                other.synchronize()
        for i, y in enumerate(x):
            np.testing.assert_array_equal(y.numpy(), numbers(i))
        with other.as_current():
            y = [x.to("cuda") for x in x]
            for i, z in enumerate(y):
                np.testing.assert_array_equal((z + 1).numpy(), numbers(i) + 1)
        del x, y, z
    empty(daemon)


def test_a_device_that_is_lost_while_it_copies(start, tt, tmp_path):
    control, copies = Control(tmp_path), Copies(tmp_path)
    daemon = start(control=control.path, copies=copies.path)
    with in_flight(tt, daemon, control, copies) as (idle, held), tt.connect(daemon.unix) as other:
        control("lost 0")
        with other.as_current():
            x = [tt.tensor(numbers(10 + i)) for i in range(8)]
            wait_until(lambda: "DEVICE_LOST" in daemon.log, what="the loss")
            for i, y in enumerate(x):
                np.testing.assert_array_equal(y.numpy(), numbers(10 + i))
        with idle.as_current():
            np.testing.assert_array_equal(held[0].numpy(), numbers(0))
            with pytest.raises(tt.DeviceLostError):
                held[-1].numpy()


def test_a_daemon_that_ends_while_it_copies(start, tt, tmp_path):
    control, copies = Control(tmp_path), Copies(tmp_path)
    daemon = start(control=control.path, copies=copies.path, forgets="its client is not to wait for another daemon")
    with contextlib.suppress(tt.TeletensorError), in_flight(tt, daemon, control, copies):
        daemon.process.terminate()
        wait_until(lambda: "event=signal" in daemon.log, what="the end begins")
    assert daemon.process.wait(HANG) == 0
    daemon.restart()  # to be ended by the fixture


def hold(tt, session):
    """Returns a spilled tensor, and further tensors of which the last is not spilled."""
    first = tt.tensor(numbers(1)).to("cuda")
    rest = [tt.full((TWO,), float(i), device="cuda") for i in range(5)]
    session.synchronize()
    assert use(session)["away"] >= 2 * MIB
    return first, rest


def test_what_has_moved_outlives_the_device(start, tt, tmp_path):
    control = Control(tmp_path)
    daemon = start(control=control.path)
    with tt.connect(daemon.unix) as session:
        first, rest = hold(tt, session)
        control("sticky 0")
        with pytest.raises(tt.DeviceLostError):
            (rest[-1] + 1).sum().item()
        np.testing.assert_array_equal(first.numpy(), numbers(1))
        np.testing.assert_array_equal((first.cpu() + 1).numpy(), numbers(1) + 1)
        np.testing.assert_array_equal(first[::2].numpy(), numbers(1)[::2])
        with pytest.raises(tt.DeviceLostError):
            rest[-1].sum().item()
        with pytest.raises(tt.DeviceLostError):
            (first + 1).sum().item()


def test_what_has_moved_is_on_the_device_that_comes_back(start, tt, tmp_path):
    control = Control(tmp_path)
    daemon = start("--restart", "60", "--lease", "600", control=control.path)
    with tt.connect(daemon.unix) as session:
        first, rest = hold(tt, session)
        control("sticky 0")
        with pytest.raises(tt.DeviceLostError):
            (rest[-1] + 1).sum().item()
        wait_until(lambda: daemon.log.count(" ready ") == 2, what="a second start")
        np.testing.assert_array_equal((first + 1).numpy(), numbers(1) + 1)
        with pytest.raises(tt.DeviceLostError):
            rest[-1].sum().item()


def test_sessions_that_end_while_they_wait(start, tt):
    """A wait ends by an interrupt and by closing the session: no session waits forever, and no memory
    remains."""
    daemon = start()
    with tt.connect(daemon.unix) as steady:
        with steady.as_current():
            held = [tt.tensor(numbers(i)).to("cuda") for i in range(3)]
            steady.synchronize()
        for how in ("close", "interrupt", "close"):
            with contextlib.suppress(tt.InterruptedOpError), tt.connect(daemon.unix, name="other"):
                mine = [tt.full((TWO,), float(i), device="cuda") for i in range(8)]
                mine = [x + 1.0 for x in mine]
                if how == "interrupt":
                    tt.interrupt("other", daemon.unix)
                del mine
        with steady.as_current():
            for i, x in enumerate(held):
                np.testing.assert_array_equal((x + 1.0).numpy(), numbers(i) + 1)
            del held, x
    empty(daemon)
