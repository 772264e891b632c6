"""Compares hooks of all modules with PyTorch's: which are called, in which order, with which arguments, and
the effect of what they return."""

import contextlib

import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def shape(x):
    return tuple(tuple(t.shape) if t is not None else None for t in (x if isinstance(x, tuple) else (x,)))


def calls(t):
    """The calls around the forward and the backward of a network, with hooks of all modules and its own."""
    every = t.nn.modules.module
    seen = []
    net = t.nn.Sequential(t.nn.Linear(3, 4), t.nn.ReLU(), t.nn.Linear(4, 2))

    def note(what):
        return lambda module, *facts: seen.append((what, type(module).__name__, *map(shape, facts)))

    def doubled(module, args, result):
        return result * 2 if isinstance(module, t.nn.ReLU) else None

    with contextlib.ExitStack() as hooks:
        for handle in (
                net[0].register_forward_pre_hook(note("own before")),
                net[0].register_forward_hook(note("own after")),
                every.register_module_forward_pre_hook(note("before")),
                every.register_module_forward_hook(note("after")),
                every.register_module_forward_hook(doubled),
                every.register_module_forward_hook(lambda m, a, k, r: seen.append(sorted(k)), with_kwargs=True),
                net[2].register_full_backward_pre_hook(note("own gradient")),
                net[2].register_full_backward_hook(note("own done")),
                every.register_module_full_backward_pre_hook(note("gradient")),
                every.register_module_full_backward_hook(note("done"))):
            hooks.enter_context(handle)
        x = t.ones(5, 3, requires_grad=True)
        net(x).sum().backward()
    count = len(seen)
    with contextlib.suppress(RuntimeError), every.register_module_forward_hook(note("always"), always_call=True):
        net[0](t.ones(7))
    net(x)
    return seen, len(seen) - count, tuple(x.grad.shape)


def test_calls(tt, torch):
    assert calls(tt) == calls(torch)


def test_result_is_replaced(tt):
    net = tt.nn.ReLU()
    with tt.nn.modules.module.register_module_forward_hook(lambda module, args, result: result + 1):
        assert net(tt.ones(2)).tolist() == [2, 2]
    assert net(tt.ones(2)).tolist() == [1, 1]
