"""Loops that the daemon recognises in the stream: the same bits, errors and names as with
TELETENSOR_TEMPLATES=0."""

import numpy as np
import pytest
from support.busy import held
from support.proxy import Proxy

BOTH = pytest.mark.parametrize("templates", ["1", "0"])


def chain(tt, rounds, x, a, b):
    for i in range(rounds):
        x = x * b + a
        if i % 7 == 6:
            x = (x - 1.5).tanh() / 2
    return x


def operands(tt):
    return (tt.tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)), tt.full((8, 8), 0.25),
            tt.tensor(np.linspace(0.5, 0.9, 64, dtype=np.float32).reshape(8, 8)))


def expected(rounds):
    x, a, b = (np.linspace(-1, 1, 64).reshape(8, 8), 0.25, np.linspace(0.5, 0.9, 64).reshape(8, 8))
    for i in range(rounds):
        x = x * b + a
        if i % 7 == 6:
            x = np.tanh(x - 1.5) / 2
    return x


def test_the_same_bits(start_daemon, tt):
    found = {}
    for templates in ("1", "0"):
        daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
        with tt.connect(daemon.unix) as s:
            x, a, b = operands(tt)
            values = []
            for _ in range(20):
                x = chain(tt, 150, x, a, b)
                values.append(x.numpy().tobytes())
                x = x.clone()
            found[templates] = values
            np.testing.assert_allclose(np.frombuffer(values[0], np.float32).reshape(8, 8), expected(150),
                                       rtol=1e-5)
            status = s.status()
            assert (status["repeated"] > status["completed_upto"] / 2) == (templates == "1"), status
    assert found["1"] == found["0"]


@BOTH
def test_a_failed_operand_names_its_line(start_daemon, tt, templates):
    daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
    with tt.connect(daemon.unix) as s:
        x, a, b = operands(tt)
        x = chain(tt, 301, x, a, b)
        wrong = (tt.tensor([1]) // tt.tensor([0])).float() + x  # the line
        y = chain(tt, 301, wrong, a, b)
        with pytest.raises(RuntimeError, match="floor_divide: ZeroDivisionError") as caught:
            y.numpy()
        assert "test_templates.py:59 in" in str(caught.value)  # the line above
        good = chain(tt, 301, x, a, b).numpy()
        np.testing.assert_allclose(good, expected(301), rtol=1e-3)
        assert (s.status()["repeated"] > 0) == (templates == "1")


@BOTH
def test_cancel_drops_what_is_queued(start_daemon, tt, templates):
    daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
    with tt.connect(daemon.unix) as s:
        x, a, b = operands(tt)
        before = chain(tt, 301, x, a, b)
        wanted = before.numpy()
        with held(tt, s):
            dropped = chain(tt, 301, before, a, b)
            s.cancel()
        with pytest.raises(tt.InterruptedOpError):
            dropped.numpy()
        again = chain(tt, 301, x, a, b)
        assert again.numpy().tobytes() == wanted.tobytes()
        assert before.numpy().tobytes() == wanted.tobytes()


@BOTH
def test_a_loop_that_is_cut(start_daemon, tt, templates):
    daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})

    def run(after):
        proxy = Proxy(daemon.socket)
        try:
            with tt.connect(proxy.address):
                proxy.cut_after(after)
                x, a, b = operands(tt)
                for _ in range(5):
                    x = chain(tt, 100, x, a, b)
                    if x.sum().item() > 1e9:
                        raise AssertionError("the values must not grow")
                return x.numpy().tobytes(), proxy.sent
        finally:
            proxy.close()

    wanted, sent = run(1 << 60)
    for at in range(sent // 12, sent, sent // 6):
        assert run(at)[0] == wanted, at


def test_the_same_gradients(start_daemon, tt):
    """Loops that are recorded, with a gradient of each round; the weight changes between the rounds."""
    found = {}
    for templates in ("1", "0"):
        daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
        with tt.connect(daemon.unix) as s:
            x, a, b = operands(tt)
            values = []
            for i in range(12):
                b.requires_grad_(i % 4 != 3)
                y = chain(tt, 150, x, a, b).sum()
                assert y.requires_grad == b.requires_grad
                if b.requires_grad:
                    y.backward()
                    values.append(b.grad.numpy().tobytes())
                    b.grad = None
                values.append(y.detach().numpy().tobytes())
                with tt.no_grad():
                    b.mul_(0.99)
            found[templates] = values
            status = s.status()
            assert (status["repeated"] > status["completed_upto"] / 3) == (templates == "1"), status
    assert found["1"] == found["0"]


@BOTH
def test_a_backward_through_a_failed_operand(start_daemon, tt, templates):
    daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
    with tt.connect(daemon.unix) as s:
        x, a, b = operands(tt)
        b.requires_grad_()
        chain(tt, 301, x, a, b).sum().backward()
        wanted = b.grad.numpy().tobytes()
        b.grad = None
        wrong = (tt.tensor([1]) // tt.tensor([0])).float() + x
        chain(tt, 301, wrong, a, b).sum().backward()
        with pytest.raises(RuntimeError, match="floor_divide: ZeroDivisionError"):
            b.grad.numpy()
        b.grad = None
        chain(tt, 301, x, a, b).sum().backward()
        assert b.grad.numpy().tobytes() == wanted
        assert (s.status()["repeated"] > 0) == (templates == "1")


@BOTH
def test_a_restart_between_two_rounds(start_daemon, tt, templates):
    daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
    with tt.connect(daemon.unix, name="loop") as s:
        x, a, b = operands(tt)
        x = chain(tt, 301, x, a, b)
        s.synchronize()
        daemon.drain()
        daemon.restart()
        y = chain(tt, 301, x, a, b)
        np.testing.assert_allclose(y.numpy(), expected(602), rtol=1e-3)


@BOTH
def test_a_restart_before_the_backward(start_daemon, tt, templates):
    daemon = start_daemon(env={"TELETENSOR_TEMPLATES": templates})
    with tt.connect(daemon.unix, name="recorded") as s:
        x, a, b = operands(tt)
        b.requires_grad_()
        chain(tt, 301, x, a, b).sum().backward()
        wanted = b.grad.numpy().tobytes()
        b.grad = None
        y = chain(tt, 301, x, a, b).sum()
        s.synchronize()
        daemon.drain()
        daemon.restart()
        y.backward()
        assert b.grad.numpy().tobytes() == wanted
