"""Compares tt.masked with torch.masked: functions with mask=, and masked tensors."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.masked")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

SHAPES = {"matrix": (4, 5), "cube": (2, 3, 4), "vector": (6,), "one": (1, 1), "no rows": (0, 3)}
MASKS = {"some": lambda shape: np.random.default_rng(1).random(shape) < 0.6, "all": lambda s: np.ones(s, bool),
         "none": lambda shape: np.zeros(shape, bool), "absent": lambda shape: None,
         "broadcast": lambda s: np.random.default_rng(2).random(s[-1]) < 0.6}
REDUCTIONS = """
    f.sum(x, mask=k); f.sum(x, -1, mask=k); f.sum(x, 0, keepdim=True, mask=k)
    f.sum(x, dtype=m.float64, mask=k); f.prod(x, mask=k); f.prod(x, -1, mask=k); f.mean(x, mask=k)
    f.mean(x, 0, mask=k); f.mean(x, -1, keepdim=True, mask=k); f.amax(x, -1, mask=k); f.amin(x, -1, mask=k)
    f.amax(x, 0, mask=k); f.argmax(x, -1, mask=k); f.argmin(x, -1, mask=k); f.argmax(x, mask=k)
    f.logsumexp(x, -1, mask=k); f.logsumexp(x, mask=k); f.norm(x, 2.0, mask=k); f.norm(x, 1, -1, mask=k)
    f.norm(x, float("inf"), -1, mask=k); f.norm(x, 3, 0, keepdim=True, mask=k); f.var(x, mask=k)
    f.var(x, -1, mask=k); f.std(x, -1, unbiased=False, mask=k); f.std(x, -1, correction=2, mask=k)
    f.var(x, 0, keepdim=True, mask=k); f.softmax(x, -1, mask=k); f.log_softmax(x, -1, mask=k)
    f.softmin(x, -1, mask=k); f.softmax(x, 0, mask=k); f.normalize(x, 2.0, -1, mask=k)
    f.normalize(x, 1.0, 0, mask=k); f.cumsum(x, -1, mask=k); f.cumprod(x, 0, mask=k); f.median(x, -1, mask=k)
    f.median(x, 0, mask=k); f.logaddexp(x, y, input_mask=k); f.logaddexp(x, y, other_mask=k)
"""


def split(text):
    return [each.strip() for each in text.replace("\n", ";").split(";") if each.strip()]


def array(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 3).astype(dtype)


def run(m, expression, shape, mask, dtype):
    """The result, and the gradients of x and y."""
    x, y = (m.tensor(array(shape, dtype, seed), requires_grad=dtype.startswith("float")) for seed in (0, 1))
    k = mask(shape)
    try:
        found = eval(expression, {"m": m, "f": m.masked, "x": x, "y": y, "k": None if k is None else m.tensor(k)})
    except (RuntimeError, ValueError, IndexError, NotImplementedError) as error:
        return type(error), None, None
    gradients = []
    if found.requires_grad:
        found.backward(m.tensor(array(tuple(found.shape), dtype, 7)).to(found.dtype))
        gradients = [None if t.grad is None else t.grad.numpy() for t in (x, y)]
    return str(found.dtype).split(".")[1], found.detach().numpy(), gradients


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_functions(tt, shape, mask, dtype):
    wrong = []
    for expression in split(REDUCTIONS):
        if shape == "no rows" and dtype.startswith("int") and ("softm" in expression or "logsum" in expression):
            continue  # PyTorch refuses integers here unless there are none
        theirs = run(torch, expression, SHAPES[shape], MASKS[mask], dtype)
        ours = run(tt, expression, SHAPES[shape], MASKS[mask], dtype)
        try:
            if theirs[1] is None:
                assert ours[1] is None, f"PyTorch raises {theirs[0].__name__}"
                continue
            assert ours[0] == theirs[0]
            np.testing.assert_allclose(ours[1], theirs[1], rtol=2e-5, atol=1e-5)
            for a, b in zip(ours[2], theirs[2], strict=True):
                if b is not None:
                    np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5, err_msg="gradient")
        except AssertionError as error:
            wrong.append(f"{expression}: {str(error)[:300]}")
    assert not wrong, f"{len(wrong)}:\n" + "\n\n".join(wrong)


TENSORS = """
    a; a.sum(); a.sum(0); a.sum(1, keepdim=True); m.sum(a); m.sum(a, 1); a.mean(); a.mean(1); a.amax(1)
    a.amin(0); m.amax(a, 1); a.argmax(1); a.prod(); a.prod(1); a + b; a - b; a * b; a / b; m.add(a, b)
    m.mul(a, 2); a + 1; 2 * a; a.exp(); m.exp(a); a.log(); m.sin(a); a.abs(); -a; a ** 2; a.sigmoid()
    m.tanh(a); a.clamp(-1, 1); a.square(); a == b; a < b; a > 0; m.maximum(a, b); a.t(); a.transpose(0, 1)
    a[0]; a[:, 1]; a[0, 0]; a.select(0, 1); a.reshape(-1); a.view(6); a.unsqueeze(0); m.cat([a, a])
    m.stack([a, b]); a.expand(2, 2, 3); a.softmax(1); m.softmax(a, 0); a.clone(); a.detach(); a.double()
    a.to(m.float64); a.contiguous(); a.get_data(); a.get_mask(); a.to_tensor(7); m.where(k, a, b); a.shape
    a.dtype; a.dim(); a.numel(); a.size(0); len(a); a.is_sparse; (a > 0).all(); a.var(1); a.std(1)
    a.requires_grad; f.is_masked_tensor(a); f.is_masked_tensor(k); a.add(b); a.float() is a; a.split(1)[0]
    f.sum(a); f.mean(a, 1, mask=k); f.softmax(a, 1); f.amax(a, 0); a.sum(dim=1); m.ones_like(a); a.sin().sum(0)
    f.masked_tensor(m.tensor([1, 2, 3]), m.tensor([True, False, True]))
    f.masked_tensor(m.tensor(3.5), m.tensor(True)); f.masked_tensor(m.tensor(3), m.tensor(False))
    f.as_masked_tensor(m.ones(2, 2), m.eye(2).bool()); a.nan_to_num()
