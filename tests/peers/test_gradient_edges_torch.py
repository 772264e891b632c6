"""Compares gradient edges in place of tensors, and switches of the tape, with PyTorch's."""

import pytest

torch = pytest.importorskip("torch")


def start(t):
    x = t.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    return x, y, (y * y * x).sum()


def edge(t, tensor):
    return t.autograd.graph.get_gradient_edge(tensor)


def inputs(t):
    x, y, z = start(t)
    return t.autograd.grad(z, [edge(t, y), x], retain_graph=True) + t.autograd.grad(z, edge(t, x))


def of_one_edge_and_by_name(t):
    x, y, z = start(t)
    e = edge(t, y)
    del y
    return t.autograd.grad(z, e, create_graph=True)[0], t.autograd.grad(z, inputs=(x, e))


def outputs(t):
    x, y, z = start(t)
    ones = t.ones(2)
    return (t.autograd.grad(edge(t, z), x, retain_graph=True), t.autograd.grad(edge(t, y), x, ones, retain_graph=True),
            t.autograd.grad([edge(t, y), z], x, [ones, None]))


def several_outputs(t):
    x = t.tensor([1.0, 2.0, 5.0], requires_grad=True)
    parts = x.split(1)
    z = (parts[0] * parts[1] * parts[2]).sum()
    return t.autograd.grad(z, [edge(t, part) for part in parts])


def backward(t):
    x, y, z = start(t)
    t.autograd.backward(edge(t, z), retain_graph=True)
    t.autograd.backward(z, inputs=edge(t, x), retain_graph=True)
    first = x.grad.clone()
    t.autograd.backward(z, inputs=[edge(t, y), edge(t, x)])
    return first, x.grad


def unused(t):
    x, y, z = start(t)
    other = edge(t, x * 2)
    found = t.autograd.grad(z, [other, x], allow_unused=True, retain_graph=True)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        t.autograd.grad(z, other)
    return found[0] is None, found[1]


def of_a_leaf_without_its_tensor(t):
    x, y, z = start(t)
    leaf = t.autograd.graph.GradientEdge(y.grad_fn.next_functions[0][0], 0)
    return t.autograd.grad(z, leaf)


def saved_and_written(t):
    x = t.tensor([1.0, 2.0], requires_grad=True)
    with t.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * 1
        out = (y * y).sum()
        y.mul_(5)
        out.backward()
    return x.grad


def checkpointed(t):
    x = t.tensor([1.0, 2.0], requires_grad=True)
    with t.utils.checkpoint.set_checkpoint_early_stop(False), t.utils.checkpoint.set_checkpoint_debug_enabled(False):
        t.utils.checkpoint.checkpoint(lambda x: (x.sin() * x).sum(), x, use_reentrant=False).backward()
    return x.grad


def plain(x):
    return [plain(each) for each in x] if isinstance(x, (tuple, list)) else x.tolist() if hasattr(x, "tolist") else x


@pytest.mark.parametrize("use", [inputs, of_one_edge_and_by_name, outputs, several_outputs, backward, unused,
                                 of_a_leaf_without_its_tensor, saved_and_written, checkpointed])
def test_both_say_the_same(tt, use):
    ours, theirs = plain(use(tt)), plain(use(torch))
    if use is checkpointed:
        assert ours == pytest.approx(theirs, rel=1e-6)
    else:
        assert ours == theirs


def test_what_an_edge_cannot_stand_for(tt):
    for t in (tt, torch):
        with pytest.raises(RuntimeError, match="does not\\s+require gradients"):
            edge(t, t.ones(2))
    x, y, z = start(tt)
    before = edge(tt, y)
    with pytest.raises(RuntimeError, match="must come from get_gradient_edge"):
        tt.autograd.grad(z, tt.autograd.graph.GradientEdge(y.grad_fn, 0))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="since been written in place"):
        tt.autograd.grad(z, before)
