"""Compares nested tensors with PyTorch's of the layout jagged: values, gradients and shapes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

LENGTHS = {"some": (3, 1, 4), "equal": (2, 2), "one": (5,), "with an empty one": (2, 0, 3)}


def array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


class Case:
    """The tensors of a comparison in one library: nested ones of the same lengths, and dense ones."""

    def __init__(self, m, lengths, width=6):
        self.m, total, batch = m, sum(lengths), len(lengths)
        self.leaves = []

        def leaf(shape, seed):
            self.leaves.append(m.tensor(array(shape, seed), requires_grad=True))
            return self.leaves[-1]

        offsets = m.tensor(np.cumsum([0, *lengths]))
        self.v, self.w = leaf((total, width), 0), leaf((total, width), 1)
        self.x = m.nested.nested_tensor_from_jagged(self.v, offsets)
        # PyTorch takes two nested tensors to be of the same lengths if their offsets are the same tensor.
        self.y = m.nested.nested_tensor_from_jagged(self.w, offsets)
        self.d, self.b, self.p = leaf((width,), 2), leaf((batch, 1, width), 3), leaf((width, 4), 4)
        self.s, self.q = leaf((4, width), 5), leaf((4,), 6)
        self.f, self.n, self.j, self.t = m.nn.functional, m.nested, m.jagged, m.tensor


def dense(m, x):
    """The result as dense tensors with history."""
    if isinstance(x, (tuple, list)):
        return [each for part in x for each in dense(m, part)]
    return list(x.unbind()) if x.is_nested else [x]


def split(text):
    return [each.strip() for each in text.replace("\n", ";").split(";") if each.strip()]


EXPRESSIONS = """
    x; x + y; x - y; x * y; x / (y.abs() + 1); x + 2; 2 - x; 3 * x; x * d; d + x; x * b; b - x; -x; abs(x); x ** 2
    m.add(x, y, alpha=3); m.maximum(x, y); x.exp(); m.sin(x); x.tanh().sigmoid(); f.relu(x); f.gelu(x); f.silu(x)
    f.softplus(x); x.clamp(-1, 0.5); x.square().sqrt(); x.abs().log1p(); m.where(x > 0, x, y); x.clone()
    x.detach() * y; m.zeros_like(x); m.ones_like(x) * x; x.float(); x.to(m.float32); x.unbind()
    x[1 if len(x) > 1 else 0]; x.select(0, 0); x.sum(); x.mean()
    x.mean(-1); x.mean(2, keepdim=True); f.softmax(x, -1)
    f.layer_norm(x, (6,), d, d * 2); f.rms_norm(x, (6,), d); f.linear(x, s); f.linear(x, s, q); x @ p
    m.matmul(x, p); x.transpose(1, 2); x.transpose(1, 2).transpose(1, 2); x.unflatten(-1, [2, 3])
    x.unflatten(-1, [2, 3]).transpose(1, 2); x.unsqueeze(-1); x.unsqueeze(-1).squeeze(-1)
    x.unflatten(-1, [2, 3]).transpose(1, 2).transpose(1, 2).flatten(-2); x.chunk(3, -1); x.split(2, -1)
    m.cat([x, y], -1)
    n.to_padded_tensor(x, 0.5, (len(x), 7, 6)); f.dropout(x, 0.0); n.as_nested_tensor(list(x.unbind()), layout=j)
    n.as_nested_tensor(b.expand(len(x), 3, 6), layout=j)
