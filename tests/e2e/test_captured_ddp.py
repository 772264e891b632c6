"""Captured training steps of a DistributedDataParallel have the bits of the same lines without a capture."""

import pytest
from support.daemons import start_daemons
from support.ranks import start, told

pytestmark = pytest.mark.usefixtures("invariants")

# Two equal models: `lines` trains one by its lines, `captured` the other one by a program.
BEGIN = """
import copy
nn = tt.nn
def build(network=None, optimizer=tt.optim.Adam, **options):
    tt.manual_seed(R)
    network = network or (lambda: nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.0002, **options)
    return model, optimizer(model.parameters(), lr=0.05)
def step_of(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return step
def equal(one, two):
    return all(a.tolist() == b.tolist() for a, b in zip(
        one.state_dict().values(), two.state_dict().values(), strict=True))
def both(make=step_of, rounds=4, **options):
    first, second = build(**options), build(**options)
    lines, captured = make(*first), tt.compile(make(*second))
    for i in range(rounds):
        found.append([lines(x[i], y[i]).item(), captured(x[i], y[i]).item()])
    found.append(equal(first[0], second[0]))
    return first, second, lines, captured
found = []
tt.manual_seed(100 + R)
x, y = tt.randn(8, 6, 4), tt.randn(8, 6, 2)
"""


def check(found):
    for values in found:
        for each in values:
            assert each is True or each[0] == each[1], values


@pytest.mark.parametrize(("ranks", "daemons"), ((2, 1), (3, 2)))
def test_a_step_and_a_loop_of_steps(start_daemon, ranks, daemons):
    addresses = [start_daemon().unix] if daemons == 1 else [d.unix for d in start_daemons(start_daemon, daemons)]
    found = told(start(addresses, ranks, BEGIN + """
first, second, lines, captured = both()
found.append([[lines(x[i], y[i]).item() for i in range(8)], list(captured.repeat(8, data=(x, y)))])
found.append(equal(first[0], second[0]))
found.append([captured._entries, 1])
tell(*found)
"""))
    check(found)
    assert [each[0] for each in found[0][:4]] != [each[0] for each in found[1][:4]]  # the batches differ


def test_accumulation_hooks_and_other_parts(start_daemon):
    found = told(start(start_daemon().unix, 2, BEGIN + """
from teletensor.distributed.algorithms.ddp_comm_hooks import default_hooks
def accumulating(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        with model.no_sync():
            (model(x[:3]) - y[:3]).square().sum().backward()
        loss = (model(x[3:]) - y[3:]).square().sum()
        loss.backward()
        optimizer.step()
        return loss
    return step
*_, captured = both(accumulating)
found.append([captured._entries, 1])
def hooked(hook):
    def make(model, optimizer):
        model.register_comm_hook(None, hook)
        return step_of(model, optimizer)
    return make
def doubled(state, bucket):
    dist.all_reduce(bucket.buffer())
    return tt.futures.collect_all([]).then(lambda done: bucket.buffer() * 2)
*_, captured = both(hooked(default_hooks.fp16_compress_hook))
found.append([captured._entries, 1])
both(hooked(doubled))
both(network=lambda: nn.Sequential(nn.Linear(4, 6), nn.SyncBatchNorm(6), nn.ReLU(), nn.Linear(6, 2)))
both(broadcast_buffers=False, optimizer=tt.optim.SGD)
tell(*found)
"""))
    check(found)


# The settings that decide about the average are checked at each call.
def test_a_state_that_has_changed_is_another_program(start_daemon):
    found = told(start(start_daemon().unix, 2, BEGIN + """
first, second, lines, captured = both(rounds=2)
def pair(i):
    found.append([lines(x[i], y[i]).item(), captured(x[i], y[i]).item()])
with first[0].no_sync(), second[0].no_sync():
    pair(2)
pair(3)
before = captured._entries
pair(4)
found.append([captured._entries, before])
apart = {repr(first[0].module[0].weight.tolist()), repr(second[0].module[0].weight.tolist())}
found.append([len(apart), 1])
wrapped = nn.parallel.DistributedDataParallel(second[0].module)
try:
    captured(x[5], y[5])
    text = ""
except RuntimeError as error:
    text = str(error)
tell(found, text)
"""))
    check([each[0] for each in found])
    for _, text in found:
        assert "are averaged by a DistributedDataParallel that has wrapped it since" in text


def test_what_a_step_refuses(start_daemon):
    found = told(start(start_daemon().unix, 2, BEGIN + """
from teletensor.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
texts = []
def refused(run):
    try:
        run()
        texts.append("nothing")
    except RuntimeError as error:
        texts.append(str(error))
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
        return self.used(x)
model, optimizer = build(Half)
refused(lambda: tt.compile(step_of(model, optimizer))(x[0], y[0]))
model, optimizer = build()
model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
refused(lambda: tt.compile(step_of(model, optimizer))(x[0], y[0]))
def reading(state, bucket):
    return tt.futures.collect_all([]).then(lambda done: bucket.buffer() * bucket.buffer().sum().item())
model, optimizer = build()
model.register_comm_hook(None, reading)
refused(lambda: tt.compile(step_of(model, optimizer))(x[0], y[0]))
model, optimizer = build()
def joined():
    with model.join():
        refused(lambda: tt.compile(step_of(model, optimizer))(x[0], y[0]))
joined()
total = tt.ones(1)
dist.all_reduce(total)  # the ranks are at the same collective
tell(texts, total.item())
"""))
    for texts, total in found:
        assert "unused.weight" in texts[0] and "has not reached 2 parameters" in texts[0]
        assert "cannot run powerSGD_hook" in texts[1]
        assert "item()" in texts[2] or "reads" in texts[2], texts[2]
        assert "inside of Join" in texts[3]
        assert total == 2.0


def test_a_static_graph_is_captured(start_daemon):
    """In a first step that is captured all parameters must be used; after a first step that is not, fewer may."""
    found = told(start(start_daemon().unix, 2, """
nn = tt.nn
class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)
    def forward(self, x, both=False):
        return self.used(x) + (self.unused(x) if both else 0)
tt.manual_seed(1)
ddp = nn.parallel.DistributedDataParallel(Parts(), static_graph=True)
ddp(tt.ones(4, 3)).sum().backward()
@tt.compile
def step(x):
    ddp.zero_grad(set_to_none=True)
    loss = ddp(x).square().sum()
    loss.backward()
    return loss
rows = [step(tt.full((4, 3), float(R + i))).item() for i in range(3)]
rows.append([ddp.module.used.bias.grad.tolist(), ddp.module.unused.bias.grad])
whole = nn.parallel.DistributedDataParallel(Parts(), static_graph=True)
@tt.compile
def other(x, both):
    whole.zero_grad(set_to_none=True)
    loss = whole(x, both).square().sum()
    loss.backward()
    return loss
rows += [[other(tt.ones(4, 3), True).item() > 0 for _ in range(3)], step._entries, other._entries]
tell(rows)
"""))
    for (rows,) in found:
        gradient, unused = rows[3]
        assert unused is None and len(gradient) == 2 and rows[4:] == [[True] * 3, 1, 2], rows
    assert found[0][0][3] == found[1][0][3]
