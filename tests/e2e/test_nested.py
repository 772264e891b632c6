"""Nested tensors: what bad input does, what waits, and how functions of the package reach their nested forms."""

import pytest


@pytest.fixture
def x(tt):
    return tt.nested.nested_tensor([tt.ones(3, 2), tt.ones(1, 2) * 2])


BAD = [
    (lambda tt: tt.nested.nested_tensor([]), "the list has no tensors"),
    (lambda tt: tt.nested.nested_tensor(tt.ones(2, 3)), "Expected a list or tuple"),
    (lambda tt: tt.nested.nested_tensor([1.0, 2.0]), "Cannot represent given tensor list"),
    (lambda tt: tt.nested.nested_tensor([tt.ones(2, 3), tt.ones(3, 4)]), r"shapes of the form \(B, \*, D_0"),
    (lambda tt: tt.nested.nested_tensor([tt.ones(2)], layout=tt.strided), "layout teletensor.strided is not supported"),
    (lambda tt: tt.nested.nested_tensor([[1, 2]], requires_grad=True), "floating"),
    (lambda tt: tt.nested.as_nested_tensor([1, 2]), "list / tuple of tensors"),
    (lambda tt: tt.nested.nested_tensor_from_jagged([1.0], tt.tensor([0, 1])), "values must be a tensor"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4)), "At least one of offsets or lengths"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0.0, 4.0])), "a vector of integers"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([[0, 4]])), "a vector of integers"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), [0, 4]), "a vector of integers"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0, 5])), "must ascend from 0 to at most"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0, 3, 2])), "must ascend"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([1, 4])), "must ascend from 0"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0, -1])), "must ascend"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), lengths=tt.tensor([5, -1])), "must not be negative"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), lengths=tt.tensor([2**62])), "must ascend"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0, 2, 4]), tt.tensor([3, 1])), "lengths"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0, 2, 4]), tt.tensor([2])), "lengths must"),
    (lambda tt: tt.nested.nested_tensor([tt.ones(3)]).to_padded_tensor(0.0, (1, 2)), "Truncation is not supported"),
    (lambda tt: tt.nested.nested_tensor([tt.ones(3)]).to_padded_tensor(0.0, (3,)), "Truncation is not supported"),
    (lambda tt: tt.nested.nested_tensor_from_jagged(tt.ones(4), tt.tensor([0, 4]), jagged_dim=2), "jagged_dim <=1"),
    (lambda tt: tt.nested.narrow(tt.ones(2, 3), 1, 2, 2), "inside of the size 3"),
    (lambda tt: tt.nested.narrow(tt.ones(2, 3), 1, tt.tensor([0, 1, 2]), 1), "must be 2 slices"),
    (lambda tt: tt.nested.to_padded_tensor(tt.ones(2, 3), 0.0), "expected a nested tensor"),
]


@pytest.mark.parametrize("make, text", BAD)
def test_bad_parts(tt, make, text):
    with pytest.raises((RuntimeError, TypeError, ValueError), match=text):
        make(tt)


CALLS = [
    (lambda tt, x: x + tt.nested.nested_tensor([tt.ones(1, 2), tt.ones(3, 2)]), "with inputs of shapes"),
    (lambda tt, x: x + tt.ones(2, 3, 2), "does not broadcast"),
    (lambda tt, x: x + tt.ones(1, 1, 1, 2), "does not broadcast"),
    (lambda tt, x: x.sum(0), "reducing across the batch dimension"),
    (lambda tt, x: x.sum((1, -2)), "appears multiple times"),
    (lambda tt, x: x.amax(5), "Dimension out of range"),
    (lambda tt, x: tt.nested.nested_tensor([tt.ones(0, 2), tt.ones(1, 2)]).amax(1), "no elements along the ragged"),
    (lambda tt, x: x.long().mean(1), "floating point or complex"),
    (lambda tt, x: tt.cumsum(x, 1), "no form for nested tensors"),
    (lambda tt, x: x.reshape(4, 2), "no form for nested tensors"),
    (lambda tt, x: tt.add(x, x, out=x), "out= is not supported"),
    (lambda tt, x: x.transpose(1, 2) @ tt.ones(2, 2, 2, 2), "do not fit"),
    (lambda tt, x: x @ x, "do not fit"),
    (lambda tt, x: x.transpose(0, 1), "is its batch"),
    (lambda tt, x: x.flatten(), "cannot be flattened"),
    (lambda tt, x: x[:1], "indexed with an integer"),
    (lambda tt, x: x[2], "out of range for a batch of 2"),
    (lambda tt, x: tt.nn.functional.layer_norm(x.transpose(1, 2), (3,)), "cannot be normalised"),
    (lambda tt, x: tt.nn.functional.linear(x.transpose(1, 2), tt.ones(3, 3)), "last dimension is ragged"),
    (lambda tt, x: tt.nn.functional.scaled_dot_product_attention(x, x, tt.ones(2, 3, 2)), "must be nested"),
    (lambda tt, x: tt.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=tt.ones(3, 3)), "must be None"),
    (lambda tt, x: tt.nn.functional.scaled_dot_product_attention(x, x, tt.nested.nested_tensor([tt.ones(1, 2)])),
     "same lengths"),
    (lambda tt, x: x.numpy(), "cannot be converted to an array"),
    (lambda tt, x: x.backward(x), "requires grad|require grad|grad_fn"),
    (lambda tt, x: tt.ones(3, 2).add_(x), "nested"),
    (lambda tt, x: x.unbind(1), "dim=0"),
]


