"""Compares smaller names of PyTorch with PyTorch's: as_subclass, ExponentialFamily, the older profiler, cond."""

import numpy as np
import pytest
import torch


def test_as_subclass(tt):
    for m in (tt, torch):
        class Named(m.Tensor):
            pass

        x = m.tensor([1.0, 2.0], requires_grad=True)
        named = (x * 2).as_subclass(Named)
        assert type(named) is Named and named.requires_grad and not named.is_leaf
        named.sum().backward()
        assert x.grad.tolist() == [2, 2]
        base = m.zeros(2)
        base.as_subclass(Named).fill_(3)
        assert base.tolist() == [3, 3] and type(base) is m.Tensor
        assert type(named.as_subclass(m.Tensor)) is m.Tensor
        with pytest.raises((RuntimeError, TypeError)):
            base.as_subclass(int)
        assert base.record_stream(None) is None if m is tt else True


def coin(m):
    """A Bernoulli distribution as a program defines it by its natural parameter."""
    class Coin(m.distributions.ExponentialFamily):
        arg_constraints = {}

        def __init__(self, logits):
            self.logits = logits
            super().__init__(logits.shape)

        @property
        def _natural_params(self):
            return (self.logits,)

        def _log_normalizer(self, x):
            return m.nn.functional.softplus(x)

        @property
        def _mean_carrier_measure(self):
            return 0

    return Coin(m.tensor([0.5, -2.0, 0.0]))


def test_exponential_family(tt):
    found = [coin(m).entropy().detach().numpy() for m in (tt, torch)]
    np.testing.assert_allclose(*found, rtol=1e-6)
    own = tt.distributions.Bernoulli(logits=tt.tensor([0.5, -2.0, 0.0])).entropy()
    np.testing.assert_allclose(own.numpy(), found[1], rtol=1e-5)
    with pytest.raises(NotImplementedError):
        tt.distributions.ExponentialFamily().entropy()
    for name in torch.distributions.__all__:
        kinds = [getattr(m.distributions, name, None) for m in (tt, torch)]
        if isinstance(kinds[1], type):
            own = issubclass(kinds[0], tt.distributions.ExponentialFamily)
            assert own == issubclass(kinds[1], torch.distributions.ExponentialFamily), name


def test_the_older_profiler(tt):
    from teletensor.autograd import profiler

    for profile, m in ((profiler.profile, tt), (torch.autograd.profiler.profile, torch)):
        with profile(record_shapes=True) as p:
            (m.ones(3) * 2).sum().item()
        assert any("mul" in event.key for event in p.key_averages())
        assert any("mul" in event.key for event in p.function_events)
        assert "mul" in p.table() and p.self_cpu_time_total >= 0 and p.total_average().count > 0
        with profile(enabled=False) as p:
            (m.ones(3) * 2).sum().item()
        assert p is None


def test_cond(tt):
    for m in (tt, torch):
        x = m.tensor([1.0, 2.0])
        for pred in (True, m.tensor(True)):
            assert m.cond(pred, m.sin, m.cos, (x,)).tolist() == m.sin(x).tolist()
        assert m.cond(x.sum() > 5, lambda x: x + 1, lambda x: x - 1, (x,)).tolist() == [0, 1]
        with pytest.raises(Exception, match="single-element"):
            m.cond(x > 0, m.sin, m.cos, (x,))


def test_small_names(tt):
    from teletensor.amp.grad_scaler import OptState
    from teletensor.distributions.exp_family import ExponentialFamily
    from teletensor.utils.data.dataloader import BatchSampler

    assert [s.name for s in OptState] == [s.name for s in torch.amp.grad_scaler.OptState]
    assert ExponentialFamily is tt.distributions.ExponentialFamily and BatchSampler is tt.utils.data.BatchSampler
    assert tt.random.thread_safe_generator() is torch.random.thread_safe_generator() is None
    assert tt.jit.script_method(len) is len and not tt.is_storage(tt.ones(1))
    tt.set_warn_always(True)
    assert tt.is_warn_always_enabled()
    tt.set_warn_always(False)
    x = tt.tensor([1 + 2j])
    assert tt.conj_physical_(x) is x and x.conj_physical_().tolist() == [1 + 2j]


# Expressions of a matrix x, vectors v and u, a batch b and an image i, whose nodes have PyTorch's names.
NODES = """
x @ v; v @ v; v @ x.T; x @ x.T; b @ b.mT; b @ x.T; F.linear(x, x); F.linear(x, x, u); F.linear(b, x, u); F.linear(v, x)
x.sum(); x.sum(0); x.mean(); x.mean((0, 1)); x.prod(); x.prod(0); x.norm(); x.norm(dim=0); x.max(); x.max(0)[0]
x.min(1)[0]; x.median(); x.median(0)[0]; x.nansum(); x.squeeze(); x.squeeze(0); x.clamp(0, 1); x.clamp(min=x)
x.pow(2); x ** x; 2 ** x; x.div(2, rounding_mode="floor"); x / x; 1 - x; x - 1; x % 2; x.remainder(x); x.lerp(x, 0.5)
x.lerp(x, x); x.scatter(0, T.tensor([[0]]), 0.0); x.scatter(0, T.tensor([[0]]), x); x.t(); x.T; x.mT; x.transpose(0, 1)
x.double(); x.reshape(3, 2); x.flatten(); x.T.contiguous(); x.square(); T.outer(v, v); F.max_pool2d(i, 2)
F.avg_pool2d(i, 2); F.batch_norm(i, None, None, training=True); F.layer_norm(x, (3,)); F.dropout(x, 0.5); F.relu6(x)
F.cross_entropy(x, T.tensor([0, 1])); F.logsigmoid(x); x * 2; x.exp(); x[0]; x.unbind()[0]; x.expand(2, 2, 3)
"""


def test_names_of_nodes(tt):
    def names(m):
        rng = np.random.default_rng(2)
        shapes = {"x": (2, 3), "v": (3,), "u": (2,), "b": (2, 2, 3), "i": (1, 2, 4, 4)}
        space = {n: m.tensor(rng.random(s, np.float32) + 0.1, requires_grad=True) for n, s in shapes.items()}
        space |= {"T": m, "F": m.nn.functional}
        lines = [line.strip() for line in NODES.strip().replace("\n", ";").split(";")]
        return {line: eval(line, space).grad_fn.name() for line in lines}

    assert names(tt) == names(torch)
    assert "grad_fn=<MvBackward0>" in repr(tt.ones(2, 3, requires_grad=True) @ tt.ones(3))
