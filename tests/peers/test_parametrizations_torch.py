"""Compares nn.utils.parametrizations.orthogonal, transferred parametrizations, nn.grad and conv_tbc with
PyTorch's."""

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def data(t, *shape, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype == "complex128":
        values = values + 1j * rng.standard_normal(shape)
    return t.tensor(values)


class Holder:
    """A module whose weight is one matrix or a batch of matrices."""

    def __new__(cls, t, shape, dtype):
        module = t.nn.Module()
        module.weight = t.nn.Parameter(data(t, *shape, dtype=dtype))
        return module


def same(ours, theirs, tolerance=1e-9):
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


CASES = [(shape, dtype, kind, trivial) for shape in [(4, 4), (4, 3), (3, 4), (2, 4, 3)]
         for dtype in ("float64", "complex128") for kind in (None, "matrix_exp", "cayley", "householder")
         for trivial in (True, False) if not (dtype == "complex128" and kind == "householder")]


@pytest.mark.parametrize(("shape", "dtype", "kind", "trivial"), CASES, ids=str)
def test_orthogonal(tt, shape, dtype, kind, trivial):
    """The same weight and, from the same base and original, the same gradients; the weight is orthonormal
    after a step."""
    modules = []
    for t in (tt, torch):
        module = Holder(t, shape, dtype)
        t.nn.utils.parametrizations.orthogonal(module, orthogonal_map=kind, use_trivialization=trivial)
        modules.append(module)
    ours, theirs = modules
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)
    same(ours.weight, theirs.weight)
    theirs.load_state_dict(tt.to_torch(ours.state_dict()))  # because a base is completed by random columns
    for t, module in ((tt, ours), (torch, theirs)):
        (module.weight * data(t, *shape, seed=1)).sum().abs().backward()
        t.optim.SGD(module.parameters(), lr=0.1).step()
    same(ours.parametrizations.weight.original.grad, theirs.parametrizations.weight.original.grad)
    same(ours.weight, theirs.weight)
    q = ours.weight if shape[-2] >= shape[-1] else ours.weight.mT
    np.testing.assert_allclose((q.mH @ q - tt.eye(q.size(-1))).abs().max().item(), 0, atol=1e-9)


def test_orthogonal_assigned_and_refused(tt):
    outcomes = []
    for t in (tt, torch):
        square = t.nn.utils.parametrizations.orthogonal(Holder(t, (3, 3), "float64"))
        turned = t.eye(3, dtype=t.float64)[[2, 0, 1]]
        square.weight = turned
        said = [square.weight.tolist() == turned.tolist(), square.parametrizations.weight.original.tolist()]
        free = t.nn.utils.parametrizations.orthogonal(Holder(t, (3, 3), "float64"), use_trivialization=False)

        def put(free=free, turned=turned):
            free.weight = turned

        def wrong(square=square, t=t):
            square.weight = t.ones(2, 3)

        make = t.nn.utils.parametrizations.orthogonal
        for refused in (put, wrong, lambda t=t, make=make: make(t.nn.BatchNorm1d(3)),
                        lambda t=t, make=make: make(t.nn.Linear(2, 2), "nothing"),
                        lambda t=t, make=make: make(t.nn.Linear(2, 2), orthogonal_map="qr"),
                        lambda t=t, make=make: make(Holder(t, (2, 2), "complex128"), orthogonal_map="householder")):
            with pytest.raises((ValueError, NotImplementedError)) as error:
                refused()
            said.append(type(error.value))
        outcomes.append(said)
    assert outcomes[0] == outcomes[1]


