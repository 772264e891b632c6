"""Compares several parametrizations of one tensor, modules of complex numbers, and functions that programs
for PyTorch call around a model with PyTorch's."""

import numpy as np
import pytest

VALUES = np.arange(9, dtype=np.float32).reshape(3, 3) / 10


def of(t, kind, inverse=None):
    """A module that computes `kind`, with `inverse` as its right_inverse."""
    made = type("Made", (t.nn.Module,), {"forward": lambda self, x: kind(x)})()
    if inverse is not None:
        made.right_inverse = inverse
    return made


def linear(t):
    model = t.nn.Linear(3, 3)
    with t.no_grad():
        model.weight.copy_(t.tensor(VALUES))
    return model


def stacked(t, *modules):
    model = linear(t)
    for kind, inverse in modules:
        t.nn.utils.parametrize.register_parametrization(model, "weight", of(t, kind, inverse))
    return (model.weight.detach().numpy().tolist(),
            model.parametrizations.weight.original.detach().numpy().tolist())


@pytest.mark.parametrize("modules", [
    [(lambda x: x * 2, lambda x: x / 2), (lambda x: x * 4, lambda x: x / 4)],
    [(lambda x: x + 1, None), (lambda x: x * 2, lambda x: x / 2)],
    [(lambda x: x * 2, lambda x: x / 2), (lambda x: x - 1, None)],
    [(lambda x: x * 2, None), (lambda x: x[:2], None)],
    [(lambda x: x * 2, None), (lambda x: (x, x), None)],
    [(lambda x: x * 2, None), (lambda x: x * 2, lambda x: x[0])],
    [(lambda x: x * 2, lambda x: [None, x])],
])
def test_a_further_parametrization_is_applied_to_what_is_there(tt, modules):
    import torch

    def outcome(t):
        try:
            return stacked(t, *modules)
        except Exception as error:
            return type(error)

    assert outcome(tt) == outcome(torch)


def test_modules_become_complex(tt):
    import torch

    for t in (tt, torch):
        model = t.nn.Sequential(t.nn.Linear(2, 2)).to(t.complex64)
        assert model[0].weight.dtype == t.complex64
        assert model.to(t.complex128)(t.ones(1, 2, dtype=t.complex128)).dtype == t.complex128
        with pytest.raises(TypeError):
            model.to(t.int32)


def test_forked_random_numbers_leave_the_generator_alone(tt):
    tt.random.manual_seed(3)
    with tt.random.fork_rng():
        inner = tt.rand(4)
    assert inner.tolist() == tt.rand(4).tolist()
    assert tt.random.initial_seed() == 3 == tt.initial_seed()


def test_cudnn_flags_are_switches_for_a_while(tt):
    cudnn = tt.backends.cudnn
    with cudnn.flags(enabled=False, deterministic=True):
        assert (cudnn.enabled, cudnn.deterministic) == (False, True)
    assert (cudnn.enabled, cudnn.deterministic) == (True, False)


def test_sizes_and_types_from_tensors(tt):
    x = tt.arange(10)
    assert x.narrow(0, tt.tensor(2), tt.tensor(3)).tolist() == [2, 3, 4]
    packed = tt.nn.utils.rnn.pack_padded_sequence(tt.ones(3, 2, 1), tt.tensor([3, 1]))
    assert [getattr(packed, name)().data.dtype for name in ("long", "int", "short", "char", "byte")] == [
        tt.int64, tt.int32, tt.int16, tt.int8, tt.uint8]
    assert tt.nn.init.calculate_gain("conv_transpose2d") == 1.0
