"""Sessions and threads in one process; addresses; the implicit session."""

import contextlib
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.daemon import HANG


def test_tcp_and_unix_addresses(start_daemon, tt):
    daemon = start_daemon()
    for address, token in ((daemon.tcp, daemon.token), (daemon.unix, None)):
        with tt.connect(address, token=token) as s:
            assert (tt.ones(3) + 1).tolist() == [2.0] * 3
            s.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nonexistent/teletensor.sock"])
def test_nobody_answers(tt, address):
    with pytest.raises((ConnectionError, RuntimeError), match=r"127\.0\.0\.1:1|nonexistent"):
        tt.connect(address)


def test_nested_with_restores_the_outer_session(start_daemon, tt):
    daemon = start_daemon()
    outer = tt.ones(2)
    with tt.connect(daemon.unix) as inner:
        x = tt.zeros(2)
        with pytest.raises(RuntimeError, match="session"):
            x + outer
        inner.close()
    assert (outer + tt.ones(2)).tolist() == [2.0, 2.0]


def test_threads_of_one_session(tt):
    """Eight threads: each sees its own arithmetic, and all share one tensor."""
    session = tt.current_session()
    shared = tt.arange(8, dtype=tt.float32)
    problems = []

    def work(k):
        try:
            with session.as_current():
                x = tt.full((16,), float(k))
                for i in range(60):
                    x = x + 1
                    if i % 10 == 0:
                        assert x.tolist() == [float(k + i + 1)] * 16
                        assert shared[k].item() == k
                assert (x + shared[k]).sum().item() == 16 * (k + 60 + k)
        except BaseException as error:
            problems.append(error)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG)
    assert not problems, problems
    assert not any(t.is_alive() for t in threads)