"""


@pytest.mark.parametrize("expression", split(TENSORS))
def test_masked_tensors(tt, expression):
    """What masked tensors are printed as: the elements where the mask is true."""
    found = []
    for m in (torch, tt):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            k = m.tensor([[True, False, True], [False, False, True]])
            a, b = (m.masked.masked_tensor(m.tensor(array((2, 3), "float32", seed)), k) for seed in (0, 1))
            value = eval(expression, {"m": m, "f": m.masked, "a": a, "b": b, "k": k})
            # The value of an element without meaning is not compared.
            if expression == "a.get_data()":
                value = value[k]
            found.append(repr(value).replace("teletensor.", "torch."))
    assert found[1] == found[0]


GRADIENTS = """
    a.sum(); a.exp().sum(); (a * b).sum(); (a / b).mean(); a.log().sum(); a.sum(1).sum(); (a * 2 + b).prod()
    a.amax(1).sum(); a.square().mean(0).sum(); a.sqrt().sum(); a.softmax(1).square().sum(); a[0].sum()
    a.t().exp().sum()
"""


@pytest.mark.parametrize("expression", split(GRADIENTS))
def test_gradients_of_masked_tensors(tt, expression):
    """Gradients are masked tensors, and elements without meaning have no part in them."""
    found = []
    for m in (torch, tt):
        k = m.tensor([[True, False, True], [False, False, True]])
        data = [np.where(k.numpy(), np.abs(array((2, 3), "float64", seed)) + 0.1, -1.0) for seed in (0, 1)]
        a, b = (m.masked.masked_tensor(m.tensor(x), k, requires_grad=True) for x in data)
        eval(expression, {"m": m, "a": a, "b": b}).backward()
        found.append([x.grad.to_tensor(0).numpy() if x.grad is not None else None for x in (a, b)])
        assert m.masked.is_masked_tensor(a.grad)
    for ours, theirs in zip(found[1], found[0], strict=True):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


ERRORS = """
    f.masked_tensor([1.0], k); f.masked_tensor(m.ones(2, 3), m.ones(2, 3)); f.masked_tensor(m.ones(2), k)
    f.masked_tensor(m.ones(3, 2), k); f.masked_tensor(m.ones(2, 3, dtype=m.complex64), k); a + c; m.mul(a, c)
    f.masked_tensor(a, k); f.sum(m.ones(3), mask=m.ones(2, 3).bool()); f.mean(m.ones(2, 3, dtype=m.int64))
    a.sort(0); f.sum(m.ones(2, 2), (0, 0)); f.median(m.ones(2, 2, dtype=m.int64), 0, mask=m.zeros(2, 2).bool())
    bool(a); f.masked_tensor(m.ones(()), m.tensor(False)).item(); a.nothing; m.linalg.inv(a); a @ a.t()
"""


@pytest.mark.parametrize("expression", split(ERRORS))
def test_errors(tt, expression):
    for m in (torch, tt):
        k = m.tensor([[True, False, True], [False, False, True]])
        names = {"m": m, "f": m.masked, "k": k, "a": m.masked.masked_tensor(m.ones(2, 3), k),
                 "c": m.masked.masked_tensor(m.ones(2, 3), ~k)}
        with pytest.raises((RuntimeError, TypeError, ValueError, IndexError, AttributeError)):
            eval(expression, names)
