"""Compares sparse gradients of embeddings with PyTorch's: gradients, hooks, optimizers and errors."""

import copy
import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

ROWS, COLUMNS = 6, 3
TABLE = [[0.1 * i + j for j in range(COLUMNS)] for i in range(ROWS)]


def rounded(x):
    return np.array(x.double().tolist()).reshape(tuple(x.shape)).round(5).tolist()


def facts(m, x, order=False):
    """What can be seen of a tensor, as plain values; with `order` also the order of the indices, which is not
    defined for sums of sparse tensors."""
    if x is None:
        return None
    if x.layout is m.strided:
        return "dense", rounded(x.detach())
    x = x if order else x.coalesce()
    places, values = x._indices().tolist(), rounded(x._values())
    return str(x.layout).split(".")[1], str(x.dtype).split(".")[1], tuple(x.shape), x.is_coalesced(), places, values


def layer(m, kind="Embedding", **options):
    made = getattr(m.nn, kind)(ROWS, COLUMNS, sparse=True, **options)
    with m.no_grad():
        made.weight.copy_(m.tensor(TABLE))
    return made


def used(m, e, *rows, power=2):
    """A loss that depends on these rows."""
    return e(m.tensor(list(rows))).pow(power).sum()


def once(m):
    e = layer(m)
    used(m, e, [1, 4], [1, 0]).backward()
    return facts(m, e.weight.grad, True), e.weight.grad.is_sparse, facts(m, e.weight.grad)


def one_row(m):
    e = layer(m)
    used(m, e, 4).backward()
    return facts(m, e.weight.grad, True)


def no_rows(m):
    e = layer(m)
    e(m.zeros(0, dtype=m.int64)).sum().backward()
    return facts(m, e.weight.grad, True)


def several_backwards(m):
    e = layer(m)
    used(m, e, 1, 4).backward()
    first = e.weight.grad
    used(m, e, 2, 4).backward()
    return facts(m, e.weight.grad), first is e.weight.grad


def several_lookups(m):
    e = layer(m)
    (used(m, e, 1, 4) + 2 * used(m, e, 4, 2) + used(m, e, 5)).backward()
    return facts(m, e.weight.grad)


def with_a_dense_use(m):
    e = layer(m)
    (used(m, e, 1, 4) + e.weight.pow(2).sum()).backward()
    return facts(m, e.weight.grad)


def dense_after_sparse(m):
    e = layer(m)
    used(m, e, 1, 4).backward()
    e.weight.pow(2).sum().backward()
    return facts(m, e.weight.grad)


def sparse_after_dense(m):
    e = layer(m)
    e.weight.pow(2).sum().backward()
    used(m, e, 1, 4).backward()
    return facts(m, e.weight.grad)


def as_results(m):
    e = layer(m)
    other = m.ones(3, requires_grad=True)
    loss = (e(m.tensor([1, 4])) * other).sum()
    found = m.autograd.grad(loss, [e.weight, other])
    return [facts(m, each) for each in found], e.weight.grad


def of_inputs(m):
    e, f = layer(m), layer(m)
    (used(m, e, 1, 4) * used(m, f, 2)).backward(inputs=[e.weight])
    return facts(m, e.weight.grad), f.weight.grad


def hooks(m):
    e, seen = layer(m), []
    e.weight.register_hook(lambda g: seen.append(facts(m, g)))
    e.weight.register_hook(lambda g: g * 2)
    e.weight.register_post_accumulate_grad_hook(lambda p: seen.append(facts(m, p.grad)))
    (used(m, e, 1, 4) + used(m, e, 1)).backward()
    return seen, facts(m, e.weight.grad)


def hooks_of_a_dense_sum(m):
    e, seen = layer(m), []
    e.weight.register_hook(lambda g: seen.append(facts(m, g)))
    e.weight.register_post_accumulate_grad_hook(lambda p: seen.append(facts(m, p.grad)))
    (used(m, e, 1, 4) + e.weight.sum()).backward()
    return seen


def removed_hook(m):
    e, seen = layer(m), []
    e.weight.register_hook(lambda g: seen.append(1)).remove()
    used(m, e, 1).backward()
    return seen


def retained_graph(m):
    e = layer(m)
    loss = used(m, e, 1, 4)
    loss.backward(retain_graph=True)
    loss.backward()
    return facts(m, e.weight.grad)