"""
# What PyTorch has no form for: with these its dense tensors, one by one, are compared.
SINGLE = {
    "x.sum(-1)": "[e.sum(-1) for e in x.unbind()]",
    "x.sum(2, keepdim=True)": "[e.sum(1, keepdim=True) for e in x.unbind()]",
    "x.sum((1, 2))": "m.stack([e.sum() for e in x.unbind()])",
    "x.transpose(1, 2).sum(1)": "[e.sum(1) for e in x.unbind()]",
    "f.log_softmax(x, -1)": "[e.log_softmax(-1) for e in x.unbind()]",
    "x.softmax(2)": "[e.softmax(1) for e in x.unbind()]",
    "n.to_padded_tensor(x, 0.0)": "m.nn.utils.rnn.pad_sequence(x.unbind(), True)",
    "x.to_padded_tensor(-1.5)": "m.nn.utils.rnn.pad_sequence(x.unbind(), True, -1.5)",
    "x.transpose(1, 2).to_padded_tensor(2.0)": "m.nn.utils.rnn.pad_sequence(x.unbind(), True, 2.0).transpose(1, 2)",
    "x.to_padded_tensor(2.0, (len(x), 7, 8))":
        "m.stack([f.pad(e, (0, 2, 0, 7 - len(e)), value=2.0) for e in x.unbind()])",
    "n.narrow(b.expand(len(x), 5, 6), 1, 1, 3, layout=j)": "[e[1:4] for e in b.expand(len(x), 5, 6)]",
    "n.narrow(b.expand(len(x), 5, 6), 1, t([1] * len(x)), t(3), j)": "[e[1:4] for e in b.expand(len(x), 5, 6)]",
    "x.sum(1)": "m.stack([e.sum(0) for e in x.unbind()])",
    "x.mean(1)": "m.stack([e.mean(0) for e in x.unbind()])",
    "x.sum(1, keepdim=True)": "m.stack([e.sum(0, keepdim=True) for e in x.unbind()])",
    "x.softmax(1)": "[e.softmax(0) for e in x.unbind()]",
    "x.log_softmax(1)": "[e.log_softmax(0) for e in x.unbind()]",
    "x.transpose(1, 2).softmax(2)": "[e.t().softmax(1) for e in x.unbind()]",
    "x.transpose(1, 2).softmax(1)": "[e.t().softmax(0) for e in x.unbind()]",
    "x.transpose(1, 2) @ y": "m.stack([a.t() @ c for a, c in zip(x.unbind(), y.unbind())])",
    "x @ (b.transpose(1, 2) * d)": "[e @ r for e, r in zip(x.unbind(), b.transpose(1, 2) * d)]",
    "(b.transpose(1, 2) * d) @ x.transpose(1, 2)": "[r @ e.t() for e, r in zip(x.unbind(), b.transpose(1, 2) * d)]",
    "x.sum((0, 1))": "sum(e.sum(0) for e in x.unbind())",
    "x.transpose(1, 2) * b.transpose(1, 2)": "[e.t() * r for e, r in zip(x.unbind(), b.transpose(1, 2))]",
    "x.unsqueeze(1).unsqueeze(-1).squeeze(1) * 2": "[e.unsqueeze(-1) * 2 for e in x.unbind()]",
    "x.transpose(1, 2).select(1, 2)": "[e[:, 2] for e in x.unbind()]",
}


def run(m, lengths, expression):
    case = Case(m, lengths)
    result = dense(m, eval(expression, {**vars(case)}))
    total = sum((each * each.sin()).sum() for each in result)
    if total.requires_grad:
        total.backward()
    numbers = [each.detach().numpy() for each in result]
    return numbers, [None if leaf.grad is None else leaf.grad.numpy() for leaf in case.leaves]


def compare(tt, lengths, ours, theirs):
    (found, gradients), (wanted, others) = run(tt, lengths, ours), run(torch, lengths, theirs)
    assert [each.shape for each in found] == [each.shape for each in wanted]
    assert [each.dtype for each in found] == [each.dtype for each in wanted]
    for a, b in zip([*found, *gradients], [*wanted, *others], strict=True):
        if a is None or b is None:
            assert (a is None or not a.any()) and (b is None or not b.any())
        else:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("expression", split(EXPRESSIONS))
def test_expressions(tt, expression, lengths):
    compare(tt, LENGTHS[lengths], expression, expression)


@pytest.mark.parametrize("lengths", [name for name in LENGTHS if name != "with an empty one"])
@pytest.mark.parametrize("expression", SINGLE)
def test_expressions_of_each_tensor(tt, expression, lengths):
    compare(tt, LENGTHS[lengths], expression, SINGLE[expression])


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes(tt, name):
    for lengths in ((3, 1, 4), (5,)):
        for dim in (1, 2):
            text = f"x.{name}({dim})"
            one = f"[e.{name}({dim - 1}) for e in x.unbind()]"
            compare(tt, lengths, text, f"m.stack({one})" if dim == 1 else one)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths, keys", [
    ((3, 1, 4), (3, 1, 4)), ((3, 1, 4), (2, 5, 1)), ((2,), (2,)), ((3, 0, 2), (3, 0, 2)), ((2, 3), (0, 4)),
    ((0,), (0,)), ((2, 1), (0, 0)),
], ids=str)
def test_attention(tt, lengths, keys, causal):
    """Values and gradients are those of each tensor of the batch alone."""
    heads, width, found = 2, 3, []
    given = [array((sum(n), heads * width), i) for i, n in enumerate((lengths, keys, keys))]
    for m in (torch, tt):
        leaves = [m.tensor(each, requires_grad=True) for each in given]
        attend = m.nn.functional.scaled_dot_product_attention
        if m is tt:
            q, k, v = (m.nested.nested_tensor_from_jagged(leaf, lengths=m.tensor(n)).unflatten(-1, [heads, width])
                       .transpose(1, 2) for leaf, n in zip(leaves, (lengths, keys, keys), strict=True))
            out = attend(q, k, v, is_causal=causal)
            assert out.shape[:2] == (len(lengths), heads) and out.shape[3] == width and out.shape[2] == q.shape[2]
            values = out.transpose(1, 2).flatten(-2).values()
        else:
            parts = [leaf.split(list(n)) for leaf, n in zip(leaves, (lengths, keys, keys), strict=True)]
            rows = []
            for q, k, v in zip(*parts, strict=True):
                q, k, v = (each.unflatten(-1, [heads, width]).transpose(0, 1) for each in (q, k, v))
                scores = q @ k.transpose(1, 2) / width**0.5
                if causal:
                    kept = m.ones(scores.shape[1:], dtype=m.bool).tril()
                    scores = scores.masked_fill(~kept, float("-inf"))
                rows.append((scores.softmax(-1) @ v).transpose(0, 1).flatten(-2))
            values = m.cat(rows)
        (values * values.sin()).sum().backward()
        found.append([values.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_attention_equals_that_of_pytorch(tt):
    found = []
    for m in (torch, tt):
        leaf = m.tensor(array((8, 6)), requires_grad=True)
        x = m.nested.nested_tensor_from_jagged(leaf, m.tensor([0, 3, 4, 8])).unflatten(-1, [2, 3]).transpose(1, 2)
        out = m.nn.functional.scaled_dot_product_attention(x, x * 2, x + 1).transpose(1, 2).flatten(-2)
        (out.values() ** 2).sum().backward()
        found.append([out.values().detach().numpy(), leaf.grad.numpy()])
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


class Layer:
    """A block of a transformer on ragged batches, as PyTorch's tutorial writes it."""

    def __init__(self, m):
        self.m = m
        nn, rng = m.nn, np.random.default_rng(3)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down, self.table = nn.Linear(8, 16), nn.Linear(16, 8), nn.Embedding(10, 8)
        self.parameters = [p for layer in (self.norm, self.qkv, self.out, self.up, self.down, self.table)
                           for p in layer.parameters()]
        with m.no_grad():
            for p in self.parameters:
                p.copy_(m.tensor(rng.standard_normal(tuple(p.shape)).astype("float32") * 0.3))

    def __call__(self, tokens):
        f = self.m.nn.functional
        x = self.table(tokens)
        q, k, v = (each.unflatten(-1, [2, 4]).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.down(f.gelu(self.up(x)))


def test_a_transformer_trains_as_one_of_single_sequences(tt):
    found = []
    for m in (torch, tt):
        layer, losses = Layer(m), []
        optimizer = m.optim.SGD(layer.parameters, lr=0.1)
        tokens = [m.tensor([1, 5, 2]), m.tensor([7]), m.tensor([3, 3, 9, 0])]
        for _ in range(3):
            optimizer.zero_grad()
            if m is tt:
                values = layer(m.nested.nested_tensor(tokens, layout=m.jagged)).values()
            else:
                values = m.cat([layer(each.unsqueeze(0)).squeeze(0) for each in tokens])
            loss = values.square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append([*losses, *(p.detach().numpy() for p in layer.parameters)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


FACTS = """
    x.dim(); x.ndim; x.size(0); x.size(2); x.size(-1); len(x); x.numel(); x.is_nested; str(x.layout).split(".")[1]
    str(x.dtype).split(".")[1]; x.offsets().tolist(); x.requires_grad; x.is_leaf; x.lengths(); x.shape[0]
    x.shape[2]; x.transpose(1, 2).shape[1]; x.values().tolist(); x.detach().requires_grad; x.is_floating_point()
    x.sum(-1).dim(); n.nested_tensor([m.ones(2), m.ones(3)], layout=j, requires_grad=True).is_leaf
    n.nested_tensor([[1, 2], [3]], layout=j).values().tolist(); (x == y).values().tolist()
    n.nested_tensor([m.ones(2), m.ones(3)], layout=j, dtype=m.float64).offsets().tolist()
    n.masked_select(t([[1, 2, 3], [4, 5, 6]]), t([[True, False, True], [False] * 3])).offsets().tolist()
    n.masked_select(t([[1, 2, 3], [4, 5, 6]]), t([True, False, True])).values().tolist()
    [e.tolist() for e in n.nested_tensor_from_jagged(m.arange(6), t([0, 2, 3, 6]), t([1, 1, 2])).unbind()]
    [e.tolist() for e in n.nested_tensor_from_jagged(m.arange(6), lengths=t([1, 5])).unbind()]
    [e.tolist() for e in n.nested_tensor_from_jagged(m.arange(6).reshape(2, 3), t([0, 1, 3]), jagged_dim=2).unbind()]
"""


@pytest.mark.parametrize("expression", split(FACTS))
def test_facts(tt, expression):
    found = [eval(expression, {**vars(Case(m, (3, 1, 4)))}) for m in (torch, tt)]
    assert found[1] == found[0]


ERRORS = """
    n.nested_tensor([m.ones(2, 3), m.ones(3, 4)], layout=j); n.as_nested_tensor(3, layout=j)
    n.nested_tensor([m.ones(2), m.ones(2, 4)], layout=j); n.as_nested_tensor(m.ones(3), layout=j)
    n.nested_tensor_from_jagged(v); n.nested_tensor_from_jagged(v, t([0, 8]), jagged_dim=0)
    x + m.ones(3, 4, 6); x + n.nested_tensor([m.ones(2, 6)], layout=j)
    x.sum(0); x.unbind(1); x.foo; n.narrow(v, 0, 0, 2, layout=j); x.backward(); x @ m.ones(5, 2); x.sum(5)
    x.softmax(0); x.transpose(0, 1); f.linear(x, m.ones(4, 5)); m.cat([x, m.ones(3, 2, 6)], -1); bool(x)
    x.select(0, 3)
"""


@pytest.mark.parametrize("expression", split(ERRORS))
def test_errors(tt, expression):
    """Mistakes that PyTorch refuses, too."""
    for m in (torch, tt):
        known = {**vars(Case(m, (3, 1, 4)))}
        with pytest.raises((RuntimeError, TypeError, IndexError, AttributeError, ValueError)):
            eval(expression, known)


def test_gradients_of_leaves(tt):
    found = []
    for m in (torch, tt):
        x = m.nested.nested_tensor([m.tensor([1.0, 2.0]), m.tensor([3.0])], layout=m.jagged, requires_grad=True)
        a = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = m.nested.as_nested_tensor([a, a[:2] * 2], layout=m.jagged)
        (x * x).values().sum().backward()
        seed = m.nested.nested_tensor_from_jagged(m.arange(5.0), y.offsets())
        y.backward(seed)
        found.append([x.grad.values().tolist(), a.grad.tolist(), x.grad.is_nested])
    assert found[1] == found[0]
