"""Compares torch.nn.functional with teletensor's: values and gradients for random arguments, for every
function."""

import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

TRIALS = 12


class Call:
    """A function's name, arrays that become tensors (floating-point ones have gradients), and other
    arguments."""

    def __init__(self, name, *args, grad=True, dtype="float64", rtol=1e-9, atol=1e-10, **kwargs):
        self.name, self.args, self.kwargs = name, args, kwargs
        self.grad, self.dtype, self.rtol, self.atol = grad, dtype, rtol, atol

    def run(self, m):
        leaves = []

        def tensor(x):
            if isinstance(x, np.ndarray):
                if x.dtype.kind != "f":
                    return m.tensor(x)
                made = m.tensor(x.astype(np.float32 if self.dtype == "float32" else np.float64))
                made = made.to(getattr(m, self.dtype)).detach()
                leaves.append(made.requires_grad_(self.grad))
                return made
            if isinstance(x, Fixed):
                return m.tensor(x.array).to(getattr(m, self.dtype))
            return x
        args = [tensor(a) for a in self.args]
        kwargs = {k: tensor(v) for k, v in self.kwargs.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = getattr(m.nn.functional, self.name)(*args, **kwargs)
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        floats = [o for o in outs if o.dtype.is_floating_point and o.requires_grad]
        if floats and self.grad:
            rng = np.random.default_rng(7)
            total = None
            for o in floats:
                weights = m.tensor(rng.normal(size=tuple(o.shape))).to(o.dtype)
                part = (o * weights).sum()
                total = part if total is None else total + part
            total.backward()
        wide = m.float64
        values = [(o.detach().to(wide) if o.dtype.is_floating_point else o).numpy() for o in outs]
        grads = [None if x.grad is None else x.grad.to(wide).numpy() for x in leaves]
        return values, grads, [str(o.dtype).rpartition(".")[2] for o in outs]


class Fixed:
    """An array without a gradient."""

    def __init__(self, array):
        self.array = array


def check(tt, call):
    try:
        theirs = call.run(torch)
    except (RuntimeError, ValueError, NotImplementedError, IndexError) as refused:
        with pytest.raises((RuntimeError, ValueError, NotImplementedError, IndexError)):
            call.run(tt)
        return str(refused)
    ours = call.run(tt)
    assert ours[2] == theirs[2], (call.name, call.kwargs)
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert a.shape == b.shape, (call.name, a.shape, b.shape, call.kwargs)
        np.testing.assert_allclose(a, b, rtol=call.rtol, atol=call.atol, err_msg=f"{call.name} {call.kwargs}")
    for i, (a, b) in enumerate(zip(ours[1], theirs[1], strict=True)):
        a = np.zeros_like(b) if a is None and b is not None else a
        b = np.zeros_like(a) if b is None and a is not None else b
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=call.rtol * 10, atol=call.atol * 10,
                                       err_msg=f"{call.name} gradient {i} {call.kwargs}")
    return None


# ---------------------------------------------------------------- generators of calls

GENERATORS = {}


def generator(*names):
    def keep(function):
        for name in names:
            GENERATORS[name] = function
        return function
    return keep


def normal(rng, *shape):
    return rng.normal(size=shape)


