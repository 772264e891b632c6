"""Sparse gradients of embeddings: what they cost the daemon, what waits, and where they are refused."""

import copy
import gc

import pytest

ROWS = 50_000


@pytest.fixture
def table(tt):
    return tt.nn.Embedding(6, 3, sparse=True)


def loss_of(tt, e, rows=(1, 4, 1)):
    return e(tt.tensor(list(rows))).sum()


@pytest.mark.parametrize("name, options, states", [
    ("SGD", {}, 0), ("SGD", {"momentum": 0.9}, 0), ("Adagrad", {}, 1), ("SparseAdam", {}, 2)], ids=str)
def test_the_daemon_stores_no_gradient_of_the_table(tt, shared_daemon, name, options, states):
    """With a dense gradient the peak would be one table more."""
    with tt.connect(shared_daemon.unix) as session:
        e = tt.nn.Embedding(ROWS, 64, sparse=True)
        optimizer = getattr(tt.optim, name)(e.parameters(), lr=0.1, **options)
        size = e.weight.nbytes
        rows = tt.randint(0, ROWS, (32,))
        for _ in range(12):
            optimizer.zero_grad()
            e(rows).square().sum().backward()
            optimizer.step()
        tt.synchronize()
        assert e.weight.grad._nnz() == 32
        assert session.memory()[0]["peak"] < (1.5 + states) * size
        if "momentum" in options:
            assert optimizer.state[e.weight]["momentum_buffer"]._nnz() <= 5 * 32


def test_nothing_waits(tt):
    """Reading the rows' numbers fails, so whatever is done before has not waited for them."""
    for name in ("SGD", "Adagrad", "SparseAdam"):
        e = tt.nn.Embedding(6, 3, sparse=True)
        optimizer = getattr(tt.optim, name)(e.parameters(), lr=0.1)
        rows = tt.tensor([1, 2]).index_select(0, tt.tensor([9, 9]))  # an error that is raised where a value is read
        e(rows).sum().backward()
        tt.nn.utils.clip_grad_norm_(e.parameters(), 1.0)
        optimizer.step()
        with pytest.raises(IndexError):
            e.weight.detach().numpy()


def test_rows_out_of_range_are_errors(tt, table):
    loss_of(tt, table, [1, 7]).backward()
    with pytest.raises(IndexError):
        table.weight.grad.to_dense().numpy()
    table.weight.grad = None
    loss_of(tt, table).backward()
    assert table.weight.grad.to_dense().sum(1).tolist() == [0, 6, 0, 0, 3, 0]


CAPTURED = {
    "step": lambda tt, e, o: (o.zero_grad(), loss_of(tt, e).backward(), o.step(), tt.ones(1))[3],
    "forward": lambda tt, e, o: loss_of(tt, e),
    "read": lambda tt, e, o: tt.ones(1) * (e.weight.grad is None),
    "removed": lambda tt, e, o: (e.zero_grad(), tt.ones(1))[1],
    "step alone": lambda tt, e, o: (o.step(), tt.ones(1))[1],
}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_functions_refuse(tt, table, name):
    optimizer = tt.optim.SGD(table.parameters(), lr=0.1)
    loss_of(tt, table).backward()
    before = table.weight.detach().clone()
    with pytest.raises((NotImplementedError, RuntimeError), match="captured function"):
        tt.compile(lambda x: x * CAPTURED[name](tt, table, optimizer))(tt.ones(1))
    assert table.weight.grad._nnz() == 3 and (table.weight == before).all()


def test_a_captured_function_without_gradients_may_look_up(tt, table):
    look = tt.compile(lambda rows: table(rows) * 2)
    with tt.no_grad():
        for rows in ([1, 2], [0, 5]):
            assert look(tt.tensor(rows)).tolist() == (table(tt.tensor(rows)) * 2).tolist()


def test_a_program_adds_a_dense_gradient(tt, table):
    step = tt.compile(lambda x: ((table.weight * x).sum().backward(), x + 1)[1])
    step(tt.ones(3)), step(tt.ones(3))
    table.zero_grad()
    loss_of(tt, table).backward()
    step(tt.ones(3))
    assert table.weight.grad.layout is tt.strided
    assert table.weight.grad.tolist() == [[n] * 3 for n in (1, 3, 1, 1, 2, 1)]


def test_transforms(tt, table):
    """Gradients of func.grad are sparse, too; those inside vmap are dense."""
    w = table.weight.detach()
    found = tt.func.grad(lambda w: tt.nn.functional.embedding(tt.tensor([1, 1]), w, sparse=True).sum())(w)
    assert found.is_sparse and found.to_dense().sum(1).tolist() == [0, 6, 0, 0, 0, 0]
    tt.vmap(lambda rows: table(rows).sum())(tt.tensor([[1, 2], [3, 4]])).sum().backward()
    assert table.weight.grad.layout is tt.strided
    table.zero_grad()
    y = table(tt.tensor([1, 2]))
    with pytest.raises(NotImplementedError, match="vmap"):
        tt.autograd.grad(y, table.weight, tt.ones(4, 2, 3), is_grads_batched=True)


def test_a_table_that_is_no_leaf_has_a_dense_gradient(tt, table):
    tt.nn.functional.embedding(tt.tensor([1]), table.weight * 2, sparse=True).sum().backward()
    assert table.weight.grad.sum(1).tolist() == [0, 6, 0, 0, 0, 0]


def test_the_gradient_belongs_to_the_program(tt, table):
    """Changes of it are not changes of what the graph and the caller have."""
    seed = tt.ones(2, 3)
    table(tt.tensor([1, 2])).backward(seed)
    table.weight.grad.mul_(5)
    assert seed.sum().item() == 6
    other = copy.deepcopy(table.weight.grad)
    other.zero_()
    assert table.weight.grad.sum().item() == 30 and other._nnz() == 0


