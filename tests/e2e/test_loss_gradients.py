"""Gradients of losses with respect to weights and variances, and at their kinks."""

import numpy as np
import pytest

LIMITED = [(1e-6, 0.0), (1e-6, 1e-8), (0.1, 0.05), (0.1, 0.1), (0.1, 0.2)]


@pytest.mark.parametrize(("eps", "variance"), LIMITED)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_variance_below_eps_keeps_its_gradient(tt, eps, variance, full, reduction):
    """The derivative with respect to v = max(var, eps) itself: 0.5 (1 / v - d^2 / v^2)."""
    F = tt.nn.functional
    difference = np.array([1.0, 2.0])
    d = tt.tensor(difference)

    def loss(v):
        return F.gaussian_nll_loss(d, tt.zeros(2, dtype=d.dtype), v, full, eps, reduction).sum()

    var = tt.full((2,), variance, dtype=tt.float64)
    v = max(variance, eps)
    expected = 0.5 * (1 / v - difference**2 / v**2) / (2 if reduction == "mean" else 1)
    value = (0.5 * (np.log(v) + difference**2 / v + (np.log(2 * np.pi) if full else 0)))
    assert np.allclose(loss(var).item(), value.mean() if reduction == "mean" else value.sum())
    for gradient in (tt.func.grad(loss)(var), tt.func.jacfwd(loss)(var), tt.compile(tt.func.grad(loss))(var)):
        assert np.allclose(gradient.numpy(), expected)


# ---------------------------------------------------------------- weights


def numeric(f, w, step=1e-6):
    """Central differences of f(w) for a vector of NumPy."""
    out = []
    for i in range(len(w)):
        high, low = w.copy(), w.copy()
        high[i] += step
        low[i] -= step
        out.append((f(high) - f(low)) / (2 * step))
    return np.array(out)


CLASSES = np.array([0, 2, 1, 2])
CLASS_CASES = [(function, shape, target, smoothing, reduction)
               for reduction in ("none", "mean", "sum")
               for function, shape, target, smoothing in [
                   ("nll_loss", (4, 3), "classes", 0), ("nll_loss", (4, 3), "ignored", 0),
                   ("nll_loss", (3,), "one", 0), ("nll_loss", (2, 3, 2), "many", 0),
                   ("cross_entropy", (4, 3), "classes", 0), ("cross_entropy", (4, 3), "classes", 0.2),
                   ("cross_entropy", (4, 3), "ignored", 0.2), ("cross_entropy", (3,), "one", 0.2),
                   ("cross_entropy", (2, 3, 2), "many", 0.2), ("cross_entropy", (4, 3), "probabilities", 0),
                   ("cross_entropy", (4, 3), "probabilities", 0.2), ("cross_entropy", (3,), "probabilities", 0.1),
                   ("cross_entropy", (2, 3, 2), "probabilities", 0.2)]]


@pytest.mark.parametrize(("function", "shape", "target", "smoothing", "reduction"), CLASS_CASES)
def test_weights_of_classes(tt, function, shape, target, smoothing, reduction):
    rng = np.random.default_rng(3)
    x = tt.tensor(rng.normal(size=shape))
    w0 = rng.uniform(0.5, 2, 3)
    t = {"classes": lambda: tt.tensor(CLASSES), "ignored": lambda: tt.tensor([0, -100, 1, -100]),
         "one": lambda: tt.tensor(2), "many": lambda: tt.tensor([[0, 2], [-100, 1]]),
         "probabilities": lambda: tt.tensor(rng.dirichlet(np.ones(shape[-1]), shape[:-1]))}[target]()
    options = {"reduction": reduction} | ({"label_smoothing": smoothing} if smoothing else {})
    lines = np.arange(1.0, 5)[: 1 if len(shape) == 1 else 4].reshape(shape[:1] + shape[2:] if len(shape) > 1 else ())

    def loss(x, w):
        out = getattr(tt.nn.functional, function)(x, t, w, **options)
        return (out * tt.tensor(lines)).sum() if reduction == "none" else out

    def by_x(x, w):  # second derivative: of the gradient by x, with respect to the weights
        return (tt.func.grad(loss)(x, w) * tt.arange(x.numel(), dtype=x.dtype).reshape(x.shape)).sum()

    w = tt.tensor(w0)
    expected = numeric(lambda v: loss(x, tt.tensor(v)).item(), w0)
    assert np.abs(expected).max() > 1e-3 or (function, target, reduction) == ("nll_loss", "one", "mean")
    for gradient in (tt.func.grad(loss, 1)(x, w), tt.func.jacfwd(loss, 1)(x, w),
                     tt.compile(tt.func.grad(loss, 1))(x, w)):
        assert np.allclose(gradient.numpy(), expected, atol=1e-7)
    assert np.allclose(tt.func.grad(by_x, 1)(x, w).detach().numpy(),
                       numeric(lambda v: by_x(x, tt.tensor(v)).item(), w0), atol=1e-6)
    slopes = numeric(lambda v: tt.func.grad(loss, 1)(x, tt.tensor(v)).numpy(), w0)
    assert np.allclose(tt.func.hessian(loss, 1)(x, w).numpy(), slopes, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(2, 3), (3,), (2, 1), ()])