def test_threads_of_one_session_while_garbage_is_collected(tt):
    """A garbage collection in the middle of a call runs other threads: none of their commands may come in
    between."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(7, 2, 2)
    try:
        for _ in range(20):
            test_threads_of_one_session(tt)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)


def test_grad_mode_is_of_a_thread(tt):
    seen = []
    with tt.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tt.is_grad_enabled()))
        thread.start()
        thread.join()
        assert not tt.is_grad_enabled()
    assert seen == [True]


def test_threads_each_with_a_session(start_daemon, tt):
    daemon = start_daemon()
    problems = []

    def work(k):
        try:
            with tt.connect(daemon.unix) as s:
                w = tt.full((4,), float(k), requires_grad=True)
                for _ in range(20):
                    w.grad = None
                    ((w * w).sum()).backward()
                    assert w.grad.tolist() == [2.0 * k] * 4
                s.close()
        except BaseException as error:
            problems.append(error)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG)
    assert not problems, problems


def test_close_is_final_and_twice_is_fine(start_daemon, tt):
    daemon = start_daemon()
    s = tt.connect(daemon.unix)
    with s:
        x = tt.ones(2)
        assert x.tolist() == [1.0, 1.0]
    s.close()
    s.close()
    with pytest.raises(RuntimeError):
        x.numpy()


def test_with_closes_and_as_current_does_not(start_daemon, tt):
    daemon = start_daemon()
    outer = tt.current_session()
    a, b = tt.connect(daemon.unix), tt.connect(daemon.unix)
    with a.as_current() as current:
        assert current is a is tt.current_session()
        x = tt.ones(2)
        with b.as_current():
            y = tt.zeros(2)
        assert tt.current_session() is a
    assert tt.current_session() is outer and not a.closed and not b.closed
    with a.as_current(), pytest.raises(ValueError, match="mine"):
        raise ValueError("mine")
    with b:
        assert (y + 1).tolist() == [1.0, 1.0]
        with b:
            pass
        assert not b.closed  # closed by the outermost block
        with a.as_current():
            assert (x + 1).tolist() == [2.0, 2.0]
    assert b.closed and not a.closed and tt.current_session() is outer
    for enter in (b.as_current, lambda: b):
        with pytest.raises(tt.SessionLostError, match="as_current"), enter():
            pass
    a.close()


def test_facts_need_no_round_trip(start_daemon, tt):
    """shape, dtype, requires_grad and the like are answered while the daemon is stopped."""
    import os
    import signal
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        x = tt.ones(3, 4, requires_grad=True)
        x.sum().item()
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            y = (x.t() @ x).sum(0)
            assert tuple(y.shape) == (4,) and y.dtype == tt.float32 and y.requires_grad and not y.is_leaf
            assert x.grad is None
            y.sum().backward()
            assert x.grad is not None and tuple(x.grad.shape) == (3, 4) and x.grad.stride() == (4, 1)
            assert "SumBackward" in str(y.grad_fn)
            with pytest.raises(RuntimeError):
                x + tt.ones(7)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert x.grad.tolist() == [[6.0 * 4 / 4 * 4 / 4] * 4] * 3 or np.isfinite(x.grad.numpy()).all()
        s.close()


def test_implicit_session_uses_the_environment(start_daemon):
    daemon = start_daemon()
    code = "import teletensor as tt; print((tt.ones(3) + 1).tolist())"
    import os
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "TELETENSOR_ADDRESS": daemon.unix}, check=False)
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr


def test_large_arrays_travel_whole(tt):
    rng = np.random.default_rng(8)
    for shape in ((3_000_000,), (1000, 1001), (0, 5), (1,)):
        array = rng.standard_normal(shape).astype(np.float32)
        x = tt.tensor(array)
        assert np.array_equal(x.numpy(), array)
        if array.ndim == 2:
            assert np.array_equal(x.t().numpy(), array.T)
            assert np.array_equal(x[::3, 5:].numpy(), array[::3, 5:])
    for dtype in (np.bool_, np.uint8, np.int32, np.int64, np.float16, np.float64):
        array = (rng.standard_normal(300_000) * 100).astype(dtype)
        assert np.array_equal(tt.tensor(array).numpy(), array)


def test_tensor_copies_its_array(tt):
    array = np.ones(2_000_000, np.float32)
    x = tt.tensor(array)
    array[:] = 7
    assert x.sum().item() == 2_000_000
    out = x.numpy()
    x.add_(1)
    assert (out == 1).all() and x[0].item() == 2


def test_a_retained_name_that_has_gone(tt):
    """The client tells the daemon of the flag before the backward, which would otherwise make one .grad too
    many."""
    x = tt.ones(3, requires_grad=True)
    y = x * 2
    y.retain_grad()
    z = (y * 3).sum()
    del y
    z.backward()
    assert x.grad.tolist() == [6.0] * 3
    assert (x + 1).sum().item() == 6.0


def test_fill_of_overlapping_elements(tt):
    """A number may fill the elements but a tensor may not, as in PyTorch."""
    wide = tt.zeros(1).expand(3)
    wide.fill_(2.0)
    assert wide.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="single memory location"):
        wide.fill_(tt.tensor(3.0))


def test_looking_at_a_view_moves_its_retained_gradient_on_both_sides(tt):
    """is_leaf rebuilds a stale view's node, which also moves its retain_grad mark."""
    x = tt.ones(2, 3, requires_grad=True)
    y = x + x
    v = y.view(6)
    z = v.exp()
    v.retain_grad()
    with tt.no_grad():
        y[0] = 2.0
    assert not v.is_leaf
    z.sum().backward()  # backward through the earlier node
    assert v.grad is None
    assert (x.grad / tt.full((2, 3), 2.0).exp()).allclose(tt.full((2, 3), 2.0))


def test_operands_of_two_sessions(shared_daemon, tt):
    """The error says how to copy a tensor into the other session, and that works."""
    with tt.connect(shared_daemon.unix) as first, tt.connect(shared_daemon.unix) as second:
        with first.as_current():
            x = tt.ones(3)
        with second.as_current():
            y = tt.full((3,), 2.0)
            with pytest.raises(RuntimeError, match=r"two sessions.*y = teletensor\.tensor\(x\.numpy\(\)\)"):
                x + y
            assert (tt.tensor(x.numpy()) + y).tolist() == [3.0] * 3


