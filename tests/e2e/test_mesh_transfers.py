"""Tensors that are sent from rank to rank of a mesh, with their gradients; pipelines."""

import gc

import numpy as np
import pytest
import teletensor as tt
import teletensor.distributed as dist
from support.daemon import Daemon
from support.daemons import start_daemons
from support.invariants import hold
from teletensor.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


@pytest.fixture(scope="module")
def daemons():
    """Two daemons that are peers; nothing of the tests remains on them afterwards."""
    running = start_daemons(Daemon, 2)
    yield running
    gc.collect()
    for daemon in running:
        hold(daemon)
    problems = [p for daemon in running if (p := daemon.stop())]
    assert not problems, "\n".join(problems)


@pytest.fixture
def mesh(daemons):
    """Three ranks on two daemons."""
    with dist.connect_mesh([daemons[0].unix, daemons[1].unix, daemons[0].unix]) as made:
        yield made


def on(rank, values, **options):
    with rank.as_current():
        return tt.tensor(values, **options)


def test_values_and_dtypes(mesh):
    for dtype in (tt.float32, tt.bfloat16, tt.int64, tt.bool, tt.complex64):
        x = on(mesh[0], [[1, 0], [3, 1]]).to(dtype)
        y = x.to(mesh[1])
        assert y._session is mesh[1].session._core and y.dtype == dtype and y.tolist() == x.tolist()
        assert y.to(mesh[1]) is y and y.to(mesh[2], tt.float64).dtype == tt.float64
    assert on(mesh[2], np.zeros((0, 3))).t().to(device=mesh[0]).shape == (3, 0)
    view = on(mesh[0], np.arange(12.0)).reshape(3, 4)[:, 1::2]
    sent = view.to(mesh[1])
    view += 1  # the receiver has the value at the time of the send
    assert sent.tolist() == [[1, 3], [5, 7], [9, 11]]


def test_a_tensor_of_no_rank_goes_by_the_program(mesh, daemons):
    with tt.connect(daemons[1].unix):
        x = tt.arange(3.0)
        assert x.to(mesh[0]).tolist() == [0, 1, 2]
        w = tt.ones(2, requires_grad=True)
        with pytest.raises(ValueError, match="requires grad and is of .*no rank of the mesh"):
            w.to(mesh[0])
        assert mesh[0].copy(w).requires_grad
    with pytest.raises(TypeError, match="invalid argument"):
        mesh[0].copy(tt.ones(1)).to(mesh)


def test_a_module_stays_in_its_session(mesh):
    with mesh[0].as_current():
        module = tt.nn.BatchNorm1d(2)
    before = {name: value.tolist() for name, value in module.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"cannot move to another session.*mesh\[i\]\.copy\(module\)"):
        module.to(mesh[1])
    assert {name: value.tolist() for name, value in module.state_dict().items()} == before
    assert mesh[1].copy(module).weight.tolist() == [1.0, 1.0]


def test_a_backward_goes_on_in_the_sessions_that_the_tensor_came_from(mesh):
    a, b = on(mesh[0], [1.0, 2.0], requires_grad=True), on(mesh[1], [3.0, 4.0], requires_grad=True)
    c = on(mesh[2], [5.0, 6.0], requires_grad=True)

    def loss(to, a, b, c):
        first = (a * a).sin()  # branches, and joins again in the session in which it began
        second = to(first, 1) * b
        third = (to(second, 2) + to(a, 2)).exp() * c
        return (to(third, 0) * first + to(to(second, 2), 0)).sum()

    whole = [each.detach().clone().requires_grad_() for each in (a, mesh[0].copy(b), mesh[0].copy(c))]
    loss(lambda x, rank: x, *whole).backward()
    for again in range(1, 3):
        loss(lambda x, rank: x.to(mesh[rank]), a, b, c).backward()
        for own, other in zip((a, b, c), whole, strict=True):
            np.testing.assert_allclose(own.grad.tolist(), again * np.array(other.grad.tolist()), rtol=1e-5)