@pytest.mark.parametrize("function", ["binary_cross_entropy", "binary_cross_entropy_with_logits"])
def test_weights_of_elements(tt, function, shape, reduction):
    rng = np.random.default_rng(4)
    x, t = tt.tensor(rng.uniform(0.1, 0.9, (2, 3))), tt.tensor(rng.uniform(0, 1, (2, 3)))
    w0 = rng.uniform(0.5, 2, shape)

    def loss(w, pos):
        more = {} if function == "binary_cross_entropy" else {"pos_weight": pos}
        out = getattr(tt.nn.functional, function)(x, t, w, reduction=reduction, **more)
        return (out * tt.arange(1.0, 7, dtype=x.dtype).reshape(2, 3)).sum() if reduction == "none" else out

    flat, pos = w0.reshape(-1), tt.ones(3, dtype=x.dtype)
    expected = numeric(lambda v: loss(tt.tensor(v.reshape(shape)), pos).item(), flat).reshape(shape)
    assert np.allclose(tt.func.grad(loss)(tt.tensor(w0), pos).numpy(), expected, atol=1e-7)
    assert np.allclose(tt.func.jacfwd(loss)(tt.tensor(w0), pos).numpy(), expected, atol=1e-7)


def test_weights_of_elements_in_16_bits(tt):
    """For 16-bit dtypes the loss is a single op, unlike for wider dtypes: it has the same derivatives."""
    x, t = tt.tensor([0.5, -1.0]), tt.tensor([0.25, 1.0])
    w, pos = tt.tensor([1.0, 2.0]), tt.tensor([3.0, 0.5])
    loss = tt.nn.functional.binary_cross_entropy_with_logits

    def gradients(dtype):
        return tt.func.grad(lambda w, p: loss(x.to(dtype), t.to(dtype), w, pos_weight=p), (0, 1))(
            w.to(dtype), pos.to(dtype))

    for a, b in zip(gradients(tt.float16), gradients(tt.float32), strict=True):
        assert np.allclose(a.float().numpy(), b.numpy(), rtol=2e-3) and b.numpy().all()


def test_a_learned_weight_moves(tt):
    """The examples of the fault report."""
    F = tt.nn.functional
    x = tt.tensor([[1.0, 2.0], [0.0, 1.0]])
    w = tt.tensor([1.0, 2.0], requires_grad=True)
    F.cross_entropy(x, tt.tensor([[0.5, 0.5], [1.0, 0.0]]), weight=w).backward()
    assert np.allclose(w.grad.numpy(), [0.98495, 0.07832], atol=1e-5)
    for loss in (F.cross_entropy(x, tt.tensor([0, 1]), weight=w),
                 F.nll_loss(x, tt.tensor([1, 0]), weight=w), F.binary_cross_entropy(x / 3, x / 3, weight=w)):
        (gradient,) = tt.autograd.grad(loss, w)
        assert gradient.numpy().all()


# ---------------------------------------------------------------- kinks, as PyTorch 2.15

