import sys
sys.path.insert(0, "tests")
import pytest
from support.ranks import start, told
from support.daemons import start_daemons

STEP = """
@tt.compile
def step(x):
    y = x * 2
    dist.all_reduce(y)
    return y + x

x = tt.arange(3.0) + R
found = [step(x).tolist() for _ in range(3)]
prog = step.program
tell(found, len(prog))
"""
def test_a(start_daemon):
    f = told(start(start_daemon().unix, 2, STEP))
    print(f)

DDP = """
import numpy as np
def build(seed):
    tt.manual_seed(seed)
    net = tt.nn.Sequential(tt.nn.Linear(4, 8), tt.nn.BatchNorm1d(8), tt.nn.ReLU(), tt.nn.Linear(8, 2))
    model = tt.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001)
    opt = tt.optim.Adam(model.parameters(), lr=0.01)
    return model, opt
def make(model, opt):
    def step(x, y):
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss
    return step
m1, o1 = build(R); m2, o2 = build(R)
s1, s2 = make(m1, o1), tt.compile(make(m2, o2))
tt.manual_seed(10 + R)
xs, ys = tt.randn(6, 16, 4), tt.randn(6, 16, 2)
a = [s1(xs[i], ys[i]).item() for i in range(6)]
b = [s2(xs[i], ys[i]).item() for i in range(6)]
same = all((p == q).all().item() for p, q in zip(m1.state_dict().values(), m2.state_dict().values()))
c = list(tt.jit._compiled.repeat(s2, 6, (xs, ys), ()))
d = [s1(xs[i], ys[i]).item() for i in range(6)]
same2 = all((p == q).all().item() for p, q in zip(m1.state_dict().values(), m2.state_dict().values()))
tell(a, b, same, same2, c == d, s2._entries)
"""
def test_b(start_daemon):
    f = told(start(start_daemon().unix, 2, DDP))
    print(f)
