"""Functions as attributes of a class: like PyTorch's built-in functions they do not bind, while methods of
Tensor do."""

import copy
import inspect
import pickle

import numpy as np
import pytest


def of_class(function):
    return type("Net", (), {"f": function})()


FUNCTIONS = """tanh relu exp add sum cat where tensor matmul split zeros conv2d abs_ clamp softmax lstm_cell from_numpy
linalg.norm linalg.inv fft.fft special.round special.expit nn.functional.gelu nn.functional.linear
nn.functional.cross_entropy nn.functional.relu"""


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_no_function_binds(tt, name):
    space, _, last = name.rpartition(".")
    place = tt
    for part in filter(None, space.split(".")):
        place = getattr(place, part)
    function = getattr(place, last)
    assert of_class(function).f is function and inspect.isroutine(function)


def test_calls_of_class_attributes(tt):
    class Block(tt.nn.Module):
        act, loss, join = tt.tanh, tt.nn.functional.cross_entropy, tt.cat
        pooled = tt.std  # takes out=, too

        def forward(self, x):
            return self.act(x) + self.pooled(x, dim=0), self.join([x, x])

    x = tt.tensor([[1.0, 2.0], [3.0, 5.0]])
    first, second = Block()(x)
    assert tt.equal(first, x.tanh() + x.std(0)) and tt.equal(second, tt.cat([x, x]))
    assert Block().loss(x, tt.tensor([0, 1])).item() == tt.nn.functional.cross_entropy(x, tt.tensor([0, 1])).item()


def test_methods_bind(tt):
    x = tt.tensor([-1.0, 4.0])

    class Own(tt.Tensor):
        bent = tt.Tensor.relu

        def relu(self):
            return super().relu() + 1

    assert Own(x).bent().tolist() == [0.0, 4.0] and Own(x).relu().tolist() == [1.0, 5.0]
    for name, args in (("add", (1,)), ("relu", ()), ("flatten", ()), ("float_power", (2,)), ("prelu", (tt.ones(1),)),
                       ("std", ()), ("__pos__", ()), ("add_", (1,)), ("multiply", (x,))):
        method = getattr(tt.Tensor, name)
        bound = getattr(tt.ones(2), name)
        assert tt.equal(bound(*args), method(tt.ones(2), *args)), name
        assert method is getattr(tt.Tensor, name) and inspect.isroutine(method) and inspect.isroutine(bound)
        assert copy.deepcopy(method) is method and pickle.loads(pickle.dumps(method)) is method
        assert method.__doc__ and method.__name__ == bound.__name__
    assert repr(tt.Tensor.relu) == "<method 'relu' of 'teletensor.Tensor' objects>"
    assert tt.ones(3).add(other=1, alpha=2).tolist() == [3.0] * 3
    with pytest.raises(TypeError, match="missing required argument"):
        tt.ones(3).add()
    with pytest.raises(TypeError, match="argument 'other' must be Tensor or a number, not str"):
        tt.Tensor.add(tt.ones(3), "a")


def test_out_of_wrapped_functions(tt):
    """A function takes out= and NumPy's names of parameters at once, and checks its arguments."""
    x, out = tt.tensor([[1.0, 2.0], [3.0, 5.0]]), tt.empty(2)
    assert tt.std(x, axis=0, out=out) is out
    np.testing.assert_allclose(out.numpy(), x.numpy().std(0, ddof=1), rtol=1e-6)
    with pytest.raises(TypeError, match=r"std\(\): argument 'input' \(position 1\) must be Tensor, not list"):
        tt.std([1.0], out=out)
    with pytest.raises(TypeError, match="out"):
        x.std(0, out=out)
    for options in ({"dim": 0, "axis": 1}, {"axis": 1, "dim": 0}):
        with pytest.raises(TypeError, match=r"std\(\) got multiple values for argument 'dim'"):
            tt.std(x, **options)


def test_captured_and_scripted_functions_see_them(tt):
    class Net(tt.nn.Module):
        act = tt.relu

        def forward(self, x):
            return self.act(x) + tt.Tensor.exp(x) + x.flatten().sum()

    net, x = Net(), tt.tensor([-1.0, 2.0])
    want = x.relu() + x.exp() + x.sum()
    for call in (tt.compile(net), tt.jit.script(net)):
        for _ in range(3):
            assert tt.allclose(call(x), want)
    compiled = tt.compile(net)
    compiled(x), compiled(x)
    Net.act = tt.tanh  # seen by the next call
    assert tt.allclose(compiled(x), x.tanh() + x.exp() + x.sum())
