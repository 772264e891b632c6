"""Compares nn, optim and schedules with PyTorch's: names, text, values and gradients."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

rng = np.random.default_rng(4)


def modules(nn):
    """name -> (module, shapes of its inputs)"""
    return {
        "linear": (nn.Linear(3, 4), [(2, 3)]),
        "linear_vector": (nn.Linear(3, 4, bias=False), [(3,)]),
        "bilinear": (nn.Bilinear(3, 2, 4), [(5, 3), (5, 2)]),
        "layer_norm": (nn.LayerNorm((4, 3)), [(2, 4, 3)]),
        "layer_norm_plain": (nn.LayerNorm(3, elementwise_affine=False), [(2, 4, 3)]),
        "rms_norm": (nn.RMSNorm(3), [(2, 4, 3)]),
        "flatten": (nn.Flatten(), [(2, 3, 4)]),
        "unflatten": (nn.Unflatten(1, (2, 3)), [(2, 6, 2)]),
        "identity": (nn.Identity(54, unused=1), [(2,)]),
        "prelu": (nn.PReLU(3), [(2, 3, 4)]),
        "glu": (nn.GLU(1), [(2, 4, 3)]),
        "softmax": (nn.Softmax(1), [(3, 4)]),
        "log_softmax": (nn.LogSoftmax(-1), [(3, 4)]),
        "softmin": (nn.Softmin(0), [(3, 4)]),
        **{name: (getattr(nn, name)(*arguments), [(3, 5)]) for name, arguments in {
            "CELU": (0.7,), "ELU": (0.7,), "GELU": (), "Hardshrink": (0.3,), "Hardsigmoid": (),
            "Hardswish": (), "Hardtanh": (-0.5, 0.8), "LeakyReLU": (0.2,), "LogSigmoid": (),
            "Mish": (), "ReLU": (), "ReLU6": (), "SELU": (), "SiLU": (), "Sigmoid": (),
            "Softplus": (2.0, 3.0), "Softshrink": (0.2,), "Softsign": (), "Tanh": (),
            "Tanhshrink": (), "Threshold": (0.1, 5.0)}.items()},
        "gelu_tanh": (nn.GELU("tanh"), [(3, 5)]),
        "nested": (nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Sequential(
            nn.LayerNorm(8), nn.Dropout(0.0)), nn.ModuleList([nn.Linear(8, 2)] * 2)[0]), [(4, 3)]),
    }


NAMES = list(modules(torch.nn))


@pytest.mark.parametrize("name", NAMES)
def test_modules(tt, name):
    (ours, shapes), (theirs, _) = modules(tt.nn)[name], modules(torch.nn)[name]
    ours.double(), theirs.double()
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(tt.from_torch(theirs.state_dict()))
    values = [rng.normal(size=shape) for shape in shapes]
    inputs = [tt.tensor(v, requires_grad=True) for v in values]
    references = [torch.tensor(v, requires_grad=True) for v in values]
    out, expected = ours(*inputs), theirs(*references)
    # PyTorch computes the constants of these two in single precision
    rtol = 1e-6 if name in ("CELU", "Hardsigmoid") else 1e-8
    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), rtol=rtol, atol=1e-12)
    seed = rng.normal(size=tuple(expected.shape))
    out.backward(tt.tensor(seed))
    expected.backward(torch.tensor(seed))
    pairs = list(zip(inputs, references, strict=True))
    pairs += list(zip(ours.parameters(), theirs.parameters(), strict=True))
    for a, b in pairs:
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=rtol, atol=1e-11)


P, T = rng.uniform(0.05, 0.95, (6, 4)), rng.uniform(0.05, 0.95, (6, 4))
SIGNS = np.sign(T - 0.5)
CLASSES = np.array([0, 3, 1, -100, 2, 3])
LOSSES = [
    ("mse_loss", [P, T], {}), ("l1_loss", [P, T], {}), ("smooth_l1_loss", [3 * P, T], {"beta": 0.7}),
    ("huber_loss", [3 * P, T], {"delta": 0.6}), ("binary_cross_entropy", [P, T], {}),
    ("binary_cross_entropy", [P, T], {"weight": T + 1}),
    ("binary_cross_entropy_with_logits", [P - 0.5, T], {}),
    ("binary_cross_entropy_with_logits", [P - 0.5, T], {"weight": T + 1, "pos_weight": np.arange(1., 5)}),
    ("kl_div", [np.log(P), T], {}), ("kl_div", [np.log(P), np.log(T)], {"log_target": True}),
    ("poisson_nll_loss", [P, 3 * T], {"full": True}), ("poisson_nll_loss", [P, T], {"log_input": False}),
    ("gaussian_nll_loss", [P, T, P + 0.1], {"full": True}),
    ("soft_margin_loss", [P, SIGNS], {}), ("hinge_embedding_loss", [P, SIGNS], {"margin": 0.6}),
    ("margin_ranking_loss", [P, T, SIGNS], {"margin": 0.1}),
    ("cosine_embedding_loss", [P, T, SIGNS[:, 0]], {"margin": 0.3}),
    ("triplet_margin_loss", [P, T, T[::-1].copy()], {"swap": True}),
    ("cross_entropy", [P, CLASSES], {}), ("cross_entropy", [P, T], {}),
    ("cross_entropy", [P, CLASSES], {"weight": np.arange(1., 5), "label_smoothing": 0.1}),
    ("nll_loss", [np.log(P), CLASSES], {"weight": np.arange(1., 5)}),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name, values, options", LOSSES, ids=[f"{n}{list(o)}" for n, _, o in LOSSES])
def test_losses(tt, name, values, options, reduction):
    results = []
    for m in (tt, torch):
        arguments = [m.tensor(v) for v in values]
        arguments[0].requires_grad_()
        keywords = {k: m.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        loss = getattr(m.nn.functional, name)(*arguments, reduction=reduction, **keywords)
        (loss * loss).sum().backward()
        results.append((loss.detach().numpy(), arguments[0].grad.numpy()))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11)


FUNCTIONS = [
    ("normalize", [(3, 4)], {}), ("normalize", [(3, 4)], {"p": 1.0, "dim": 0}),
    ("cosine_similarity", [(3, 4), (3, 4)], {}), ("pairwise_distance", [(3, 4), (3, 4)], {}),
    ("scaled_dot_product_attention", [(2, 5, 4), (2, 6, 4), (2, 6, 3)], {}),
    ("scaled_dot_product_attention", [(2, 5, 4), (2, 5, 4), (2, 5, 3)], {"is_causal": True}),
]


@pytest.mark.parametrize("name, shapes, options", FUNCTIONS, ids=[f"{n}{o}" for n, _, o in FUNCTIONS])
def test_functions(tt, name, shapes, options):
    values = [rng.normal(size=shape) for shape in shapes]
    results = []
    for m in (tt, torch):
        arguments = [m.tensor(v, requires_grad=True) for v in values]
        out = getattr(m.nn.functional, name)(*arguments, **options)
        (out * out).sum().backward()
        results.append([out.detach().numpy(), *(a.grad.numpy() for a in arguments)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11)


OPTIMIZERS = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}), ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}), ("Adam", {"maximize": True, "betas": (0.8, 0.9)}),
    ("AdamW", {}), ("AdamW", {"weight_decay": 0.3, "amsgrad": True}),
]


def optimize(m, name, options, steps=6, load=None):
    """Optimizes two groups; the gradient of one tensor comes two steps late. Returns the parameters and the
    optimizer."""
    generator = np.random.default_rng(1)
    params = [m.tensor(generator.normal(size=s), requires_grad=True) for s in ((3, 4), (4,), (2,))]
    optimizer = getattr(m.optim, name)([{"params": params[:2]}, {"params": params[2:], "lr": 0.05}],
                                       **options)
    if load is not None:
        optimizer.load_state_dict(load)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for i, parameter in enumerate(params):
            gradient = m.tensor(generator.normal(size=tuple(parameter.shape)))
            if step >= 2 or i != 1:
                parameter.grad = gradient
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=str)
def test_optimizers_and_their_state(tt, name, options):
    ours, our_optimizer = optimize(tt, name, options)
    theirs, their_optimizer = optimize(torch, name, options)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-11, atol=1e-13)
    # each library continues from the state of the other one
    ours, _ = optimize(tt, name, options, load=tt.from_torch(their_optimizer.state_dict()))
    theirs, _ = optimize(torch, name, options, load=tt.to_torch(our_optimizer.state_dict()))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)


SCHEDULES = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}), ("MultiStepLR", {"milestones": [2, 5, 5]}),
    ("ExponentialLR", {"gamma": 0.9}), ("LambdaLR", {"lr_lambda": lambda e: 1 / (e + 1)}),
    ("MultiplicativeLR", {"lr_lambda": lambda e: 0.9}), ("ConstantLR", {}), ("LinearLR", {}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 20}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 20, "anneal_strategy": "linear"}),
    ("ReduceLROnPlateau", {"patience": 1, "cooldown": 1}),
]


@pytest.mark.parametrize("name, options", SCHEDULES, ids=[n for n, _ in SCHEDULES])
def test_schedules(tt, name, options):
    seen = []
    for m in (tt, torch):
        weight = m.zeros(1, requires_grad=True)
        optimizer = m.optim.SGD([weight], lr=0.3)
        more = {"cycle_momentum": False} if m is torch and name == "OneCycleLR" else {}
        scheduler = getattr(m.optim.lr_scheduler, name)(optimizer, **options, **more)
        rates = [optimizer.param_groups[0]["lr"]]
        for epoch in range(18):
            optimizer.step()
            scheduler.step(*([max(0.8, 1 - 0.1 * epoch)] if "Plateau" in name else []))
            rates.append(optimizer.param_groups[0]["lr"])
        seen.append(rates)
    assert seen[0] == pytest.approx(seen[1], abs=1e-13)


def test_conversions(tt):
    for dtype in ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"):
        theirs = (torch.randn(3, 4) * 3).to(getattr(torch, dtype)).t()
        ours = tt.from_torch(theirs)
        assert ours.dtype == getattr(tt, dtype) and ours.shape == (4, 3)
        back = tt.to_torch(ours)
        assert back.dtype == theirs.dtype and torch.equal(back, theirs)
    tree = tt.from_torch({"a": [torch.ones(2, requires_grad=True)], "b": (1, "x")})
    assert tree["a"][0].requires_grad and tree["b"] == (1, "x")
    assert tt.to_torch(tree)["a"][0].requires_grad
    with pytest.raises(TypeError, match="float8"):
        tt.from_torch(torch.ones(1).to(torch.float8_e4m3fn))


def test_clip(tt):
    results = []
    for m, utils in ((tt, tt.nn.utils), (torch, torch.nn.utils)):
        params = [m.ones(3, dtype=m.float64, requires_grad=True) for _ in range(2)]
        ((params[0] * 2).sum() + (params[1] * params[1] * 3).sum()).backward()
        norms = [utils.clip_grad_norm_(params, 1.5, p).item() for p in (2.0, 1.0, float("inf"))]
        results.append([norms, *(p.grad.numpy().tolist() for p in params)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_implicit_softmax_dim(tt):
    for shape in ((3,), (2, 3), (2, 3, 4), (2, 3, 2, 2)):
        value = rng.normal(size=shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = tt.nn.functional.softmax(tt.tensor(value)).numpy()
            theirs = torch.nn.functional.softmax(torch.tensor(value), _stacklevel=5).numpy()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