def scaled_seed(m):
    e, seed = layer(m), m.full((2, COLUMNS), 3.0)
    e(m.tensor([1, 4])).backward(seed)
    e.weight.grad.mul_(2)
    return facts(m, e.weight.grad), facts(m, seed)


def maximal_norm(m):
    e = layer(m, max_norm=1.0)
    used(m, e, 1, 4, power=1).backward()
    return facts(m, e.weight.grad), facts(m, e.weight)


def clipped(m):
    e = layer(m)
    used(m, e, 1, 4).backward()
    norm = m.nn.utils.clip_grad_norm_(e.parameters(), 1.0)
    return round(norm.item(), 4), facts(m, e.weight.grad)


def set_to_zero(m):
    e = layer(m)
    used(m, e, 1, 4).backward()
    m.optim.SGD(e.parameters()).zero_grad(set_to_none=False)
    zero = facts(m, e.weight.grad)
    used(m, e, 2).backward()
    later = facts(m, e.weight.grad)
    e.zero_grad()
    return zero, later, e.weight.grad


def copied(m):
    e = layer(m)
    used(m, e, 1, 4).backward()
    other = copy.deepcopy(e.weight.grad)
    other.mul_(2)
    e.double()
    return facts(m, other), facts(m, e.weight.grad), copy.deepcopy(e).weight.grad


def checkpointed(m):
    e = layer(m)
    checkpoint = importlib.import_module(m.__name__ + ".utils.checkpoint").checkpoint
    checkpoint(e, m.tensor([1, 4]), use_reentrant=False).pow(2).sum().backward()
    return facts(m, e.weight.grad)


def frozen(m):
    e = layer(m, _freeze=True)
    with m.no_grad():
        unrecorded = layer(m)(m.tensor([1]))
    return used(m, e, 1).requires_grad, unrecorded.requires_grad


def assigned(m):
    w = m.nn.Parameter(m.tensor(TABLE))
    w.grad = m.sparse_coo_tensor(m.tensor([[1]]), m.ones(1, COLUMNS), (ROWS, COLUMNS))
    m.nn.functional.embedding(m.tensor([2]), w, sparse=True).sum().backward()
    return facts(m, w.grad)


def bag(mode, **options):
    def run(m):
        e = layer(m, "EmbeddingBag", mode=mode, **options)
        e(m.tensor([1, 4, 1, 0, 2]), m.tensor([0, 2])).pow(2).sum().backward()
        e(m.tensor([[1, 4], [5, 5]])).pow(2).sum().backward()
        return facts(m, e.weight.grad)

    return run


def weighted_bag(m):
    e = layer(m, "EmbeddingBag", mode="sum")
    weights = m.tensor([0.1, 0.2, 0.3, 0.4, 0.5], requires_grad=True)
    e(m.tensor([1, 4, 1, 0, 2]), m.tensor([0, 2]), per_sample_weights=weights).pow(2).sum().backward()
    return facts(m, e.weight.grad), facts(m, weights.grad)


VALUES = {each.__name__: each for each in (
    once, one_row, no_rows, several_backwards, several_lookups, with_a_dense_use, dense_after_sparse,
    sparse_after_dense, as_results, of_inputs, hooks, hooks_of_a_dense_sum, removed_hook, retained_graph, scaled_seed,
    maximal_norm, clipped, set_to_zero, copied, checkpointed, frozen, assigned, weighted_bag)}
VALUES |= {"bag sum": bag("sum"), "bag mean": bag("mean")}


@pytest.mark.parametrize("name", VALUES)
def test_values(tt, name):
    assert VALUES[name](tt) == VALUES[name](torch)


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_the_row_of_the_padding(tt, kind):
    """PyTorch leaves the row padding_idx out of the indices, which would have to wait for the number of the
    others. Here the row has zeros."""
    found = []
    for m in (tt, torch):
        e = layer(m, kind, padding_idx=1)
        e(m.tensor([[1, 4], [1, 0]])).pow(2).sum().backward()
        found.append(e.weight.grad.coalesce())
    assert found[0].to_dense().tolist() == pytest.approx(found[1].to_dense().numpy())
    assert found[0].indices().tolist() == [[0, 1, 4]] and found[1].indices().tolist() == [[0, 4]]


