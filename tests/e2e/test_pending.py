"""Tensors whose sizes depend on data are returned at once and made at the first use of their shape; a
program sees the difference only in its waits."""

import gc
import inspect
import os
import signal
import threading
import weakref

import numpy as np
import pytest


def waits(tt):
    return tt.current_session()._core.waits


MAKERS = {
    "nonzero": (lambda tt, x, m: tt.nonzero(m), lambda x, m: np.argwhere(m)),
    "argwhere": (lambda tt, x, m: tt.argwhere(m), lambda x, m: np.argwhere(m)),
    "columns": (lambda tt, x, m: tt.where(m)[0], lambda x, m: np.nonzero(m)[0]),
    "mask": (lambda tt, x, m: x[m], lambda x, m: x[m]),
    "mask and slice": (lambda tt, x, m: x[1:][m[1:]], lambda x, m: x[1:][m[1:]]),
    "masked_select": (lambda tt, x, m: x.masked_select(m), lambda x, m: x[m]),
    "unique": (lambda tt, x, m: tt.unique(x), lambda x, m: np.unique(x)),
    "unique counts": (lambda tt, x, m: tt.unique(x, return_counts=True)[1],
                      lambda x, m: np.unique(x, return_counts=True)[1]),
    "unique_consecutive": (lambda tt, x, m: tt.unique_consecutive(m),
                           lambda x, m: m[np.insert(m[1:] != m[:-1], 0, True)]),
    "repeat_interleave": (lambda tt, x, m: tt.repeat_interleave(x, m.long()), lambda x, m: np.repeat(x, m)),
    "bincount": (lambda tt, x, m: tt.bincount(x.long()), lambda x, m: np.bincount(x.astype(int))),
    "one_hot": (lambda tt, x, m: tt.nn.functional.one_hot(x.long()), lambda x, m: np.eye(4)[x.astype(int)]),
    "array_api": (lambda tt, x, m: tt.array_api.unique_values(tt.array_api.asarray(x))._tensor,
                  lambda x, m: np.unique(x)),
}
X = np.array([3., 1., 1., 2., 0., 3.], np.float32)
M = X > 1


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_waits_before_the_shape_is_read(tt, name):
    make, want = MAKERS[name]
    x, m = tt.tensor(X), tt.tensor(M)
    before = waits(tt)
    found = make(tt, x, m)
    assert isinstance(found, tt.Tensor) and found.device == x.device
    dtype, rank, flag, leaf = found.dtype, found.ndim, found.requires_grad, found.is_leaf
    assert waits(tt) == before
    shape = found.shape
    assert waits(tt) == before + 1
    np.testing.assert_array_equal(found.numpy(), want(X, M))
    assert (dtype, rank, flag, leaf) == (found.dtype, len(shape), found.requires_grad, found.is_leaf)
    assert len(found) == shape[0] and found.numel() == want(X, M).size
    assert waits(tt) <= before + 2


def test_many_handles_one_wait_each_at_most(tt):
    x = tt.arange(100.)
    before = waits(tt)
    parts = [x[x > limit] for limit in range(0, 90, 10)]
    assert waits(tt) == before
    assert [len(part) for part in parts] == [99 - limit for limit in range(0, 90, 10)]


def test_the_call_returns_while_the_daemon_stands_still(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix):
        x = tt.arange(6.)
        x.sum().item()
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            some, where = x[x > 2], tt.nonzero(x)
            total = x.sum()  # later lines are issued as well
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        assert some.tolist() == [3, 4, 5] and where.shape == (5, 1) and total.item() == 15


SET = {
    "as many": lambda tt, x, m: x.__setitem__(m, tt.arange(3.)),
    "one": lambda tt, x, m: x.__setitem__(m, tt.tensor([7.])),
    "a number": lambda tt, x, m: x.__setitem__(m, 7.),
    "bytes": lambda tt, x, m: x.__setitem__(m.to(tt.uint8) * 3, tt.tensor([7.])),
    "a view": lambda tt, x, m: x[1:5].__setitem__(m[1:5], tt.tensor([7.])),
    "rows": lambda tt, x, m: x.view(3, 2).__setitem__(m[:3], tt.tensor([[7., 8.]])),
    "columns": lambda tt, x, m: x.view(2, 3).__setitem__((slice(None), m[:3]), tt.tensor([[7.], [8.]])),
    "a table": lambda tt, x, m: x.view(2, 3).__setitem__(m.view(2, 3), tt.arange(3.)),
    "bags": lambda tt, x, m: x.copy_(tt.nn.functional.embedding_bag(
        m.long(), x.view(3, 2), tt.tensor([0, 1, 1]), mode="max").view(-1)),
}