NAN, INF = float("nan"), float("inf")
POINTS = [0.0, 1.0, 0.5, -1.0, 2.0, NAN, INF, -INF]
KINKS = {
    "clamp": (lambda tt, x: x.clamp(0.0, 1.0), [POINTS], [[0, 0, 1, 0, 0, 0, 0, 0]]),
    "clamp in place": (lambda tt, x: (x * 1).clamp_(0.0, 1.0), [POINTS], [[0, 0, 1, 0, 0, 0, 0, 0]]),
    "clip": (lambda tt, x: tt.clip(x, 0, 1), [POINTS], [[0, 0, 1, 0, 0, 0, 0, 0]]),
    "clamp min": (lambda tt, x: x.clamp(min=0.0), [POINTS], [[0, 1, 1, 0, 1, 0, 1, 0]]),
    "clamp max": (lambda tt, x: x.clamp(max=1.0), [POINTS], [[1, 0, 1, 1, 0, 0, 0, 1]]),
    "clamp_min": (lambda tt, x: tt.clamp_min(x, 0.0), [POINTS], [[0, 1, 1, 0, 1, 0, 1, 0]]),
    "clamp_max": (lambda tt, x: tt.clamp_max(x, 1.0), [POINTS], [[1, 0, 1, 1, 0, 0, 0, 1]]),
    "clamp tensors": (lambda tt, x, a, b: x.clamp(a, b), [POINTS, [0.0] * 8, [1.0] * 8],
                      [[0.5, 0.5, 1, 0, 0, 1, 0, 0], [0.5, 0, 0, 1, 0, 0, 0, 1], [0, 0.5, 0, 0, 1, 0, 1, 0]]),
    "clamp equal tensors": (lambda tt, x, a, b: x.clamp(a, b), [POINTS, [1.0] * 8, [1.0] * 8],
                            [[0, 1, 0, 0, 0, 1, 0, 0], [1, 0, 1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0, 1, 0]]),
    "clamp swapped tensors": (lambda tt, x, a, b: x.clamp(a, b), [POINTS, [1.0] * 8, [0.0] * 8],
                              [[0, 0, 0, 0, 0, 1, 0, 0], [0] * 8, [1] * 8]),
    "clamp a tensor as min": (lambda tt, x, a: x.clamp(min=a), [POINTS, [0.0] * 8],
                              [[0.5, 1, 1, 0, 1, 1, 1, 0], [0.5, 0, 0, 1, 0, 1, 0, 1]]),
    "clamp a tensor as max": (lambda tt, x, a: x.clamp(max=a), [POINTS, [1.0] * 8],
                              [[1, 0.5, 1, 1, 0, 1, 0, 1], [0, 0.5, 0, 0, 1, 1, 1, 0]]),
    "clamp a 0-d tensor as min": (lambda tt, x, a: x.clamp(min=a), [POINTS, 0.0],
                                  [[0.5, 1, 1, 0, 1, 1, 1, 0], 3.5]),
    "fmax": (lambda tt, a, b: tt.fmax(a, b), [[1.0, 2, 0, NAN, 1, INF, -INF, NAN], [1.0, 1, 1, 1, NAN, INF, -INF, NAN]],
             [[0.5, 1, 0, 0, 1, 0.5, 0.5, 1], [0.5, 0, 1, 1, 0, 0.5, 0.5, 0]]),
    "fmin": (lambda tt, a, b: tt.fmin(a, b), [[1.0, 2, 0, NAN, 1, INF, -INF, NAN], [1.0, 1, 1, 1, NAN, INF, -INF, NAN]],
             [[0.5, 0, 1, 0, 1, 0.5, 0.5, 1], [0.5, 1, 0, 1, 0, 0.5, 0.5, 0]]),
    "celu": (lambda tt, x: tt.nn.functional.celu(x), [[0.0, 1.0]], [[1, 1]]),
    "softshrink": (lambda tt, x: tt.nn.functional.softshrink(x), [[0.5, -0.5, 0.0, 1.0, -2.0]], [[0, 0, 0, 1, 1]]),
    "hinge_embedding_loss": (
        lambda tt, x: tt.nn.functional.hinge_embedding_loss(x, tt.tensor([1.0, -1, -1, 1, -1]), reduction="sum"),
        [[0.0, 1, 0.5, 1, 2]], [[1, 0, -1, 1, 0]]),
    "margin_ranking_loss": (
        lambda tt, x, y: tt.nn.functional.margin_ranking_loss(x, y, tt.tensor([1.0, -1, 1, 1]), 1.0, reduction="sum"),
        [[1.0, 0, 2, 0], [0.0, 1, 0, 0]], [[0, 0, 0, -1], [0, 0, 0, 1]]),
    "multi_margin_loss": (
        lambda tt, x: tt.nn.functional.multi_margin_loss(x, tt.tensor([1, 2]), reduction="sum"),
        [[[1.0, 2, 0], [0, 0, 1]]], [[[0] * 3] * 2]),
    "multilabel_margin_loss": (
        lambda tt, x: tt.nn.functional.multilabel_margin_loss(
            x, tt.tensor([[0, -1, -1], [2, -1, -1]]), reduction="sum"),
        [[[1.0, 2, 0], [0, 0, 1]]], [[[-1 / 3, 1 / 3, 0], [0, 0, 0]]]),
    "cosine_embedding_loss": (
        lambda tt, x, y: tt.nn.functional.cosine_embedding_loss(x, y, tt.tensor([-1.0])),
        [[[1.0, 0]], [[0.0, 1]]], [[[0, 0]], [[0, 0]]]),
    "triplet_margin_loss": (
        lambda tt, x, y, z: tt.nn.functional.triplet_margin_loss(x, y, z, eps=0.0, p=1),
        [[[1.0, 0]], [[1.0, 0]], [[0.0, 0]]], [[[0, 0]], [[0, 0]], [[0, 0]]]),
}


@pytest.mark.parametrize(("call", "values", "expected"), KINKS.values(), ids=KINKS)
def test_gradients_at_kinks(tt, call, values, expected):
    inputs = [tt.tensor(v, requires_grad=True) for v in values]
    call(tt, *inputs).sum().backward()
    for x, want in zip(inputs, expected, strict=True):
        assert np.allclose(x.grad.numpy(), np.array(want, np.float32)), x.grad


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_grid_sample_has_the_grid_on_its_path(tt, mode, padding, align):
    """Nearest-neighbour sampling is constant between steps, so its gradients are zeros, not None. At the
    border the position is clamped."""
    image = tt.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], requires_grad=True)
    places = [[-1.0, -1.0], [1.0, 1.0], [0.25, 0.0]]
    grid = tt.tensor([[places]], requires_grad=True)
    out = tt.nn.functional.grid_sample(image, grid, mode, padding, align)
    (gradient,) = tt.autograd.grad(out.sum(), grid, retain_graph=True)
    (out**2).sum().backward()
    assert image.grad.numpy().any()
    got = gradient.numpy()[0, 0]
    if mode == "nearest":
        assert not got.any() and not grid.grad.numpy().any()
    elif padding != "zeros":
        assert not got[:2].any() and got[2].all()