@pytest.mark.parametrize("line", [
    "w.data = other",
    "w.detach().set_(other)",
    "w.grad = other",
    "w.copy_(other)",
    "m.weight.data = other.reshape(1, 2)",
    "m.load_state_dict({'weight': other.reshape(1, 2), 'bias': other[:1]})",
    "w.sum().backward(other[0])",
    "tt.autograd.grad((w * w).sum(), [other])",
    "tt.autograd.grad([w * 1], [w], [other])",
    "session.keep('kept', other)",
    "session.publish('published', other)",
    "tt.compile(lambda a, b: a + b)(w, other)",
    "tt.cat([w, other])",
    "w[other.to(tt.int64)]",
    "w.index_put_([tt.tensor([0])], other[0])",
    "tt.nn.utils.vector_to_parameters(other, [w])",
])
def test_tensors_of_another_session_are_refused(shared_daemon, tt, line):
    """A command of one session cannot name a tensor of another one: the number would be that of some other
    tensor there, or the daemon would end the session."""
    with tt.connect(shared_daemon.unix) as first, tt.connect(shared_daemon.unix) as session:
        with first.as_current():
            spare = [tt.zeros(2) for _ in range(5)]  # so that the sessions' numbers differ
            other = tt.tensor([5.0, 6.0])
        with session.as_current():
            w, m = tt.tensor([1.0, 2.0], requires_grad=True), tt.nn.Linear(2, 1)
            before = m.weight.tolist()
            names = {"tt": tt, "w": w, "m": m, "other": other, "session": session}
            with tt.no_grad() if "copy_" in line or "index_put_" in line else contextlib.nullcontext(), \
                    pytest.raises((RuntimeError, ValueError), match="session"):
                exec(line, names)
            session.synchronize()
            assert w.tolist() == [1.0, 2.0] and m.weight.tolist() == before
        with first.as_current():
            assert other.tolist() == [5.0, 6.0] and len(spare) == 5


def test_use_after_close_says_so(start_daemon, tt):
    """The error does not say that the daemon ended the session: this program did."""
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        x = tt.ones(3)
    for use in (lambda: x + 1, x.tolist, lambda: s.keep("x", x), s.memory, s.status, s.snapshot):
        with pytest.raises(tt.SessionLostError, match="is closed") as caught:
            use()
        assert caught.value.reason == "closed" and "daemon ended" not in str(caught.value)


@pytest.mark.parametrize(("wrong", "error", "text"), [
    ({"memory": "2GiB"}, TypeError, "memory must be a whole number of bytes, not '2GiB'"),
    ({"memory": 1.5}, TypeError, "memory"), ({"memory": -5}, ValueError, "memory"),
    ({"memory": 2**70}, ValueError, "memory"), ({"name": 5}, TypeError, "name must be text, not 5"),
    ({"token": 5}, TypeError, "token"), ({"address": 5}, TypeError, "int")])
def test_arguments_of_connect(shared_daemon, tt, wrong, error, text):
    """A wrong type must be an error; sent as an unknown field, it would have no effect."""
    with pytest.raises(error, match=text):
        tt.connect(**{"address": shared_daemon.unix, **wrong})


def test_names_that_are_none(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix) as s:
        x = tt.ones(1)
        for call in (lambda name: s.keep(name, x), lambda name: tt.publish(name, x), tt.published):
            for name in ("", 5, None, "a\0b", "x" * 5000):
                if (call, name) == (tt.published, None):
                    continue  # published() without a name lists publications
                with pytest.raises(ValueError, match="is not a valid name: 1 to 200") as caught:
                    call(name)
                assert len(str(caught.value)) < 300
        with pytest.raises(ValueError, match="name"):
            tt.interrupt("", daemon.unix)
        with pytest.raises(TypeError, match="name must be text, not 5"):
            tt.interrupt(5, daemon.unix)
