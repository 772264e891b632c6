"""Collectives with gradients between ranks, and Futures."""

import threading

import pytest
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")


def test_a_model_in_two_parts(start_daemon, tt):
    """Rank 0 has the first layer and rank 1 the second: gradients as in one process."""
    code = """
F = dist.nn.functional
tt.manual_seed(1)
first, second, x = tt.nn.Linear(3, 4), tt.nn.Linear(4, 2), tt.arange(6.0).reshape(2, 3)
if N == 1:
    second(first(x).tanh()).square().sum().backward()
    tell([p.grad.tolist() for p in (*first.parameters(), *second.parameters())])
elif R == 0:
    sent = F.send(first(x).tanh(), 1, tag=7)
    assert sent.item() == 0
    sent.backward()
    tell([p.grad.tolist() for p in first.parameters()])
else:
    hidden = F.recv(tt.empty(2, 4, requires_grad=True), 0, tag=7)
    second(hidden).square().sum().backward()
    tell([p.grad.tolist() for p in second.parameters()])
"""
    daemon = start_daemon()
    ((whole,),) = told(start(daemon.unix, 1, code))
    (one,), (two,) = told(start(daemon.unix, 2, code))
    assert [*one, *two] == whole


def test_gradients_of_gradients_and_what_is_refused(start_daemon):
    found = told(start(start_daemon().unix, 2, """
F, Op = dist.nn.functional, dist.ReduceOp
x = (tt.ones(2) * (R + 1)).requires_grad_()
y = F.all_reduce(x ** 3, Op.AVG)  # (x0^3 + x1^3) / 2 on both
(first,) = tt.autograd.grad(y.sum(), x, create_graph=True)  # 2 * 3 x^2 / 2
first.sum().backward()
values = [y.tolist(), first.tolist(), x.grad.tolist()]
texts = []
for line in ("F.all_reduce(x, Op.MAX)", "F.reduce(x, 0, Op.PRODUCT)", "F.reduce_scatter(x, [x, x], Op.MIN)",
             "F.broadcast(x, 2)", "F.scatter([x], 0)", "F.scatter([x, x[:1]], 0)", "F.all_gather(3)",
             "F.all_reduce(x.detach(), Op.MAX).tolist()"):
    try:
        texts.append(str(eval(line)))
    except Exception as e:
        texts.append(f"{type(e).__name__}: {e}")
tell(values, texts)
"""))
    for rank, (values, texts) in enumerate(found):
        assert values == [[4.5, 4.5], [3.0 * (rank + 1) ** 2] * 2, [6.0 * (rank + 1)] * 2]
        for name, text in zip(("all_reduce", "reduce", "reduce_scatter"), texts[:3], strict=True):
            assert text.startswith(f"NotImplementedError: distributed.nn.functional.{name} has gradients for"), text
        assert texts[3].startswith("ValueError: global rank 2 is not in the group")
        assert texts[4].startswith("ValueError: tensors must be a list of one element for each rank")
        assert texts[5].startswith("ValueError: tensors: tensors of one dtype and shape are expected")
        assert texts[6] == "TypeError: tensor must be a Tensor, not int" and texts[7] == "[2.0, 2.0]"


def test_work_tells_its_results(start_daemon):
    found = told(start(start_daemon().unix, 2, """
x, rows = tt.ones(2) * (R + 1), [tt.zeros(2), tt.zeros(2)]
a, b = dist.all_reduce(x, async_op=True), dist.all_gather(rows, x, async_op=True)
y = tt.zeros(2)
c, d = dist.isend(x, 1 - R), dist.irecv(y, 1 - R)
(got,) = d.get_future().then(lambda f: f.value()).wait()
tell([t.tolist() for t in a.result()], [t.tolist() for t in b.get_future().wait()], got.tolist(), a.result()[0] is x)
"""))
    assert found == [[[[3.0, 3.0]], [[3.0, 3.0], [3.0, 3.0]], [3.0, 3.0], True]] * 2


def test_futures(tt, capsys):
    Future = tt.futures.Future
    first, seen = Future(), []
    chain = first.then(lambda f: f.value() + 1).then(lambda f: seen.append(f.value()) or f.value() * 2)
    failed = first.then(lambda f: f.value() / 0)
    first.add_done_callback(lambda f: [][1])  # an error of the callback is only logged
    assert not first.done() and not chain.done()
    with pytest.raises(RuntimeError, match="no result yet"):
        chain.value()
    waiting = threading.Thread(target=lambda: seen.append(chain.wait()))
    waiting.start()
    first.set_result(1)
    waiting.join()
    assert seen == [2, 4] and chain.wait() == 4 and first.done()
    assert "IndexError" in capsys.readouterr().err
    for call in (failed.wait, failed.value, tt.futures.collect_all([failed]).wait()[0].wait):
        with pytest.raises(ZeroDivisionError):
            call()
    with pytest.raises(RuntimeError, match="takes one result"):
        first.set_result(2)
    with pytest.raises(TypeError, match="takes an exception, not int"):
        Future().set_exception(3)
    several = [Future() for _ in range(3)]
    together = tt.futures.collect_all(several)
    for i in (2, 0, 1):
        assert not together.done()
        several[i].set_result(i)
    assert together.done() and tt.futures.wait_all(several) == [0, 1, 2] and tt.futures.wait_all([]) == []