def test_transferred(tt):
    for t in (tt, torch):
        parametrize = importlib.import_module(f"{t.__name__}.nn.utils.parametrize")
        a, b = t.nn.Linear(2, 2), t.nn.Linear(2, 2)
        assert parametrize.transfer_parametrizations_and_params(a, b) is b and not parametrize.is_parametrized(b)
        t.nn.utils.parametrizations.orthogonal(a)
        t.nn.utils.parametrizations.spectral_norm(a)
        parametrize.transfer_parametrizations_and_params(a, b, "weight")
        assert sorted(b.state_dict()) == sorted(a.state_dict()) and b.bias is not a.bias
        assert b.parametrizations.weight.original is a.parametrizations.weight.original
        assert len(b.parametrizations.weight) == 2
        c = t.nn.Module()
        parametrize.transfer_parametrizations_and_params(a, c)
        assert tuple(c.weight.shape) == (2, 2)
        with pytest.raises(KeyError):
            parametrize.transfer_parametrizations_and_params(a, b, "bias")
        assert parametrize.type_before_parametrizations(b) is t.nn.Linear
        assert parametrize.type_before_parametrizations(t.nn.Linear(1, 1)) is t.nn.Linear


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}], ids=str)
def test_gradients_of_convolutions(tt, rank, settings):
    def found(t):
        groups = settings.get("groups", 1)
        x, w = data(t, 2, 4, *[7] * rank), data(t, 6, 4 // groups, *[3] * rank, seed=1)
        g = t.ones_like(getattr(t.nn.functional, f"conv{rank}d")(x, w, **settings)).cumsum(-1).requires_grad_()
        of_input = getattr(t.nn.grad, f"conv{rank}d_input")(x.shape, w, g, **settings)
        of_weight = getattr(t.nn.grad, f"conv{rank}d_weight")(x, w.shape, g, **settings)
        second = t.autograd.grad((of_input**2).sum() + of_weight.sum(), g)[0]
        with t.no_grad():
            silent = getattr(t.nn.grad, f"conv{rank}d_weight")(x, w.shape, g, **settings)
        assert not silent.requires_grad
        return of_input, of_weight, second, silent

    for ours, theirs in zip(found(tt), found(torch), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("pad", [0, 2])
def test_conv_tbc(tt, pad):
    def found(t):
        x, w, b = (data(t, *s).requires_grad_() for s in [(5, 2, 3), (3, 3, 4), (4,)])
        out = t.conv_tbc(x, w, b, pad)
        assert out.is_contiguous()
        return out, *t.autograd.grad((out**2).sum(), (x, w, b))

    for ours, theirs in zip(found(tt), found(torch), strict=True):
        same(ours, theirs)
    with pytest.raises(RuntimeError, match=r"input must have 3 dims .* shape \[5, 3\]"):
        tt.conv_tbc(tt.ones(5, 3), tt.ones(3, 3, 4), tt.ones(4))


def test_embedding_of_bounded_rows_under_jvp(tt):
    def found(t):
        w = data(t, 4, 3) * 3
        return t.func.jvp(lambda w: t.nn.functional.embedding(t.tensor([0, 2, 0]), w, max_norm=1.0) ** 2,
                          (w,), (data(t, 4, 3, seed=1),))

    for ours, theirs in zip(found(tt), found(torch), strict=True):
        same(ours, theirs, 1e-6)


def test_histc_without_bins(tt):
    """If the extremes are not finite PyTorch raises an error, and teletensor's counts are NaN."""
    for bad in (float("inf"), float("-inf"), float("nan")):
        with pytest.raises(RuntimeError):
            torch.histc(torch.tensor([1.0, bad]), 3)
        assert tt.histc(tt.tensor([1.0, bad]), 3).isnan().all().item()
    assert tt.histc(tt.tensor([1.0, float("inf")]), 2, 0, 2).tolist() == [0.0, 1.0]


def test_version_and_threads(tt):
    for t in (tt, torch):
        assert t.version.__version__ == t.__version__ and {"cuda", "debug", "git_version", "hip"} <= set(dir(t.version))
        before = t.get_num_threads()
        assert before > 0 and t.get_num_interop_threads() > 0
        t.set_num_threads(2)
        assert t.get_num_threads() == 2
        t.set_num_threads(before)
        for wrong in (0, -1, 1.5, "1"):
            with pytest.raises(RuntimeError, match="expects a"):
                t.set_num_threads(wrong)
            with pytest.raises(RuntimeError, match="expects a"):
                t.set_num_interop_threads(wrong)
