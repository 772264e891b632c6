"""Compares containers, Module's interface, initial values and distributions with PyTorch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def drop_bias(module, state, prefix, meta):
    del state["1.bias"]


def text(x):
    return repr(x).replace("teletensor", "torch")


def test_containers(tt):
    out = []
    for m in (tt, torch):
        nn = m.nn
        seen = []
        a = nn.Sequential(nn.Linear(1, 2), nn.ReLU()) + nn.Sequential(nn.Linear(2, 3))
        a = a * 2
        a += nn.Sequential(nn.Tanh())
        seen += [text(a), list(a.state_dict()), a[0].weight is a[3].weight]
        plist = nn.ParameterList([m.ones(2), m.zeros(3)])
        plist += [nn.Parameter(m.ones(1)), "text"]
        plist[0] = m.zeros(4)
        seen += [text(plist), len(plist), list(plist.state_dict()), text(plist[1:3]), len(list(plist.parameters()))]
        pdict = nn.ParameterDict({"a": m.ones(2)})
        pdict["b"] = nn.Parameter(m.zeros(1, 2))
        pdict.update({"c": m.ones(3)})
        seen += [list(pdict), pdict.pop("a").tolist(), "a" in pdict, list(pdict.state_dict()),
                 list((pdict | nn.ParameterDict({"d": m.ones(1)})).keys()), pdict.popitem()[0], len(pdict),
                 pdict.get("zz"), list(pdict.fromkeys(["x", "y"], 1).keys())]
        for bad in (lambda pdict=pdict: pdict["zz"], lambda plist=plist: plist[9], lambda a=a: a + 3,
                    lambda a=a: a * 0, lambda pdict=pdict, m=m: pdict.__setitem__(3, m.ones(1))):
            with pytest.raises((KeyError, AttributeError, IndexError, ValueError, TypeError)):
                bad()
        out.append(seen)
    for ours, theirs in zip(*out, strict=True):
        assert ours == theirs


def test_state_hooks_and_extra_state(tt):
    out = []
    for m in (tt, torch):
        class Counted(m.nn.Linear):
            def __init__(self):
                super().__init__(1, 1, bias=False)
                self.count = 3

            def get_extra_state(self):
                return {"count": self.count}

            def set_extra_state(self, state):
                self.count = state["count"]

        seen = []
        net = m.nn.Sequential(Counted(), m.nn.Linear(1, 1))
        net[1].register_state_dict_pre_hook(lambda module, prefix, keep, seen=seen: seen.append(("save", prefix, keep)))
        net.register_state_dict_post_hook(drop_bias)
        state = net.state_dict()
        seen.append((list(state), state["0._extra_state"]))
        other = m.nn.Sequential(Counted(), m.nn.Linear(1, 1))

        def fill(module, state, prefix, meta, strict, missing, unexpected, errors, m=m, seen=seen):
            seen.append((prefix, strict))
            state["1.bias"] = m.ones(1)

        other.register_load_state_dict_pre_hook(fill)
        other.register_load_state_dict_post_hook(lambda module, keys, seen=seen: seen.append(list(keys.missing_keys)))
        state["0._extra_state"] = {"count": 8}
        other.load_state_dict(state)
        seen += [other[0].count, other[1].bias.item(), "1.bias" in state]
        out.append(seen)
    assert out[0] == out[1]


def test_buffers_and_submodules(tt):
    out = []
    for m in (tt, torch):
        net = m.nn.Sequential(m.nn.Linear(2, 2))
        net.level = m.nn.Buffer(m.ones(2))
        net.hidden = m.nn.Buffer(m.zeros(1), persistent=False)
        net.set_submodule("0", m.nn.Sequential(m.nn.ReLU()))
        net.set_submodule("0.more", m.nn.Linear(2, 1))
        seen = [list(net.state_dict()), [n for n, _ in net.named_buffers()], text(net)]
        empty = net.to_empty(device="cpu")
        seen += [empty is net, [tuple(p.shape) for p in net.parameters()], net.half()[0][1].weight.dtype == m.float16]
        net.double().requires_grad_(False)
        seen += [str(net.level.dtype)[-7:], [p.requires_grad for p in net.parameters()]]
        for bad in (lambda net=net, m=m: net.set_submodule("", m.nn.ReLU()),
                    lambda net=net, m=m: net.set_submodule("0.none", m.nn.ReLU(), strict=True),
                    lambda net=net, m=m: net.set_submodule("a.b", m.nn.ReLU())):
            with pytest.raises((ValueError, AttributeError)) as error:
                bad()
            seen.append(error.type)
        out.append(seen)
    for ours, theirs in zip(*out, strict=True):
        assert ours == theirs


def test_initial_values(tt):
    """The distributions and errors of nn.init; values that are not random must be equal."""
    for m in (tt, torch):
        init = m.nn.init
        for shape in ((30, 20), (20, 30), (8, 2, 5)):
            w = m.empty(shape)
            flat = init.orthogonal_(w, gain=2.0).reshape(shape[0], -1).numpy()
            flat = flat if flat.shape[0] <= flat.shape[1] else flat.T
            np.testing.assert_allclose(flat @ flat.T, 4 * np.eye(len(flat)), atol=1e-4)
        w = init.sparse_(m.empty(50, 40), 0.3, std=0.5).numpy()
        assert ((w == 0).sum(0) == 15).all() and abs(w[w != 0].std() - 0.5) < 0.05
        with pytest.raises(ValueError):
            init.sparse_(m.empty(3), 0.1)
        with pytest.raises(ValueError):
            init.orthogonal_(m.empty(3))
        with pytest.raises(ValueError):
            init.dirac_(m.empty(3, 3))
        with pytest.raises(ValueError):
            init.dirac_(m.empty(5, 3, 3), groups=2)
    for shape, groups in (((4, 2, 3), 2), ((3, 5, 3, 3), 1), ((6, 2, 3, 4, 5), 3)):
        ours, theirs = (m.nn.init.dirac_(m.empty(shape), groups).tolist() for m in (tt, torch))
        assert ours == theirs


CASES = [("Normal", ([0.5, -1.0], [1.0, 2.5])), ("Uniform", ([0.0, -1.0], [1.0, 3.0])),
         ("Exponential", ([0.5, 2.0],)), ("Bernoulli", ([0.3, 0.9],)),
         ("Categorical", ([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]],))]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_distributions(tt, kind, values):
    result, samples = [], []
    for m in (tt, torch):
        m.manual_seed(0)
        leaves = [m.tensor(v, requires_grad=True) for v in values]
        d = getattr(m.distributions, kind)(*leaves)
        discrete = kind in ("Bernoulli", "Categorical")
        value = m.tensor([1, 0]) if kind == "Categorical" else m.tensor([1.0, 0.0] if discrete else [0.7, 0.4])
        log_prob = d.log_prob(value)
        (log_prob.sum() + d.entropy().sum()).backward()
        numbers = [log_prob.tolist(), d.entropy().tolist(), *(leaf.grad.tolist() for leaf in leaves)]
        if kind != "Categorical":
            numbers += [d.mean.tolist(), d.variance.tolist(), d.stddev.tolist()]
        result.append(numbers)
        drawn = d.sample((4000,))
        assert tuple(drawn.shape) == (4000, 2) and tuple(d.batch_shape) == (2,) and not drawn.requires_grad
        samples.append(drawn.double().mean(0).tolist())
        if not discrete:
            assert d.rsample((3,)).requires_grad
    for a, b in zip(*result, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(*samples, atol=0.12)


def test_divergences(tt):
    for kind, p, q in (("Normal", (0.0, 1.0), (1.0, 2.0)), ("Bernoulli", ([0.3, 0.6],), ([0.4, 0.1],)),
                       ("Categorical", ([0.2, 0.8],), ([0.5, 0.5],)), ("Exponential", ([2.0],), ([3.0],))):
        ours, theirs = (m.distributions.kl_divergence(*(
            getattr(m.distributions, kind)(*map(m.tensor, each)) for each in (p, q))).tolist() for m in (tt, torch))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    logits = [[1.0, 2.0, -1.0]]
    ours, theirs = (m.distributions.Categorical(logits=m.tensor(logits)).probs.tolist() for m in (tt, torch))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(NotImplementedError):
        tt.distributions.kl_divergence(tt.distributions.Normal(0, 1), tt.distributions.Bernoulli(0.5))


def test_parametrizations(tt):
    out = []
    for m in (tt, torch):
        utils = m.nn.utils
        p, z = utils.parametrize, utils.parametrizations
        net = m.nn.Linear(3, 2)
        net.load_state_dict({"weight": m.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]]), "bias": m.zeros(2)})
        z.weight_norm(net)
        seen = [type(net).__name__, sorted(net.state_dict()), net.weight.tolist(), p.is_parametrized(net, "weight")]
        net(m.ones(1, 3)).sum().backward()
        originals = net.parametrizations.weight
        seen += [originals.original0.grad.tolist(), originals.original1.grad.tolist()]
        net.weight = m.ones(2, 3)
        seen += [net.weight.tolist()]
        p.remove_parametrizations(net, "weight")
        seen += [type(net).__name__, sorted(net.state_dict()), net.weight.tolist(), p.is_parametrized(net)]

        class Symmetric(m.nn.Module):
            def forward(self, x):
                return x.triu() + x.triu(1).transpose(-1, -2)

            def right_inverse(self, x):
                return x.triu()

        square = m.nn.Linear(3, 3, bias=False)
        square.load_state_dict({"weight": m.arange(9.0).reshape(3, 3)})
        p.register_parametrization(square, "weight", Symmetric())
        seen += [square.weight.tolist(), square.parametrizations.weight.original.tolist(), sorted(square.state_dict())]
        with p.cached():
            seen.append(square.weight is square.weight)
        with pytest.raises(ValueError):
            p.register_parametrization(square, "nothing", Symmetric())
        out.append(seen)
    for ours, theirs in zip(*out, strict=True):
        if isinstance(ours, list) and ours and not isinstance(ours[0], str):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        else:
            assert ours == theirs


def test_spectral_norm(tt):
    theirs = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(5, 4))
    ours = tt.nn.utils.parametrizations.spectral_norm(tt.nn.Linear(5, 4))
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    ours.load_state_dict(tt.from_torch(theirs.state_dict()))
    for _ in range(3):
        a, b = ours(tt.ones(2, 5)), theirs(torch.ones(2, 5))
        np.testing.assert_allclose(a.tolist(), b.tolist(), rtol=1e-4, atol=1e-5)
    a.sum().backward(), b.sum().backward()
    grads = [n.parametrizations.weight.original.grad.tolist() for n in (ours, theirs)]
    np.testing.assert_allclose(*grads, rtol=1e-4, atol=1e-5)
    assert abs(np.linalg.norm(ours.eval().weight.detach().numpy(), 2) - 1) < 0.2
