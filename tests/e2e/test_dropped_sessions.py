"""Sessions that a program drops instead of closing them."""

import gc
import os
import threading

import numpy as np
import pytest
from support.clients import client, finish
from support.daemon import wait_until
from support.raw import Raw

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "600")


@pytest.fixture
def tt(daemon):
    import teletensor

    with teletensor.connect(daemon.unix):
        yield teletensor


@pytest.fixture
def sessions(daemon):
    """sessions(): the names of the daemon's sessions, seen by a separate connection."""
    with Raw(daemon.unix) as raw:
        yield lambda: {s.name for s in raw.sessions()}


def ended(sessions, *left):
    wait_until(lambda: sessions() == set(left), what=f"only {left} are left")


def test_dropped_sessions_end(daemon, tt, sessions):
    own = tt.current_session().name

    def experiment(number):
        s = tt.connect(daemon.unix)
        with s.as_current():
            return tt.full((1_000_000,), float(number)).mean().item()

    def held():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()
    assert experiment(0) == 0.0
    ended(sessions, own)
    wait_until(lambda: not any(t.name == "teletensor-end" for t in threading.enumerate()))
    before = held()
    for number in range(1, 9):
        assert experiment(number) == number
    ended(sessions, own)
    wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)),
               what=f"descriptors and threads are {before} again")


def test_the_variable_of_a_cell_that_runs_again(daemon, tt, sessions):
    own = tt.current_session().name
    for _ in range(3):
        s = tt.connect(daemon.unix)
        with s.as_current():
            x = tt.ones(3)
    ended(sessions, own, s.name)
    assert x.sum().item() == 3.0
    s.close()


def test_tensors_keep_their_session(daemon, tt, sessions):
    own = tt.current_session().name

    def make():
        s = tt.connect(daemon.unix)
        with s.as_current():
            return s.name, tt.arange(200_000.0, requires_grad=True)
    name, x = make()
    gc.collect()
    y = (x * 2).sum()
    y.backward()
    assert x.grad.numpy()[-1] == 2.0 and y.item() > 3.9e10
    assert np.array_equal(x.detach().numpy(), np.arange(200_000, dtype=np.float32))
    moved = x.detach().to("cpu") + 1
    assert sessions() == {own, name}
    del x, y
    gc.collect()
    assert moved.sum().item() > 0 and sessions() == {own, name}
    del moved
    gc.collect()
    ended(sessions, own)


def test_a_tensor_that_follows_an_array_keeps_doing_so(daemon, tt):
    def make():
        with tt.connect(daemon.unix).as_current():
            array = tt.shared_empty(4)
            return array, tt.from_numpy(array)
    array, x = make()
    gc.collect()
    array[:] = 3.0
    assert x.sum().item() == 12.0


def test_in_a_cycle(daemon, tt, sessions):
    own = tt.current_session().name

    class Model:
        def __init__(self):
            self.session = tt.connect(daemon.unix)
            with self.session.as_current():
                self.weight = tt.ones(3)
            self.me = self
    Model()
    gc.collect()
    ended(sessions, own)


def test_a_name_is_left_for_the_next_one(daemon, tt, sessions):
    """The session is left to the next program with all commands that were issued earlier."""
    own = tt.current_session().name
    s = tt.connect(daemon.unix, name="exp")
    with s.as_current():
        x = tt.zeros(100)
        for _ in range(500):
            x += 1.0
        s.keep("x", x)
    del s, x
    gc.collect()
    with Raw(daemon.unix) as raw:
        wait_until(lambda: [one.attached for one in raw.sessions() if one.name == "exp"] == [False])
    with tt.connect(daemon.unix, name="exp") as again:
        assert again.taken_over and again.kept()["x"].tolist() == [500.0] * 100
    ended(sessions, own)


def test_a_queue_does_not_keep_a_dropped_session(daemon, tt, sessions):
    own = tt.current_session().name
    s = tt.connect(daemon.unix)
    with s.as_current():
        x = tt.ones(1000, 1000)
        for _ in range(2000):
            x = x @ x * 0.001
    del s, x
    gc.collect()
    ended(sessions, own)


def test_at_the_end_of_the_program(daemon, tt, sessions):
    own = tt.current_session().name
    program = client("""
        def make():
            with tt.connect(os.environ["TT_TEST_ADDRESS"]).as_current():
                return tt.ones(3)
        x = make()                                   # dropped, but for a tensor
        make()                                       # dropped
        y = tt.connect(os.environ["TT_TEST_ADDRESS"])
    """, daemon.unix)
    status, _, err = finish(program)
    assert status == 0 and not err, err
    assert sessions() == {own}


def test_a_thread_at_work_when_the_program_ends(daemon, tt, sessions):
    """No session is opened after the exit handler, by a thread or by a handler that runs later."""
    own = tt.current_session().name
    for _ in range(3):
        program = client("""
            os.environ["TELETENSOR_ADDRESS"] = os.environ["TT_TEST_ADDRESS"]
            s.__exit__(None, None, None)
            def work():
                while True:
                    (tt.ones(1000) + 1).sum().item()
            threading.Thread(target=work, daemon=True).start()
            time.sleep(.3)
        """, daemon.unix)
        finish(program)
        ended(sessions, own)


def test_after_the_exit_handler(daemon, tt, sessions):
    program = client("", daemon.unix)
    finish(program)
    late = client("""
        from teletensor._sessions import session as _session
        _session._close_all()
        for action in (lambda: tt.connect(os.environ["TT_TEST_ADDRESS"]), lambda: tt.ones(3),
                       tt.current_session):
            try:
                action()
                print("opened")
            except RuntimeError as error:
                print("refused:", error)
        s.__exit__(None, None, None)
    """, daemon.unix)
    status, out, err = finish(late)
    assert status == 0 and out.count("refused: ") == 3, (out, err)
    assert out.count("the program is at its end") >= 2, out
