"""Captured functions notice what has changed of a tensor from outside of which they read no data: its shape,
strides, dtype, requires_grad, gradient and history."""

import pytest
import teletensor as tt
from teletensor import nn


class Held:
    """Refers to a tensor that the program changes."""


held = Held()

# What a function reads of the tensor `t`, as a number.
FACTS = {
    "shape": lambda t: t.shape[-1] if t.shape else 0,
    "size": lambda t: t.size(0),
    "stride": lambda t: sum(t.stride()),
    "storage_offset": lambda t: t.storage_offset(),
    "len": lambda t: len(t),
    "numel": lambda t: t.numel(),
    "dim": lambda t: t.dim() + 10 * t.ndim,
    "nbytes": lambda t: t.nbytes + t.element_size(),
    "is_contiguous": lambda t: 2 if t.is_contiguous() else 3,
    "dtype": lambda t: {tt.float32: 2, tt.float64: 3, tt.float16: 4, tt.bfloat16: 5}[t.dtype],
    "is_floating_point": lambda t: 2 if t.is_floating_point() else 3,
    "device": lambda t: len(str(t.device)),
    "requires_grad": lambda t: 2 if t.requires_grad else 3,
    "is_leaf": lambda t: 2 if t.is_leaf else 3,
    "grad_fn": lambda t: 2 if t.grad_fn is None else 3,
    "grad": lambda t: 2 if t.grad is None else 3,
    "shape of the gradient": lambda t: 2 if t.grad is None else t.grad.numel(),
    "identity of the gradient": lambda t: 2 if t.grad is held.grad else 3,
    "identity of no gradient": lambda t: 2 if t.grad is not held.grad else 3,
    "gradient by getattr": lambda t: 2 if getattr(t, "grad", 0) is None else 3,
    "version": lambda t: t._version,
    "view": lambda t: 2 if t._is_view() else 3,
    "zeros_like": lambda t: tt.zeros_like(t).numel(),
    "zeros of the shape": lambda t: tt.zeros(t.shape).numel(),
    "new_zeros": lambda t: t.new_zeros(2).element_size(),
    "attribute of an argument": lambda t: _shape_of(tensor=t),
    "in a list": lambda t: sum(each.numel() for each in [t, t]),
    "requires_grad of all": lambda t: sum(p.numel() for p in (t,) if p.requires_grad),
}


def _shape_of(*, tensor):
    return sum(tensor.shape)


def _grow(t):
    t.data = tt.ones(5, 3)


def _halve(t):
    t.data = t.data.half()


def _transpose_data(t):
    t.data = tt.ones(3, 2).t()


def _part(t):
    t.data = tt.ones(4, 3)[2:]


def _toggle(t):
    t.requires_grad_(not t.requires_grad)


def _history(t):
    t.requires_grad_(False)
    t.mul_(nn.Parameter(tt.ones(())))


def _with_grad(t):
    t.grad = tt.ones_like(t)


def _held_grad(t):
    t.grad = held.grad = tt.ones_like(t)


def _write(t):
    with tt.no_grad():
        t.add_(1)


CHANGES = {
    "data": [_grow, _transpose_data],
    "dtype": [_halve, lambda t: setattr(t, "data", t.data.double())],
    "part": [_part],
    "resize": [lambda t: t.requires_grad_(False).resize_(7, 2), lambda t: t.resize_(2, 3)],
    "transposed in place": [lambda t: t.detach_().t_(), lambda t: t.t_()],
    "unsqueezed in place": [lambda t: t.detach_().unsqueeze_(0), lambda t: t.squeeze_(0)],
    "requires_grad": [_toggle, _toggle],
    "history": [_history],
    "gradient": [_with_grad, _held_grad, _with_grad, lambda t: setattr(t, "grad", None)],
    "write": [_write],
}


