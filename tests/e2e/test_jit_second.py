"""Second and higher derivatives through captured functions equal those of the plain function."""

import numpy as np
import pytest
import teletensor as tt
from teletensor import nn

F = nn.functional


def tensor(seed, *shape):
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def chain(x, y):
    return (x * y).sin() + x.exp() * y.square(), (x @ y.t()).tanh()


def views(x, y):
    heads = (x @ y.t()).reshape(2, 2, 4).transpose(0, 1)
    return (heads * heads[:, :, :1]).sum(2), x.t()[1:].square() * y[0, :1]


def writes(x, y):
    h = x * y
    h.sigmoid_()
    h.mul_(x)
    return h, F.relu(h - 0.2, inplace=True)


def numbers(x, y):
    return x.pow(3) * 0.5 + tt.arange(3) * y, (y / (x.square() + 1.5)).mean()


CASES = [chain, views, writes, numbers]


def derivatives(function, arguments, order=3):
    """Derivatives of the sum of squares of all results, up to that order."""
    given = [a.detach().clone().requires_grad_() for a in arguments]
    value = sum((each * each).sum() for each in function(*given))
    out = [value]
    for _ in range(order):
        firsts = tt.autograd.grad(value, given, create_graph=True, allow_unused=True)
        out += [f for f in firsts if f is not None]
        value = sum((f * f).sum() for f in firsts if f is not None) * 1e-2
    return [o.detach() for o in out]


def close(found, right):
    assert len(found) == len(right)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=3e-4, atol=3e-4 * (1 + abs(b.numpy()).max()))


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", ["compile", "trace", "load"])
def test_they_are_the_functions_own(function, way, tmp_path):
    arguments = [tensor(1, 4, 3), tensor(2, 4, 3)]
    compiled = tt.compile(function)
    if way != "compile":
        compiled = tt.jit.trace(function, *[a.clone().requires_grad_() for a in arguments])
    if way == "load":
        tt.jit.save(compiled, tmp_path / "f.safetensors")
        compiled = tt.jit.load(tmp_path / "f.safetensors")
    right = derivatives(function, arguments)
    for _ in range(2):
        close(derivatives(compiled, arguments), right)


def net_of(seed):
    tt.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 1))


def test_of_a_module_with_its_weights_buffers_and_dropout():
    net, twin = net_of(0), net_of(0)
    compiled = tt.compile(net)
    for seed in range(3):
        for m, call in ((net, compiled), (twin, twin)):
            tt.manual_seed(seed)
            x = tensor(seed, 6, 3).requires_grad_()
            m.zero_grad()
            (slope,) = tt.autograd.grad(call(x * 2).sum(), x, create_graph=True)
            ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        close([p.grad for p in net.parameters() if p.grad is not None],
              [p.grad for p in twin.parameters() if p.grad is not None])
        close(list(net.buffers()), list(twin.buffers()))


def test_by_finite_differences():
    compiled = tt.compile(lambda x: (x.sin() * x.exp(), x.tanh() @ x.t()))
    x = tensor(3, 3, 3).double().requires_grad_()
    assert tt.autograd.gradgradcheck(compiled, (x,))


def test_what_is_read_from_outside_and_written_since_is_refused():
    w = tensor(5, 3).requires_grad_()
    compiled = tt.compile(lambda x: (x * w).sin())
    for _ in range(2):
        x = tensor(6, 3).requires_grad_()
        y = compiled(x).sum()
    with tt.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tt.autograd.grad(y, x, create_graph=True)
    (found,) = tt.autograd.grad(compiled(x).sum(), x, create_graph=True)
    (second,) = tt.autograd.grad(found.sum(), x)
    close([second], [(-(x * w).sin() * w * w).detach()])


def test_an_argument_that_is_written_since_counts_as_it_was():
    compiled = tt.compile(lambda x: x.sin())
    for _ in range(2):
        x = tensor(7, 3).requires_grad_()
        z = x * 1
        y = compiled(z).sum()
    right = -x.detach().sin()
    with tt.no_grad():
        z.mul_(3)
    (first,) = tt.autograd.grad(y, x, create_graph=True)
    (second,) = tt.autograd.grad(first.sum(), x)
    close([second], [right])


def test_what_has_none_says_so(tmp_path):
    @tt.compile
    def part(x):
        h = x * 2
        h[0].exp_()
        return h

    @tt.jit.script
    def halved(x):
        if x.sum() > 0:
            x = x * x * 0.5
        return x

    halved(tensor(8, 2, 3).requires_grad_())
    tt.jit.save(halved, tmp_path / "f.safetensors")
    loaded = tt.jit.load(tmp_path / "f.safetensors")
    for function, why in ((part, "part of a tensor"), (loaded, "branches or loops")):
        for _ in range(2):
            x = tensor(8, 2, 3).requires_grad_()
            y = function(x).sum()
        with pytest.raises(RuntimeError, match=f"no second derivative .*{why}"):
            tt.autograd.grad(y, x, create_graph=True)