@generator("conv1d", "conv2d", "conv3d")
def conv(name, r, rng):
    n, g = int(name[4]), r.choice([1, 1, 2, 3])
    ic, oc = g * r.choice([1, 2, 4]), g * r.choice([1, 3])
    kernel = [r.choice([1, 2, 3]) for _ in range(n)]
    size = [r.choice([4, 5, 8]) for _ in range(n)]
    lead = () if r.random() < 0.2 else (2,)
    dilation = r.choice([1, 2, [r.choice([1, 2]) for _ in range(n)]])
    if r.random() < 0.3:
        stride, padding = 1, r.choice(["same", "valid"])
    else:
        stride = r.choice([1, 2, [r.choice([1, 2, 3]) for _ in range(n)]])
        padding = r.choice([0, 1, [r.choice([0, 1, 2]) for _ in range(n)]])
    bias = normal(rng, oc) if r.random() < 0.6 else None
    return Call(name, normal(rng, *lead, ic, *size), normal(rng, oc, ic // g, *kernel), bias, stride, padding,
                dilation, g)


@generator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(name, r, rng):
    n, g = int(name[14]), r.choice([1, 1, 2, 3])
    ic, oc = g * r.choice([1, 2, 4]), g * r.choice([1, 3])
    kernel = [r.choice([1, 2, 3]) for _ in range(n)]
    size = [r.choice([1, 3, 5]) for _ in range(n)]
    lead = () if r.random() < 0.2 else (2,)
    stride, dilation = [r.choice([1, 2, 3]) for _ in range(n)], [r.choice([1, 1, 2]) for _ in range(n)]
    extra = [r.randrange(max(s, d)) for s, d in zip(stride, dilation)]
    padding = r.choice([0, [r.choice([0, 1]) for _ in range(n)]])
    bias = normal(rng, oc) if r.random() < 0.6 else None
    return Call(name, normal(rng, *lead, ic, *size), normal(rng, ic, oc // g, *kernel), bias, stride, padding,
                extra, g, dilation)


def sizes(r, choices, n):
    return r.choice([r.choice(choices), [r.choice(choices) for _ in range(n)]])


def pooled(name, r, rng, distinct=False):
    n = next(int(c) for c in name if c in "123")
    shape = (*(() if r.random() < 0.2 else (2,)), 3, *(r.choice([4, 5, 7]) for _ in range(n)))
    x = normal(rng, *shape)
    return n, (rng.permutation(x.size).reshape(shape) * 0.37 if distinct else x)


@generator("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(name, r, rng):
    n, x = pooled(name, r, rng, True)
    return Call(name, x, sizes(r, [1, 2, 3], n), r.choice([None, sizes(r, [1, 2, 3], n)]), sizes(r, [0, 1], n),
                sizes(r, [1, 1, 2], n), ceil_mode=r.random() < 0.5, return_indices=r.random() < 0.5)


@generator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(name, r, rng):
    n, x = pooled(name, r, rng)
    more = {} if n == 1 or r.random() < 0.6 else {"divisor_override": r.choice([3, -2])}
    return Call(name, x, sizes(r, [2, 3], n), r.choice([None, sizes(r, [1, 2, 3], n)]), sizes(r, [0, 1], n),
                ceil_mode=r.random() < 0.5, count_include_pad=r.random() < 0.5, **more)


@generator("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
           "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive(name, r, rng):
    n, x = pooled(name, r, rng, "max" in name)
    choices = [1, 2, 3, 9] + ([None] if n > 1 else [])
    return Call(name, x, r.choice([r.choice([1, 2, 5]), [r.choice(choices) for _ in range(n)]]))


@generator("lp_pool1d", "lp_pool2d", "lp_pool3d")
def lp_pool(name, r, rng):
    n, x = pooled(name, r, rng)
    return Call(name, np.abs(x) + 0.1, r.choice([1.0, 2.0, 3.0]), 2 if n == 1 else sizes(r, [2, 3], n),
                r.choice([None, 1, 2]), r.random() < 0.5, rtol=1e-8)


@generator("fractional_max_pool2d", "fractional_max_pool3d")
def fractional(name, r, rng):
    n, x = pooled(name, r, rng, True)
    batch = x.shape[0] if x.ndim == n + 2 else 1
    return Call(name, x, 2, r.choice([2, 3]), return_indices=True,
                _random_samples=Fixed(rng.random((batch, 3, n))))


@generator("max_unpool1d", "max_unpool2d", "max_unpool3d")
def max_unpool(name, r, rng):
    n, x = pooled(name, r, rng, True)
    values, indices = getattr(torch.nn.functional, f"max_pool{n}d")(torch.tensor(x), 2, return_indices=True)
    size = list(x.shape[-n:]) if r.random() < 0.5 or any(s % 2 for s in x.shape[-n:]) else None
    return Call(name, values.numpy(), indices.numpy(), 2, output_size=size)


@generator("batch_norm")
def batch_norm(name, r, rng):
    c = r.choice([1, 3])
    shape = (r.choice([2, 4]), c, *(r.choice([2, 5, 19]) for _ in range(r.choice([0, 1, 2, 3]))))
    weight, bias = (normal(rng, c) if r.random() < 0.7 else None for _ in range(2))
    return Call(name, normal(rng, *shape), Fixed(normal(rng, c)), Fixed(rng.random(c) + 0.5), weight, bias,
                r.random() < 0.6, r.choice([0.1, 0.7]), r.choice([1e-5, 1e-2]), rtol=1e-8)


@generator("instance_norm")
def instance_norm(name, r, rng):
    c = r.choice([1, 3])
    shape = (r.choice([1, 4]), c, *(r.choice([2, 5]) for _ in range(r.choice([1, 2, 3]))))
    weight, bias = (normal(rng, c) if r.random() < 0.7 else None for _ in range(2))
    return Call(name, normal(rng, *shape), Fixed(normal(rng, c)), Fixed(rng.random(c) + 0.5), weight, bias,
                r.random() < 0.7, 0.2, rtol=1e-8)


@generator("group_norm")
def group_norm(name, r, rng):
    g = r.choice([1, 2, 3])
    c = g * r.choice([1, 2])
    shape = (r.choice([1, 4]), c, *(r.choice([2, 5]) for _ in range(r.choice([1, 2, 3]))))
    weight, bias = (normal(rng, c) if r.random() < 0.7 else None for _ in range(2))
    return Call(name, normal(rng, *shape), g, weight, bias, rtol=1e-8)


@generator("layer_norm", "rms_norm")
def layer_norm(name, r, rng):
    shape = [r.choice([1, 2, 5, 17]) for _ in range(r.choice([1, 2, 3]))]
    own = shape[-r.choice(range(1, len(shape) + 1)):]
    weight, bias = (normal(rng, *own) if r.random() < 0.7 else None for _ in range(2))
    if name == "rms_norm":
        return Call(name, normal(rng, *shape), own, weight, r.choice([None, 1e-3]), rtol=1e-8)
    return Call(name, normal(rng, *shape), own, weight, bias, rtol=1e-7, atol=1e-9)


@generator("local_response_norm")
def local_response_norm(name, r, rng):
    shape = (2, r.choice([1, 3, 6]), *(r.choice([2, 5]) for _ in range(r.choice([0, 1, 2]))))
    return Call(name, normal(rng, *shape), r.choice([1, 2, 3, 5]), 0.1, 0.6, 1.5)


@generator("normalize")
def normalize(name, r, rng):
    return Call(name, normal(rng, 3, 4, 2), r.choice([1.0, 2.0, 3.0]), r.choice([0, 1, -1]))


@generator("pad")
def pad(name, r, rng):
    mode = r.choice(["constant", "reflect", "replicate", "circular"])
    rank = r.choice([2, 3, 4, 5])
    count = r.choice(range(1, min(rank, 4) if mode != "constant" else rank + 1))
    edges = [r.choice([-1, 0, 1, 2, 3]) for _ in range(2 * count)]
    shape = [r.choice([3, 4, 5]) for _ in range(rank)]
    more = {"value": r.choice([0.0, 2.5])} if mode == "constant" else {}
    return Call(name, normal(rng, *shape), edges, mode, **more)


@generator("interpolate")
def interpolate(name, r, rng):
    n = r.choice([1, 2, 3])
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[n] + ["nearest", "nearest-exact", "area"]
    mode = r.choice(modes)
    more = {"mode": mode}
    if "linear" in mode or "cubic" in mode:
        more["align_corners"] = r.choice([True, False, None])
    if n == 2 and mode in ("bilinear", "bicubic"):
        more["antialias"] = r.random() < 0.5
    if r.random() < 0.5:
        more["size"] = [r.choice([2, 3, 5, 9]) for _ in range(n)]
    else:
        more["scale_factor"] = r.choice([2.0, 0.6, [r.choice([0.5, 1.0, 1.7]) for _ in range(n)]])
        more["recompute_scale_factor"] = r.choice([None, True])
    return Call(name, normal(rng, 2, 3, *(r.choice([2, 4, 7]) for _ in range(n))), **more)


@generator("grid_sample")
def grid_sample(name, r, rng):
    n = r.choice([2, 3])
    mode = r.choice(["bilinear", "nearest"] + (["bicubic"] if n == 2 else []))
    x = normal(rng, 2, 3, *(r.choice([1, 3, 4]) for _ in range(n)))
    grid = rng.uniform(-1.7, 1.7, (2, *(r.choice([2, 3]) for _ in range(n)), n))
    return Call(name, x, grid, mode, r.choice(["zeros", "border", "reflection"]), r.choice([True, False]))


@generator("affine_grid")
def affine_grid(name, r, rng):
    n = r.choice([2, 3])
    return Call(name, normal(rng, 2, n, n + 1), [2, 3, *(r.choice([1, 3, 4]) for _ in range(n))],
                r.choice([True, False]))


@generator("unfold")
def unfold(name, r, rng):
    shape = (*(() if r.random() < 0.2 else (2,)), 3, 6, 5)
    return Call(name, normal(rng, *shape), sizes(r, [1, 2, 3], 2), sizes(r, [1, 2], 2), sizes(r, [0, 1], 2),
                sizes(r, [1, 2], 2))


@generator("fold")
def fold(name, r, rng):
    options = {"kernel_size": sizes(r, [1, 2, 3], 2), "dilation": sizes(r, [1, 2], 2), "padding": sizes(r, [0, 1], 2),
               "stride": sizes(r, [1, 2], 2)}
    shape = (*(() if r.random() < 0.2 else (2,)), 3, 6, 5)
    columns = torch.nn.functional.unfold(torch.zeros(shape), **options)
    return Call(name, normal(rng, *columns.shape), (6, 5), **options)


@generator("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def shuffle(name, r, rng):
    return Call(name, normal(rng, *r.choice([(2, 4, 4, 6), (8, 4, 2), (4, 2, 2, 2, 2)])), r.choice([1, 2]))

# ---------------------------------------------------------------- activations

ACTIVATIONS = {
    "celu": [{}, {"alpha": 0.6}], "elu": [{}, {"alpha": 0.6}], "gelu": [{}, {"approximate": "tanh"}],
    "glu": [{"dim": 1}], "hardshrink": [{}, {"lambd": 0.2}], "hardsigmoid": [{}], "hardswish": [{}],
    "hardtanh": [{}, {"min_val": -0.3, "max_val": 2}], "leaky_relu": [{}, {"negative_slope": 0.3}],
    "log_softmax": [{"dim": 1}, {"dim": 0}], "logsigmoid": [{}], "mish": [{}], "relu": [{}], "relu6": [{}],
    "rrelu": [{}, {"lower": 0.2, "upper": 0.4}], "selu": [{}], "sigmoid": [{}], "silu": [{}],
    "softmax": [{"dim": -1}, {"dim": 0}], "softmin": [{"dim": 1}], "softplus": [{}, {"beta": 2, "threshold": 3}],
    "softshrink": [{}, {"lambd": 0.2}], "softsign": [{}], "tanh": [{}], "tanhshrink": [{}],
    "threshold": [{"threshold": 0.1, "value": 3.0}]}


@generator(*ACTIVATIONS)
def activation(name, r, rng):
    shape = r.choice([(3, 4), (2, 6, 3), (4, 2, 1)])
    # PyTorch computes the constants of some functions in single precision
    rtol = 1e-6 if name in ("celu", "hardsigmoid", "hardswish") else 1e-9
    return Call(name, 3 * normal(rng, *shape), rtol=rtol, **r.choice(ACTIVATIONS[name]))


@generator("prelu")
def prelu(name, r, rng):
    shape = r.choice([(3, 4), (2, 4, 3), (4,)])
    return Call(name, normal(rng, *shape), normal(rng, r.choice([1, shape[1] if len(shape) > 1 else 1])))


# ---------------------------------------------------------------- losses

REDUCTIONS = ["mean", "sum", "none"]
PAIRED = {
    "mse_loss": lambda r, x: {"weight": Fixed(np.abs(x) + 0.1)} if r.random() < 0.4 else {},
    "l1_loss": lambda r, x: {}, "smooth_l1_loss": lambda r, x: {"beta": r.choice([0.0, 0.5, 1.0])},
    "huber_loss": lambda r, x: {"delta": r.choice([0.5, 2.0])}, "soft_margin_loss": lambda r, x: {},
    "hinge_embedding_loss": lambda r, x: {"margin": r.choice([0.3, 1.0])},
    "poisson_nll_loss": lambda r, x: {"full": r.random() < 0.5, "log_input": True},
    "kl_div": lambda r, x: {"log_target": True}, "multilabel_soft_margin_loss": lambda r, x: {},
    "binary_cross_entropy_with_logits": lambda r, x: {
        "weight": Fixed(np.abs(x)), "pos_weight": Fixed(np.abs(x[0]))} if r.random() < 0.5 else {}}


@generator(*PAIRED)
def paired(name, r, rng):
    x, y = normal(rng, 4, 3), normal(rng, 4, 3)
    if name in ("soft_margin_loss", "hinge_embedding_loss"):
        y = Fixed(np.sign(y))
    elif name in ("poisson_nll_loss", "multilabel_soft_margin_loss", "binary_cross_entropy_with_logits"):
        y = Fixed(np.abs(y))
    return Call(name, x, y, reduction=r.choice(REDUCTIONS + (["batchmean"] if name == "kl_div" else [])),
                **PAIRED[name](r, x))


@generator("binary_cross_entropy")
def binary_cross_entropy(name, r, rng):
    x, y = rng.uniform(0.05, 0.95, (4, 3)), rng.uniform(0.05, 0.95, (4, 3))
    return Call(name, x, y, Fixed(y + 1) if r.random() < 0.5 else None, reduction=r.choice(REDUCTIONS), rtol=1e-7)


@generator("gaussian_nll_loss")
def gaussian(name, r, rng):
    x, y = normal(rng, 4, 3), normal(rng, 4, 3)
    var = rng.uniform(0.1, 2, r.choice([(4, 3), (4, 1), (4,)]))
    return Call(name, x, y, var, full=r.random() < 0.5, reduction=r.choice(REDUCTIONS))


@generator("cross_entropy", "nll_loss")
def classes(name, r, rng):
    c = r.choice([2, 5])
    more = r.choice([(), (3,), (2, 4)])
    batch = () if not more and r.random() < 0.3 else (4,)
    x = normal(rng, *batch, c, *more)
    y = rng.integers(0, c, (*batch, *more))
    options = {"reduction": r.choice(REDUCTIONS)}
    if r.random() < 0.5:
        options["weight"] = Fixed(rng.uniform(0.5, 2, c))
    if r.random() < 0.5:
        options["ignore_index"] = 1
    if name == "cross_entropy":
        options["label_smoothing"] = r.choice([0.0, 0.2])
        if r.random() < 0.4:
            options.pop("ignore_index", None)
            y = rng.uniform(0, 1, x.shape)
    return Call(name, x, np.asarray(y), **options)


@generator("linear_cross_entropy")
def linear_cross_entropy(name, r, rng):
    return Call(name, normal(rng, 4, 3), normal(rng, 5, 3), rng.integers(0, 5, 4),
                linear_bias=normal(rng, 5) if r.random() < 0.5 else None, reduction=r.choice(REDUCTIONS),
                label_smoothing=r.choice([0.0, 0.1]))


@generator("multi_margin_loss", "multilabel_margin_loss")
def margins(name, r, rng):
    batch = r.choice([(), (4,)])
    x = normal(rng, *batch, 5)
    if name == "multilabel_margin_loss":
        y = rng.integers(-1, 5, x.shape)
        return Call(name, x, y, reduction=r.choice(REDUCTIONS))
    return Call(name, x, np.asarray(rng.integers(0, 5, batch)), p=r.choice([1, 2]), margin=r.choice([0.5, 1.0]),
                weight=Fixed(rng.uniform(0.5, 2, 5)) if r.random() < 0.5 else None, reduction=r.choice(REDUCTIONS))


@generator("margin_ranking_loss", "cosine_embedding_loss")
def two_inputs(name, r, rng):
    shape = (4,) if name == "margin_ranking_loss" else (4, 3)
    return Call(name, normal(rng, *shape), normal(rng, *shape), Fixed(np.sign(normal(rng, 4))),
                margin=r.choice([0.0, 0.3]), reduction=r.choice(REDUCTIONS))


@generator("triplet_margin_loss", "triplet_margin_with_distance_loss")
def triplets(name, r, rng):
    more = {} if "distance" in name else {"p": r.choice([1.0, 2.0, 3.0])}
    return Call(name, *(normal(rng, 4, 3) for _ in range(3)), margin=r.choice([0.5, 1.0]), swap=r.random() < 0.5,
                reduction=r.choice(REDUCTIONS), **more)


@generator("ctc_loss")
def ctc(name, r, rng):
    t, n, c = r.choice([4, 9]), r.choice([1, 3]), r.choice([3, 5])
    x = normal(rng, t, n, c)
    x = x - np.log(np.exp(x).sum(-1, keepdims=True))
    sizes = rng.integers(0, 4, n)
    inputs = rng.integers(0, t + 1, n)
    blank = r.choice([0, c - 1])
    labels = rng.integers(0, c - 1, (n, 4)) + (1 if blank == 0 else 0)
    if r.random() < 0.5:
        labels = np.concatenate([row[:k] for row, k in zip(labels, sizes)])
    reduction, zero = r.choice(REDUCTIONS), True
    return Call(name, x, labels, inputs, sizes, blank, reduction, zero, rtol=1e-7)


# ---------------------------------------------------------------- layers


@generator("linear")
def linear(name, r, rng):
    return Call(name, normal(rng, *r.choice([(3,), (2, 3), (2, 4, 3)])), normal(rng, 5, 3),
                normal(rng, 5) if r.random() < 0.5 else None)


@generator("bilinear")
def bilinear(name, r, rng):
    lead = r.choice([(4,), (2, 3)])
    return Call(name, normal(rng, *lead, 3), normal(rng, *lead, 2), normal(rng, 5, 3, 2),
                normal(rng, 5) if r.random() < 0.5 else None)


@generator("embedding")
def embedding(name, r, rng):
    options = {"padding_idx": r.choice([None, 2, -1]), "scale_grad_by_freq": r.random() < 0.5}
    weight = normal(rng, 5, 3)
    if r.random() < 0.3:
        options["max_norm"], weight = 1.0, Fixed(weight)
    return Call(name, rng.integers(0, 5, r.choice([(7,), (3, 4)])), weight, **options)


@generator("embedding_bag")
def embedding_bag(name, r, rng):
    mode = r.choice(["sum", "mean", "max"])
    options = {"mode": mode, "padding_idx": r.choice([None, 2]), "include_last_offset": False}
    if mode != "max":
        options["scale_grad_by_freq"] = r.random() < 0.3
    if r.random() < 0.4:
        index, offsets = rng.integers(0, 5, (3, 4)), None
    else:
        index, offsets = rng.integers(0, 5, 9), np.array([0, 2, 2, 5])
        if r.random() < 0.5:
            options["include_last_offset"], offsets = True, np.array([0, 2, 2, 5, 9])
    if mode == "sum" and r.random() < 0.5:
        options["per_sample_weights"] = normal(rng, *index.shape)
    return Call(name, index, normal(rng, 5, 3), offsets, **options)


@generator("one_hot")
def one_hot(name, r, rng):
    return Call(name, rng.integers(0, 5, r.choice([(4,), (2, 3)])), r.choice([-1, 5, 7]))


@generator("cosine_similarity", "pairwise_distance")
def distances(name, r, rng):
    if name == "cosine_similarity":
        return Call(name, normal(rng, 3, 4), normal(rng, *r.choice([(3, 4), (1, 4)])), dim=r.choice([0, 1, -1]))
    return Call(name, normal(rng, 3, 4), normal(rng, *r.choice([(3, 4), (4,)])), p=r.choice([1.0, 2.0, 3.0]),
                keepdim=r.random() < 0.5)


@generator("pdist")
def pdist(name, r, rng):
    return Call(name, normal(rng, r.choice([1, 4, 40]), 3), r.choice([0.0, 1.0, 2.0, 3.0, float("inf")]), rtol=1e-8)


@generator("scaled_dot_product_attention")
def attention(name, r, rng):
    lead, length, size = r.choice([(), (2,), (2, 4)]), r.choice([1, 5]), r.choice([5, 6])
    options, kv = {}, lead
    if lead == (2, 4) and r.random() < 0.5:
        options["enable_gqa"], kv = True, (2, r.choice([1, 2]))
    choice = r.choice(["none", "causal", "bool", "float"])
    if choice == "causal":
        options["is_causal"] = True
    elif choice == "bool":
        options["attn_mask"] = rng.random((length, size)) < 0.6
    elif choice == "float":
        options["attn_mask"] = normal(rng, *lead, length, size)
    if r.random() < 0.5:
        options["scale"] = 0.3
    return Call(name, normal(rng, *lead, length, 4), normal(rng, *kv, size, 4), normal(rng, *kv, size, 3), **options)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_function(tt, name):
    refused = 0
    for trial in range(TRIALS):
        seed = sum(map(ord, name)) * 1000 + trial
        call = GENERATORS[name](name, random.Random(seed), np.random.default_rng(seed))
        refused += check(tt, call) is not None
    assert refused < TRIALS, "every sample was refused"


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(4, 5), (6, 7), (23, 9), (12, 10)])
def test_images_of_bytes_are_resized(tt, mode, size, antialias):
    """PyTorch's weights have 16 bits, so the values may differ by one."""
    image = np.random.default_rng(3).integers(0, 256, (2, 3, 12, 10), dtype=np.uint8)
    ours = tt.nn.functional.interpolate(tt.tensor(image), size=size, mode=mode, antialias=antialias)
    theirs = torch.nn.functional.interpolate(torch.tensor(image), size=size, mode=mode, antialias=antialias)
    assert ours.dtype == tt.uint8
    assert np.abs(ours.numpy().astype(int) - theirs.numpy().astype(int)).max() <= 1