def trained(m, name, options, steps=4):
    """The table after some steps, and the states."""
    e = layer(m)
    optimizer = getattr(m.optim, name)(e.parameters(), **options)
    for i in range(steps):
        optimizer.zero_grad()
        used(m, e, [1, 4], [1, i]).backward()
        optimizer.step()
    states = {}
    for key, value in optimizer.state[e.weight].items():
        if not isinstance(value, (int, float, type(None))):
            value = facts(m, value)
        states[key] = value if key != "step" else float(value if isinstance(value, (int, float)) else value[1])
    return facts(m, e.weight), states


OPTIMIZERS = [
    ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.2}), ("SGD", {"maximize": True}),
    ("Adagrad", {}), ("Adagrad", {"lr_decay": 0.1, "maximize": True}), ("Adagrad", {"initial_accumulator_value": 0.5}),
    ("SparseAdam", {}), ("SparseAdam", {"maximize": True, "betas": (0.7, 0.8), "eps": 1e-3}),
]


@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=str)
def test_optimizers(tt, name, options):
    ours, theirs = (trained(m, name, {"lr": 0.1, **options}) for m in (tt, torch))
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert a == (pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(b, float) else b)


def flat(x):
    if isinstance(x, dict):
        return [each for key in sorted(x) for each in [key, *flat(x[key])]]
    return [each for part in x for each in flat(part)] if isinstance(x, (list, tuple)) else [x]


def test_lbfgs(tt):
    found = []
    for m in (tt, torch):
        e = layer(m)
        optimizer = m.optim.LBFGS(e.parameters(), lr=0.1)

        def closure(m=m, e=e, optimizer=optimizer):
            optimizer.zero_grad()
            loss = used(m, e, 1, 4)
            loss.backward()
            return loss

        optimizer.step(closure)
        found.append(e.weight.detach().numpy())
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def step_of(name, **options):
    return lambda m: trained(m, name, options, 1)


def no_dense_gradients(m):
    w = m.nn.Parameter(m.ones(2, 2))
    optimizer = m.optim.SparseAdam([w])
    w.sum().backward()
    optimizer.step()


def scaled_by_frequency(m):
    used(m, layer(m, scale_grad_by_freq=True), 1, 1).backward()


def of_another_type(m):
    e = layer(m)
    e.weight.register_hook(lambda g: g.to_dense())
    used(m, e, 1).backward()


def assign(**changes):
    def run(m):
        values = m.ones(1, COLUMNS, dtype=getattr(m, changes.get("dtype", "float32")))
        m.nn.Parameter(m.tensor(TABLE)).grad = m.sparse_coo_tensor(
            m.tensor([[1]]), values, (changes.get("rows", ROWS), COLUMNS))

    return run


# The error, and a text that PyTorch's error also has.
ERRORS = {
    **{name: (step_of(name), "does not support sparse gradients") for name in
       "Adam AdamW Adamax Adadelta ASGD NAdam RAdam RMSprop Rprop Adafactor Muon".split()},
    "Adam's advice": (step_of("Adam"), "please consider SparseAdam instead"),
    "decay of SGD": (step_of("SGD", weight_decay=0.1), "add(sparse, dense) is not supported"),
    "decay of Adagrad": (step_of("Adagrad", weight_decay=0.1),
                         "weight_decay option is not compatible with sparse gradients"),
    "SparseAdam": (no_dense_gradients, "SparseAdam does not support dense gradients, please consider Adam instead"),
    "scale_grad_by_freq": (scaled_by_frequency, "scale_grad_by_freq not supported with sparse gradients"),
    "mode max": (bag("max"), "max mode does not support sparse weights"),
    "a hook's type": (of_another_type, "has changed the type of"),
    "assigned shape": (assign(rows=7), "attempting to assign a gradient of size '[7, 3]' to a tensor of size '[6, 3]'"),
    "assigned dtype": (assign(dtype="float64"), "attempting to assign a gradient with dtype"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(tt, name):
    run, text = ERRORS[name]
    kinds = []
    for m in (tt, torch):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            run(m)
        assert text in str(caught.value)
        kinds.append(caught.type)
    assert kinds[0] is kinds[1] or issubclass(kinds[0], kinds[1])