def test_retained_graphs_hooks_and_second_derivatives(mesh):
    w = on(mesh[0], [2.0, 3.0], requires_grad=True)
    seen = []
    cube = w ** 3
    cube.register_hook(lambda g: seen.append(g.tolist()))
    square = (cube.to(mesh[1]) ** 2).sum()
    square.backward(retain_graph=True)
    square.backward(create_graph=True)
    assert w.grad.tolist() == [2 * 6 * 2.0 ** 5, 2 * 6 * 3.0 ** 5] and len(seen) == 2
    first, w.grad = w.grad, None
    first.sum().backward()
    assert w.grad.tolist() == [30 * 2.0 ** 4, 30 * 3.0 ** 4]
    with pytest.raises(RuntimeError, match="another session.*backward"):
        tt.autograd.grad((w * 1).to(mesh[1]).sum(), w)
    loop = (w * 2).to(mesh[1]).to(mesh[0]).sum() + w.sum()
    with pytest.raises(RuntimeError, match="another session.*backward"):  # it would be a part of the gradient
        tt.autograd.grad(loop, w)
    with tt.no_grad():
        assert not w.to(mesh[1]).requires_grad
    assert not w.detach().to(mesh[1]).requires_grad


def test_used_up_graphs_are_refused(mesh):
    w = on(mesh[0], [2.0], requires_grad=True)
    y = w.exp().to(mesh[1]).exp()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    mesh.synchronize()


def parts():
    return [tt.nn.Sequential(tt.nn.Linear(4, 8), tt.nn.Tanh()), tt.nn.Sequential(tt.nn.Linear(8, 8), tt.nn.Tanh()),
            tt.nn.Linear(8, 2)]


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("batches", [3, 6])
def test_a_pipeline_equals_the_whole_network(mesh, schedule, batches):
    whole = parts()
    random = np.random.default_rng(batches)
    x, y = (random.standard_normal((12, n)).astype(np.float32) for n in (4, 2))
    loss = tt.nn.functional.mse_loss(tt.nn.Sequential(*whole)(tt.tensor(x)), tt.tensor(y))
    loss.backward()
    stages = [PipelineStage(mesh[i].copy(each), i, 3, mesh[i]) for i, each in enumerate(whole)]
    steps = schedule(stages, batches, tt.nn.functional.mse_loss)
    losses = []
    out = steps.step(tt.tensor(x), target=tt.tensor(y), losses=losses)
    assert np.mean([each.item() for each in losses]) == pytest.approx(loss.item(), rel=1e-5) and len(losses) == batches
    for stage, each in zip(stages, whole, strict=True):
        for p, q in zip(stage.submod.parameters(), each.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(steps.eval(tt.tensor(x)).numpy(), out.detach().numpy(), rtol=1e-5)
    before = [p.grad.tolist() for p in stages[0].submod.parameters()]
    schedule(stages, batches, tt.nn.functional.mse_loss, scale_grads=False).step(tt.tensor(x), target=tt.tensor(y))
    for p, old in zip(stages[0].submod.parameters(), before, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), (1 + batches) * np.array(old), rtol=1e-4, atol=1e-5)


def test_a_pipeline_holds_no_more_than_its_order_says():
    def most(order):
        held = [0]
        for kind, _ in order:
            held.append(held[-1] + (1 if kind == "forward" else -1))
        return max(held), held[-1]

    def stub(count, stages, kind):
        made = kind.__new__(kind)
        made._count, made._stages = count, [None] * stages
        return made

    for stage in range(4):
        assert most(stub(8, 4, Schedule1F1B)._order(stage)) == (4 - stage, 0)
        assert most(stub(8, 4, ScheduleGPipe)._order(stage)) == (8, 0)


def test_wrong_pipelines(mesh):
    first = tt.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="a rank of a mesh"):
        PipelineStage(first, 0, 2, "cpu")
    with pytest.raises(ValueError, match="out of range"):
        PipelineStage(first, 2, 2, mesh[0])
    with pytest.raises(ValueError, match="parameter weight is not on"):
        PipelineStage(first, 0, 2, mesh[1])
    stages = [PipelineStage(mesh[i].copy(first), i, 2, mesh[i]) for i in range(2)]
    with pytest.raises(ValueError, match="all stages"):
        ScheduleGPipe(stages[1], 2)
    with pytest.raises(ValueError, match="greater than or equal to the number"):
        Schedule1F1B(stages, 1)
    steps = Schedule1F1B(stages, 2, tt.nn.functional.mse_loss)
    with pytest.raises(ValueError, match="does not split"):
        steps.step(tt.ones(3, 2), target=tt.ones(3, 2))
    with pytest.raises(ValueError, match="a target is needed"):
        steps.step(tt.ones(2, 2))
    with pytest.raises(ValueError, match="needs loss_fn"):
        ScheduleGPipe(stages, 2).step(tt.ones(2, 2))
    assert ScheduleGPipe(stages, 2).eval(tt.ones(2, 2)).shape == (2, 2)
