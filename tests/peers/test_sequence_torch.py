"""Compares recurrent networks, attention and the Transformer with PyTorch's: a torch state_dict can be
loaded, and outputs and gradients are equal."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

KINDS = {"RNN": {}, "RNN_relu": {"nonlinearity": "relu"}, "LSTM": {}, "GRU": {}, "LSTM_proj": {"proj_size": 3}}
FORMS = [
    {}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 3, "batch_first": True},
    {"bias": False, "bidirectional": True, "batch_first": True},
]


def pair(tt, make, dtype="float32"):
    """The same module in both libraries, with the same weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = make(torch.nn), make(tt.nn)
    if dtype == "float64":
        ours, theirs = ours.double(), theirs.double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(tt.from_torch(theirs.state_dict()))
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert tuple(a.shape) == tuple(b.shape), name
    return ours, theirs


def flat(x):
    if isinstance(x, (tuple, list)):
        return [t for each in x for t in flat(each)]
    return [] if x is None else [x]


def compare(ours, theirs, run, tolerance=1e-5):
    """run(library module, nn module, constructor of its leaves) returns the outputs; compares these and the
    gradients of weights and leaves."""
    results = []
    for m, module in ours, theirs:
        rng = np.random.default_rng(5)
        leaves = []

        def leaf(*shape, m=m, rng=rng, leaves=leaves, module=module):
            dtype = "f8" if next(module.parameters()).dtype == m.float64 else "f4"
            x = m.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
            leaves.append(x)
            return x

        outputs = flat(run(m, module, leaf))
        weights = np.random.default_rng(6)
        loss = 0
        for output in outputs:
            if output.requires_grad:
                w = weights.standard_normal(tuple(output.shape))
                loss = loss + (output * m.tensor(w).to(output.dtype)).sum()
        loss.backward()
        grads = [p.grad for p in [*module.parameters(), *leaves]]
        results.append(([o.detach().numpy() for o in outputs],
                        [None if g is None else g.numpy() for g in grads]))
    for a, b in zip(*[r[0] + r[1] for r in results], strict=True):
        if a is None or b is None:
            assert (a is None) == (b is None)
            continue
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def rnn_class(kind):
    return kind.split("_")[0]


def start_state(leaf, kind, form, batch, size=5):
    rows = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    if kind.startswith("LSTM"):
        return leaf(rows, batch, 3 if kind == "LSTM_proj" else size), leaf(rows, batch, size)
    return leaf(rows, batch, size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent(tt, kind, form, dtype):
    ours, theirs = pair(tt, lambda nn: getattr(nn, rnn_class(kind))(4, 5, **KINDS[kind], **form), dtype)
    assert repr(ours) == repr(theirs)
    shape = (2, 7, 4) if form.get("batch_first") else (7, 2, 4)
    tolerance = 1e-5 if dtype == "float32" else 1e-11
    compare((tt, ours), (torch, theirs), lambda m, net, leaf: net(leaf(*shape)), tolerance)
    ours.zero_grad(), theirs.zero_grad()
    compare((tt, ours), (torch, theirs),
            lambda m, net, leaf: net(leaf(*shape), start_state(leaf, kind, form, 2)), tolerance)
    unbatched = net_output_shape = tuple(ours(tt.ones(7, 4, dtype=getattr(tt, dtype)))[0].shape)
    assert net_output_shape == tuple(theirs(torch.ones(7, 4, dtype=getattr(torch, dtype)))[0].shape), unbatched


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_packed(tt, kind, form):
    ours, theirs = pair(tt, lambda nn: getattr(nn, rnn_class(kind))(4, 5, **KINDS[kind], **form))

    def run(m, net, leaf, enforce, state):
        rnn = m.nn.utils.rnn
        lengths = [6, 4, 4, 1] if enforce else [4, 1, 6, 4]
        first = bool(form.get("batch_first"))
        x = leaf(*((4, 6, 4) if first else (6, 4, 4)))
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=enforce)
        hx = start_state(leaf, kind, form, 4) if state else None
        output, end = net(packed, hx)
        padded, sizes = rnn.pad_packed_sequence(output, batch_first=first, padding_value=-2.0, total_length=8)
        assert sizes.tolist() == lengths
        return packed.data, packed.batch_sizes, padded, end

    for enforce in (True, False):
        for state in (False, True):
            ours.zero_grad(), theirs.zero_grad()
            compare((tt, ours), (torch, theirs), lambda *a, e=enforce, s=state: run(*a, e, s))


def test_pack_pad_unpack(tt):
    result = []
    for m in (tt, torch):
        rnn = m.nn.utils.rnn
        parts = [m.arange(6.0).reshape(3, 2), m.ones(1, 2), m.arange(4.0).reshape(2, 2) - 1]
        packed = rnn.pack_sequence(parts, enforce_sorted=False)
        out = [rnn.pad_sequence(parts), rnn.pad_sequence(parts, True, -1.0, "left"), *packed,
               *rnn.unpack_sequence(packed)]
        out += rnn.unpad_sequence(rnn.pad_sequence(parts), m.tensor([3, 1, 2]))
        result.append([t.tolist() for t in out])
        with pytest.raises(RuntimeError, match="sorted"):
            rnn.pack_sequence(parts)
    assert result[0] == result[1]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells(tt, kind, bias):
    ours, theirs = pair(tt, lambda nn: getattr(nn, kind)(4, 5, bias=bias))
    assert repr(ours) == repr(theirs)
    state = (lambda leaf: (leaf(3, 5), leaf(3, 5))) if kind == "LSTMCell" else (lambda leaf: leaf(3, 5))
    compare((tt, ours), (torch, theirs), lambda m, net, leaf: net(leaf(3, 4), state(leaf)))
    ours.zero_grad(), theirs.zero_grad()
    compare((tt, ours), (torch, theirs), lambda m, net, leaf: net(leaf(3, 4)))
    ours.zero_grad(), theirs.zero_grad()
    compare((tt, ours), (torch, theirs), lambda m, net, leaf: net(leaf(4)))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_second_derivatives(tt, kind):
    ours, theirs = pair(tt, lambda nn: getattr(nn, kind)(2, 3), "float64")

    def run(m, net, leaf):
        x = leaf(3, 2, 2)
        output, _ = net(x)
        (g,) = m.autograd.grad((output ** 2).sum(), x, create_graph=True)
        return output, (g ** 2).sum()

    compare((tt, ours), (torch, theirs), run, 1e-9)


