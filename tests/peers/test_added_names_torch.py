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