@pytest.mark.parametrize("name", SET)
def test_writes_under_a_mask_wait_for_nothing(tt, name):
    x, m = tt.tensor(X), tt.tensor(M)
    before = waits(tt)
    SET[name](tt, x, m)
    assert waits(tt) == before
    y = X.copy()
    if name == "bags":
        table = y.reshape(3, 2)[M.astype(int)]
        y = np.stack([table[:1].max(0), [0, 0], table[1:].max(0)]).ravel()
    elif name in ("as many", "a table"):
        y[M] = np.arange(3)
    elif name == "a view":
        y[1:5][M[1:5]] = 7
    elif name == "rows":
        y.reshape(3, 2)[M[:3]] = [7, 8]
    elif name == "columns":
        y.reshape(2, 3)[:, M[:3]] = [[7], [8]]
    else:
        y[M] = 7
    assert x.tolist() == y.tolist()


def test_another_number_under_a_mask_comes_late_and_changes_nothing(tt):
    x, m = tt.tensor(X), tt.tensor(M)
    x[m] = tt.zeros(2)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x.tolist()
    assert x.tolist() == X.tolist()


WRITES = {
    "in place": lambda tt, x, m: x.add_(100),
    "through a view": lambda tt, x, m: x[2:].fill_(-1),
    "through detach": lambda tt, x, m: x.detach().mul_(0),
    "through data": lambda tt, x, m: x.data.zero_(),
    "a slice": lambda tt, x, m: x.__setitem__(slice(0, 3), 9),
    "data =": lambda tt, x, m: setattr(x, "data", tt.zeros(6)),
    "the mask": lambda tt, x, m: m.logical_not_(),
    "copy_": lambda tt, x, m: x.copy_(tt.zeros(6)),
    "an optimizer": lambda tt, x, m: step(tt, x),
}


def step(tt, x):
    x.grad = tt.ones(6)
    tt.optim.SGD([x], lr=1.0).step()


@pytest.mark.parametrize("write", WRITES)
def test_writes_after_the_call_are_not_seen(tt, write):
    x, m = tt.tensor(X), tt.tensor(M)
    found, where, kept = x[m], tt.nonzero(m), tt.repeat_interleave(x, m.long())
    WRITES[write](tt, x, m)
    assert found.tolist() == X[M].tolist() == kept.tolist()
    np.testing.assert_array_equal(where.numpy(), np.argwhere(M))


def test_writes_elsewhere_wait_for_nothing(tt):
    x, m, other = tt.tensor(X), tt.tensor(M), tt.zeros(3)
    found = x[m]
    before = waits(tt)
    other.add_(1)
    other[0] = 5
    assert waits(tt) == before
    del found
    x.add_(1)  # no other reference could observe it
    assert waits(tt) == before


def test_modes_and_flags_are_those_of_the_call(tt):
    x, w = tt.tensor(X), tt.tensor(X, requires_grad=True)
    m = tt.tensor(M)
    plain = x[m]
    x.requires_grad_()
    with tt.no_grad():
        silent = w[m]
    loud = w[m]
    assert not plain.requires_grad and not silent.requires_grad and loud.requires_grad
    assert plain.shape == silent.shape == loud.shape
    assert plain.grad_fn is None and silent.grad_fn is None and loud.grad_fn is not None
    with tt.inference_mode():
        inside = x[m]
    assert inside.is_inference() and not loud.is_inference()


def test_gradients(tt):
    w, m = tt.tensor(X, requires_grad=True), tt.tensor(M)
    part, twice = w[m], tt.repeat_interleave(w, m.long() + 1)
    (w * w).sum().backward()  # before they are used
    assert w.grad.tolist() == (2 * X).tolist()
    (part * 10).sum().backward()
    twice.sum().backward()
    assert w.grad.tolist() == (2 * X + 10 * M + M + 1).tolist()


def test_the_gradient_read_under_a_mask_is_the_one_of_the_call(tt):
    w = tt.tensor(X, requires_grad=True)
    (w * 2).sum().backward()
    part = w.grad[tt.tensor(M)]
    (w * 2).sum().backward()  # adds to .grad in place
    assert part.tolist() == [2.0] * int(M.sum()) and w.grad.tolist() == [4.0] * 6


def test_a_failed_producer(tt):
    bad = tt.tensor([1, 2]) // tt.tensor([0, 1])
    line = inspect.currentframe().f_lineno - 1
    found = tt.arange(2)[bad > 0]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"(?s)floor_divide.*test_pending.py:{line}"):
            len(found)
    assert tt.ones(2).sum().item() == 2


def test_operands_are_not_taken_back(tt):
    """x gets its last good value when the error is raised; results computed from the failed value have
    none."""
    x, m = tt.tensor([4, 6]), tt.tensor([True, False])
    x //= tt.tensor([0, 1])
    found = x[m]
    with pytest.raises(RuntimeError, match="floor_divide"):
        tt.synchronize()
    assert x.tolist() == [4, 6]
    with pytest.raises(RuntimeError, match="floor_divide"):
        found.numpy()