def test_second_derivatives(tt, table):
    e = table.double()
    g, = tt.autograd.grad(e(tt.tensor([1, 4])).pow(3).sum(), e.weight, create_graph=True)
    found, = tt.autograd.grad(g.to_dense().sum(), e.weight)
    w = e.weight.detach().clone().requires_grad_()
    g, = tt.autograd.grad(w[tt.tensor([1, 4])].pow(3).sum(), w, create_graph=True)
    expected, = tt.autograd.grad(g.sum(), w)
    assert found.to_dense().tolist() == pytest.approx(expected.numpy())


def test_a_hook_may_run_a_backward(tt, table):
    other = tt.nn.Embedding(6, 3, sparse=True)

    def hook(g):
        with tt.enable_grad():
            loss_of(tt, other, [5]).backward()
            return tt.autograd.grad(loss_of(tt, third, [2]), third.weight)[0]

    third = tt.nn.Embedding(6, 3, sparse=True)
    table.weight.register_hook(hook)
    (loss_of(tt, table) + loss_of(tt, other, [0])).backward()
    assert table.weight.grad.to_dense().sum(1).tolist() == [0, 0, 3, 0, 0, 0] and third.weight.grad is None
    assert other.weight.grad.to_dense().sum(1).tolist() == [3, 0, 0, 0, 0, 3]


def test_a_backward_that_fails_leaves_nothing_behind(tt, table):
    """The rows that it had found are not added by the next one."""
    x = tt.ones(3, requires_grad=True)
    x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (x.sum() + loss_of(tt, table, [1])).backward()
    table.zero_grad()
    loss_of(tt, table, [2]).backward()
    assert table.weight.grad._indices().tolist() == [[2]]


def test_a_scaler_skips_a_step(tt, table):
    scaler, optimizer = tt.amp.GradScaler("cpu"), tt.optim.SGD(table.parameters(), lr=0.5)
    before = table.weight.detach().clone()
    for factor, change in ((1.0, [0, 3, 0, 0, 1.5, 0]), (float("inf"), [0, 3, 0, 0, 1.5, 0])):
        optimizer.zero_grad()
        scaler.scale(loss_of(tt, table) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (before - table.weight.detach()).sum(1).tolist() == pytest.approx(change, abs=1e-4)
    assert scaler.get_scale() == 2.0**15


def test_a_stream_of_gradients_has_the_sparse_ones(tt, table):
    model = tt.nn.Sequential(table, tt.nn.Linear(3, 2))
    for _ in range(2):
        names = {name: g.layout for name, g in tt.autograd.backward_stream(model(tt.tensor([1, 2])).sum(), model)}
        assert names == {"0.weight": tt.sparse_coo, "1.weight": tt.strided, "1.bias": tt.strided}
    assert list(tt.autograd.backward_stream((model[1].weight * 2).sum(), model))[0][0] == "1.weight"


def test_meta(tt):
    e = tt.nn.Embedding(6, 3, sparse=True, device="meta")
    e(tt.zeros(4, dtype=tt.int64, device="meta")).sum().backward()
    assert e.weight.grad.device.type == "meta" and e.weight.grad.to_dense().shape == (6, 3)
    assert repr(e.weight.grad) == ("tensor(indices=tensor(..., size=(1, 4)),\n       values=tensor(..., size=(4, 3)),\n"
                                   "       device='meta', size=(6, 3), layout=teletensor.sparse_coo)")


def test_states_are_loaded_as_copies(tt, table):
    first, second = (tt.optim.SGD(table.parameters(), lr=0.1, momentum=0.9) for _ in range(2))
    loss_of(tt, table).backward()
    first.step()
    second.load_state_dict(first.state_dict())
    second.step()
    a, b = (each.state[table.weight]["momentum_buffer"] for each in (first, second))
    assert a.to_dense().sum().item() == 9 and b.to_dense().sum().item() == pytest.approx(9 * 1.9)


def test_gradients_end_with_their_table(tt, shared_daemon):
    with tt.connect(shared_daemon.unix) as session:
        e = tt.nn.Embedding(ROWS, 64, sparse=True)
        loss_of(tt, e, range(ROWS)).backward()
        del e
        gc.collect()
        tt.synchronize()
        assert session.memory()[0]["used"] < ROWS * 64


def test_a_gradient_is_assigned(tt, table):
    w = table.weight
    w.grad = tt.sparse_coo_tensor([[1]], [[1.0, 2.0, 3.0]], (6, 3))
    assert w._has_grad and w.grad.is_sparse
    w.grad = tt.ones(6, 3)
    assert w.grad.layout is tt.strided
    w.grad = tt.ones(6, 3).to_sparse()
    tt.optim.SparseAdam([w], lr=1.0).step()
    w.grad = None
    assert w.grad is None and not w._has_grad
    for wrong, error in (("x", TypeError), (tt.ones(6, 4).to_sparse(), RuntimeError),
                         (tt.ones(6, 3).double().to_sparse(), RuntimeError)):
        with pytest.raises(error):
            w.grad = wrong
    assert w.grad is None


def test_a_state_with_a_sparse_momentum_is_saved(tt, table, tmp_path):
    optimizer = tt.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    loss_of(tt, table).backward()
    optimizer.step()
    tt.save(optimizer.state_dict(), tmp_path / "state")
    other = tt.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(tt.load(tmp_path / "state"))
    for each in (optimizer, other):
        each.step()
    a, b = (each.state[table.weight]["momentum_buffer"].to_dense() for each in (optimizer, other))
    assert a.tolist() == b.tolist() and a.sum().item() == pytest.approx(9 * 1.9)