@pytest.mark.parametrize("call, text", CALLS)
def test_bad_calls(tt, x, call, text):
    with pytest.raises((RuntimeError, NotImplementedError, IndexError, TypeError), match=text):
        call(tt, x)
    assert x.sum().item() == 10  # the session is as it was


def test_nothing_waits(tt):
    """Reading the values fails, so whatever is done with the nested tensor before has not waited for them."""
    late = tt.ones(4).index_select(0, tt.tensor([9]))  # an error that is raised where a value is read
    x = tt.nested.as_nested_tensor([late.expand(3, 2), late.expand(1, 2)])
    attended = tt.nn.functional.scaled_dot_product_attention(x, x * 2, x)
    for result in (attended.softmax(1).values(), x.sum(1), x.amax(1), x.to_padded_tensor(0.0), x[1], x.sum()):
        with pytest.raises(IndexError):
            result.numpy()


def test_changes_in_place(tt, x):
    same = x.add_(1)
    assert same is x and x.tolist() == [[[2, 2]] * 3, [[3, 3]]]
    x.mul_(tt.tensor([[[2.0, 1.0]], [[0.0, 1.0]]]))
    assert x.tolist() == [[[4, 2]] * 3, [[0, 3]]]
    x.zero_()
    assert x.sum().item() == 0


def test_modules(tt, x):
    """Modules call functions of nn.functional, whose arguments differ from those of functions of the package."""
    nn, rows = tt.nn, x.values()
    for module in (nn.ReLU(), nn.ReLU(inplace=True), nn.GELU("tanh"), nn.Softmax(-1), nn.LogSoftmax(-1), nn.SiLU(),
                   nn.LeakyReLU(0.2), nn.ELU(), nn.Softplus(), nn.Hardtanh(), nn.LayerNorm(2), nn.RMSNorm(2),
                   nn.Linear(2, 3), nn.Dropout(0.0), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))):
        expected = module(rows.clone())
        assert tt.equal(module(x.clone()).values(), expected), module
    dropped = nn.Dropout(0.5, inplace=True)(tt.nested.nested_tensor([tt.ones(40), tt.ones(60)]))
    assert 0 < (dropped.values() == 0).sum().item() < 100
    assert tt.nn.functional.softmax(x, -1, 3, tt.float64).dtype == tt.float64


def test_texts_and_iteration(tt, x):
    assert repr(x) == f"NestedTensor(size=(2, {x.shape[1]!r}, 2), lengths=[3, 1], dtype=teletensor.float32)"
    assert [part.shape[0] for part in x] == [3, 1] and x[-1].tolist() == [[2, 2]]
    assert x.shape == tt.nested.nested_tensor([tt.zeros(3, 2), tt.zeros(1, 2)]).shape
    assert x.shape != tt.nested.nested_tensor([tt.zeros(1, 2), tt.zeros(3, 2)]).shape


def test_second_derivatives(tt):
    values = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = tt.nested.nested_tensor_from_jagged(values, tt.tensor([0, 2, 3]))
    (first,) = tt.autograd.grad((x.softmax(1) * x).sum(), values, create_graph=True)
    first.square().sum().backward()
    a = values.detach().clone().requires_grad_()
    total = (a[:2].softmax(0) * a[:2]).sum() + (a[2:].softmax(0) * a[2:]).sum()
    (other,) = tt.autograd.grad(total, a, create_graph=True)
    other.square().sum().backward()
    assert tt.allclose(values.grad, a.grad)


def test_captured_functions(tt):
    lengths = tt.nested.nested_tensor_from_jagged(tt.ones(3), tt.tensor([0, 2, 3]))

    @tt.compile
    def step(values):
        x = lengths._like(values)
        return tt.nn.functional.softmax(x, 1).values() + x.mean(1).sum()

    given = tt.tensor([1.0, 2.0, 3.0])
    found = [step(given * i) for i in (1, 2, 3)]
    for i, each in zip((1, 2, 3), found, strict=True):
        x = lengths._like(given * i)
        assert tt.allclose(each, tt.nn.functional.softmax(x, 1).values() + x.mean(1).sum())
    assert tt.allclose(step(given), found[0])
