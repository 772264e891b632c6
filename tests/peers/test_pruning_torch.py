"""Compares nn.utils.prune with PyTorch's: masks, weights, gradients, names and types of errors."""

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def parts(t, seed=0):
    """prune, and two layers whose elements have different magnitudes."""
    rng = np.random.default_rng(seed)
    layers = t.nn.Conv2d(3, 4, 2), t.nn.Linear(6, 5)
    for layer in layers:
        for parameter in layer.parameters():
            parameter.data = t.tensor(rng.standard_normal(tuple(parameter.shape)).astype("float32"))
    return importlib.import_module(f"{t.__name__}.nn.utils.prune"), *layers


def facts(module):
    state = {k: np.round(v.detach().numpy(), 4).tolist() for k, v in module.state_dict().items()}
    return state, [k for k, _ in module.named_parameters()], [k for k, _ in module.named_buffers()]


def one_after_another(t):
    p, conv, linear = parts(t)
    p.l1_unstructured(conv, "weight", 0.3)
    p.ln_structured(conv, "weight", 1, 2, 0)
    p.ln_structured(conv, "weight", 1, float("inf"), -1)
    method = p.L1Unstructured.apply(conv, "weight", 5)
    assert isinstance(method, p.PruningContainer) and len(method) == 4 and isinstance(method[1], p.LnStructured)
    x = t.ones(1, 3, 4, 4)
    conv(x).pow(2).sum().backward()
    return facts(conv), (conv.weight_orig.grad != 0).tolist(), conv.weight.requires_grad


@pytest.mark.parametrize("n", [1, 2.5, "fro", "nuc"])
def test_norms(tt, n):
    def found(t):
        p, conv, _ = parts(t)
        p.ln_structured(conv, "weight", 0.5, n, 1)
        return facts(conv)

    assert found(tt) == found(torch)


def by_scores_and_masks(t):
    p, conv, linear = parts(t)
    scores = t.arange(30.0).reshape(5, 6)
    p.l1_unstructured(linear, "weight", 4, importance_scores=scores)
    p.custom_from_mask(linear, "bias", t.tensor([1, 0, 1, 1, 0]))
    p.ln_structured(linear, "weight", 0.4, 1, 1, importance_scores=scores)
    p.identity(conv, "bias")
    return facts(linear), facts(conv), p.is_pruned(conv)


def trained_and_removed(t):
    p, conv, linear = parts(t)
    model = t.nn.Sequential(linear, t.nn.ReLU())
    weight = linear.weight
    p.l1_unstructured(linear, "weight", 0.5)
    optimizer = t.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(t.ones(2, 6)).sum().backward()
        optimizer.step()
    before = p.is_pruned(model), hasattr(linear, "weight_mask")
    p.remove(linear, "weight")
    assert linear.weight is weight and isinstance(weight, t.nn.Parameter)
    return before, p.is_pruned(model), facts(linear), [k for k, _ in linear.named_parameters()]


def all_at_once(t):
    p, conv, linear = parts(t)
    p.l1_unstructured(conv, "weight", 0.2)
    pairs = [(conv, "weight"), (linear, "weight"), (linear, "bias")]
    p.global_unstructured(pairs, p.L1Unstructured, amount=0.4)
    p.global_unstructured(pairs[1:], p.L1Unstructured, {(linear, "bias"): t.full((5,), 100.0)}, amount=7)
    return facts(conv), facts(linear)


def without_a_module(t):
    p = parts(t)[0]
    x = t.tensor([[1.0, -3.0, 2.0], [4.0, 0.5, -6.0]])
    return (p.L1Unstructured(2).prune(x).tolist(), p.LnStructured(1, 2, 1).prune(x).tolist(),
            p.L1Unstructured(0).prune(x, default_mask=t.tensor([[1, 0, 1], [1, 1, 0]])).tolist(),
            p.L1Unstructured(0.5).compute_mask(x, t.ones(2, 3)).tolist())


def a_method_of_ones_own(t):
    p, conv, linear = parts(t)

    class EveryOther(p.BasePruningMethod):
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, tensor, default_mask):
            mask = default_mask.clone()
            mask.view(-1)[::2] = 0
            return mask

    EveryOther.apply(linear, "weight")
    EveryOther.apply(linear, "weight")
    return facts(linear)


@pytest.mark.parametrize("use", [one_after_another, by_scores_and_masks, trained_and_removed, all_at_once,
                                 without_a_module, a_method_of_ones_own])
def test_both_do_the_same(tt, use):
    assert use(tt) == use(torch)


@pytest.mark.parametrize("kind", ["random_unstructured", "random_structured"])
def test_by_chance(tt, kind):
    counts = []
    for t in (tt, torch):
        p, conv, _ = parts(t)
        more = (1,) if kind == "random_structured" else ()
        getattr(p, kind)(conv, "weight", 0.4, *more)
        getattr(p, kind)(conv, "weight", 1, *more)
        counts.append(int(conv.weight_mask.sum().item()))
    assert counts[0] == counts[1]


REFUSED = """
p.l1_unstructured(linear, "weight", -1)
p.l1_unstructured(linear, "weight", 1.5)
p.l1_unstructured(linear, "weight", "half")
p.l1_unstructured(linear, "weight", 31)
p.ln_structured(linear, "bias", 1, 2, 0)
p.ln_structured(linear, "weight", 1, 2, 2)
p.ln_structured(linear, "weight", 7, 2, 0)
p.l1_unstructured(linear, "weight", 1, importance_scores=t.ones(3))
p.custom_from_mask(linear, "weight", t.ones(3))
p.l1_unstructured(linear, "nothing", 1)
p.remove(linear, "weight")
p.global_unstructured(3, p.L1Unstructured, amount=1)
p.global_unstructured([(linear, "weight")], p.L1Unstructured, [1], amount=1)
p.global_unstructured([(linear, "weight")], p.LnStructured, amount=1, n=2)
"""


@pytest.mark.parametrize("line", REFUSED.strip().split("\n"))
def test_refused(tt, line):
    kinds = []
    for t in (tt, torch):
        p, _, linear = parts(t)
        with pytest.raises(Exception) as error:
            eval(line)
        kinds.append(type(error.value))
        assert not p.is_pruned(linear) and sorted(k for k, _ in linear.named_parameters()) == ["bias", "weight"]
    assert kinds[0] is kinds[1]