def same(compiled, function, change, x):
    change()
    for _ in range(2):
        right, found = function(x), compiled(x)
        assert found.tolist() == right.tolist() and found.dtype == right.dtype


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("operand", [False, True], ids=["fact only", "operand too"])
def test_a_changed_fact_is_seen(fact, change, operand):
    read = FACTS[fact]
    t = nn.Parameter(tt.ones(2, 3))
    held.grad = None

    def function(x):
        return (x + t.detach().sum() if operand else x) * read(t)

    compiled, x = tt.compile(function), tt.ones(2)
    for each in (lambda t: None, lambda t: None, *CHANGES[change]):
        same(compiled, function, lambda each=each: each(t), x)
    calls = compiled._entries
    for _ in range(3):
        compiled(x)
    assert compiled._entries == calls  # nothing changes, nothing is captured


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tt.ones(2, 2))
        self.register_buffer("scale", tt.ones(3))


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.layers = nn.ModuleList([Inner()])

    def forward(self, x):
        trained = sum(p.numel() for p in self.parameters() if p.requires_grad)
        x = x.to(self.inner.weight.dtype) / 3 * self.layers[0].weight.shape[0] + trained
        return x + len(self.inner.scale)


@pytest.mark.parametrize("change", [
    lambda m: m.double(), lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(tt.float64),
    lambda m: m.inner.requires_grad_(False), lambda m: m.layers[0].weight.requires_grad_(False),
    lambda m: setattr(m.layers[0].weight, "data", tt.ones(5, 2)),
    lambda m: setattr(m.inner, "scale", tt.ones(7)), lambda m: m.inner.scale.resize_(9)])
@pytest.mark.parametrize("way", ["compile", "trace"])
def test_facts_of_parameters_of_nested_modules(change, way):
    module, x = Outer(), tt.ones(2)
    compiled = tt.compile(module) if way == "compile" else tt.jit.trace(module, x)
    for each in (lambda m: None, change):
        same(compiled, module, lambda each=each: each(module), x)


weight = None  # each test sets it


def scaled_by_size(x):
    return x * weight.shape[0] + weight.numel()


def cast_to_weight(x):
    return x.to(weight.dtype) / 3


def scaled_if_trained(x):
    if weight.requires_grad:
        return x * 2
    return x * 3


@pytest.mark.parametrize("change", [_grow, _halve, _toggle])
@pytest.mark.parametrize("function", [scaled_by_size, cast_to_weight, scaled_if_trained])
def test_scripts_are_compiled_again(function, change, monkeypatch):
    monkeypatch.setitem(globals(), "weight", nn.Parameter(tt.ones(2, 3)))
    scripted, x = tt.jit.script(function), tt.ones(2)
    for each in (lambda t: None, change):
        same(scripted, function, lambda each=each: each(weight), x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tt.ones(2))

    def forward(self, x):
        return x * self.weight.shape[0] + self.weight.sum()


@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: setattr(m.weight, "data", tt.ones(5)),
                                    lambda m: m.weight.requires_grad_(False)])
def test_a_scripted_module_with_another_weight(change):
    module, x = Scaled(), tt.ones(2)
    scripted = tt.jit.script(module)
    for each in (lambda m: None, change):
        same(scripted, module, lambda each=each: each(module), x)


def test_a_gradient_that_the_function_writes_is_no_fact_of_outside():
    w, x = nn.Parameter(tt.ones(2)), tt.ones(2)

    @tt.compile
    def step(x):
        w.grad = None
        had = 1 if w.grad is None else 100
        (w * x).sum().backward()
        return w.grad * had

    for k in (1.0, 2.0, 3.0):
        assert step(x * k).tolist() == [k, k]
    calls = step._entries
    for k in (4.0, 5.0):
        assert step(x * k).tolist() == [k, k]
    assert step._entries == calls


@pytest.mark.parametrize("fact", ["requires_grad", "is_leaf", "grad", "dtype", "stride", "numel"])
def test_facts_of_arguments(fact):
    read = FACTS[fact]
    function = lambda x: x.detach() * read(x)  # noqa: E731
    compiled = tt.compile(function)
    leaf = nn.Parameter(tt.ones(2, 3))
    with_grad = nn.Parameter(tt.ones(2, 3))
    with_grad.grad = tt.ones(2, 3)
    for x in (tt.ones(2, 3), leaf, leaf * 2, with_grad, leaf, tt.ones(2, 3, dtype=tt.float64),
              tt.ones(3, 2).t(), tt.ones(4)):
        same(compiled, function, lambda: None, x)