def test_refusals_of_recurrent(tt):
    for m in (tt, torch):
        net = m.nn.LSTM(3, 4)
        for bad, error in [((m.ones(2, 2, 2),), RuntimeError), ((m.ones(2),), ValueError),
                           ((m.ones(2, 2, 3), (m.ones(1, 1, 4), m.ones(1, 2, 4))), RuntimeError),
                           ((m.ones(2, 2, 3, dtype=m.float64),), ValueError)]:
            with pytest.raises(error):
                net(*bad)
        for options in ({"dropout": 2}, {"proj_size": 4}, {"num_layers": 0}):
            with pytest.raises(ValueError):
                m.nn.LSTM(3, 4, **options)


ATTENTION = [
    {}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True, "add_bias_kv": True},
    {"kdim": 6, "vdim": 10}, {"kdim": 6, "vdim": 10, "bias": False, "batch_first": True}, {"batch_first": True},
]


@pytest.mark.parametrize("weights", [True, False, "each"])
@pytest.mark.parametrize("options", ATTENTION, ids=str)
def test_attention(tt, options, weights):
    ours, theirs = pair(tt, lambda nn: nn.MultiheadAttention(8, 2, **options))
    assert repr(ours) == repr(theirs)
    first, k, v = options.get("batch_first"), options.get("kdim", 8), options.get("vdim", 8)
    more = {"need_weights": bool(weights), "average_attn_weights": weights != "each"}

    def shaped(*shape):
        return (shape[1], shape[0], shape[2]) if first else shape

    def run(m, net, leaf, mask):
        q, key, value = leaf(*shaped(5, 3, 8)), leaf(*shaped(4, 3, k)), leaf(*shaped(4, 3, v))
        rng = np.random.default_rng(1)
        padding = m.tensor(np.array([[False, False, True, True], [False] * 4, [False, True, False, False]]))
        masks = {
            "none": {}, "padding": {"key_padding_mask": padding},
            "bool": {"attn_mask": m.tensor(rng.random((5, 4)) > 0.7)},
            "float": {"attn_mask": m.tensor(rng.standard_normal((5, 4)).astype("f4"))},
            "each": {"attn_mask": m.tensor(rng.standard_normal((6, 5, 4)).astype("f4")),
                     "key_padding_mask": m.where(padding, -1e4, 0.0).float()},
        }
        return net(q, key, value, **more, **masks[mask])

    for mask in ("none", "padding", "bool", "float", "each"):
        ours.zero_grad(), theirs.zero_grad()
        compare((tt, ours), (torch, theirs), lambda *a, mask=mask: run(*a, mask))
    if "kdim" not in options:
        ours.zero_grad(), theirs.zero_grad()

        def itself(m, net, leaf):
            x = leaf(5, 8)
            causal = m.nn.Transformer.generate_square_subsequent_mask(5)
            return net(x, x, x, attn_mask=causal, is_causal=weights is False, **more)

        compare((tt, ours), (torch, theirs), itself)


@pytest.mark.parametrize("options", [
    {}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True, "bias": False},
    {"batch_first": True, "norm_first": True, "layer_norm_eps": 1e-3}], ids=str)
def test_transformer(tt, options):
    def make(nn):
        return nn.Transformer(8, 2, 2, 2, 12, dropout=0.0, **options)

    ours, theirs = pair(tt, make)
    assert repr(ours) == repr(theirs)

    def run(m, net, leaf):
        mask = net.generate_square_subsequent_mask(3)
        src, tgt = ((3, 5, 8), (3, 3, 8)) if options.get("batch_first") else ((5, 3, 8), (3, 3, 8))
        padding = m.tensor(np.array([[False] * 4 + [True]] * 3))
        return net(leaf(*src), leaf(*tgt), tgt_mask=mask, src_key_padding_mask=padding,
                   memory_key_padding_mask=padding, tgt_is_causal=True)

    compare((tt, ours), (torch, theirs), run, 3e-5)


def test_initial_laws(tt):
    """The bounds and spreads of initial weights must be those of PyTorch's constructors."""
    tt.manual_seed(0), torch.manual_seed(0)
    for make in (lambda nn: nn.LSTM(30, 40, 2), lambda nn: nn.GRUCell(30, 40),
                 lambda nn: nn.MultiheadAttention(64, 4, add_bias_kv=True),
                 lambda nn: nn.MultiheadAttention(64, 4, kdim=32, vdim=16),
                 lambda nn: nn.Transformer(32, 2, 1, 1, 64)):
        a, b = make(tt.nn), make(torch.nn)
        for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
            x, y = p.detach().numpy(), q.detach().numpy()
            assert abs(x.std() - y.std()) < 0.25 * y.std() + 1e-3, name
            assert abs(np.abs(x).max() - np.abs(y).max()) < 0.5 * np.abs(y).max() + 1e-6, name