def test_what_cannot_be_made_says_so_at_every_use(tt):
    x = tt.arange(3)
    line = inspect.currentframe().f_lineno + 1
    found = tt.repeat_interleave(x, tt.tensor([1, -1, 2]))
    for use in (lambda: found.shape, lambda: found + 1, lambda: found.add_(1), lambda: x.add(found)):
        with pytest.raises(RuntimeError, match=f"(?s)repeats can not be negative.*test_pending.py:{line}"):
            use()
    with pytest.raises(RuntimeError, match="repeats can not be negative"), tt.checked():
        keep = tt.repeat_interleave(x, tt.tensor([1, -1, 2]))
    del keep
    with pytest.raises(IndexError, match="does not match"):
        x[tt.tensor([True])]  # a known mismatch is refused at its line


def test_an_unresolved_one_can_go(tt):
    x = tt.tensor(X)
    found = x[x > 1]
    gone = weakref.ref(found)
    del found
    gc.collect()
    assert gone() is None
    assert x.sum().item() == 10
    assert tt.current_session()._core.waits > 0


def test_operands_are_not_held_without_limit(tt):
    """The oldest pending tensor is made when 64 MiB or 256 tensors would be held."""
    small = tt.tensor(X)
    before = waits(tt)
    keep = [small[small > i % 3] for i in range(300)]
    assert 0 < waits(tt) - before < 60
    before = waits(tt)
    large = [tt.zeros(4 << 20).add_(i) for i in range(8)]
    made = [x[x > 3] for x in large]
    assert waits(tt) > before
    assert [len(each) for each in made] == [0] * 4 + [4 << 20] * 4
    del keep


def test_threads_resolve_the_same(tt):
    session = tt.current_session()
    x = tt.arange(1000.)
    found = x[x > 499]
    shapes, errors = [], []

    def use():
        try:
            with session.as_current():
                shapes.append(found.shape)
                shapes.append((found + 1).shape)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and shapes == [(500,)] * 12


def test_inside_transforms_and_checkpoints(tt):
    w, m = tt.tensor(X, requires_grad=True), tt.tensor(M)
    value, tangent = tt.func.jvp(lambda x: x[m] * 2, (w.detach(),), (tt.ones(6),))
    assert value.tolist() == (2 * X[M]).tolist() and tangent.tolist() == [2.0] * 3
    outside = w.detach()[m]
    assert tt.vmap(lambda x: x * 2)(outside).tolist() == (2 * X[M]).tolist()
    with pytest.raises(RuntimeError, match="vmap"):
        tt.vmap(lambda x: tt.nonzero(x))(tt.ones(2, 3))
    out = tt.utils.checkpoint.checkpoint(lambda x: (x[m] ** 2).sum(), w, use_reentrant=False)
    out.backward()
    assert w.grad.tolist() == (2 * X * M).tolist()
    hessian = tt.func.hessian(lambda x: (x[m] ** 2).sum())(w.detach())
    np.testing.assert_array_equal(hessian.numpy(), np.diag(2.0 * M))


def test_an_interrupt_ends_it(start_daemon):
    from support.clients import client, finish, wait_line

    daemon = start_daemon()
    process = client("""
        x = tt.randn(1000, 1000)
        (x @ x).sum().item()
        from support.busy import occupy
        y = occupy(tt)
        found = y[y > 0]
        early = x[x > 0]
        try:
            print("busy", flush=True)
            len(found)
            print("too early", flush=True)
        except KeyboardInterrupt:
            print("interrupted", s.cancel(), flush=True)
        for each in (found, early):
            try:
                print(each.shape)
            except tt.InterruptedOpError as error:
                print("never computed", "line" if "issued at" in str(error) else error, flush=True)
        x += 1
        print("after", len(tt.ones(3)[tt.ones(3) > 0]), flush=True)
    """, daemon.unix)
    wait_line(process, "busy")
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert status == 0 and "interrupted" in out and "after 3" in out, (out, err)
    assert out.count("never computed") >= 1, (out, err)


def test_a_session_that_ends(start_daemon, tt):
    daemon = start_daemon()
    with tt.connect(daemon.unix) as session:
        x = tt.arange(6.)
        found, kept = x[x > 2], tt.nonzero(x)
        session.close()  # waits, as for everything
    assert found.shape == (3,)
    with pytest.raises((tt.TeletensorError, RuntimeError)):
        kept.numpy()


def test_a_daemon_that_dies(tt):
    from support.daemon import Daemon

    daemon = Daemon()
    with tt.connect(daemon.unix):
        x = tt.arange(6.)
        os.kill(daemon.process.pid, signal.SIGSTOP)
        found = x[x > 2]
        daemon.process.kill()
        for _ in range(2):
            with pytest.raises(tt.SessionLostError):
                len(found)
    daemon.stop()
