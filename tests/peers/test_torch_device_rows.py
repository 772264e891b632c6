"""Rows of the device "tt" whose edges the operator samples of PyTorch do not reach, against the CPU."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from teletensor import _core as core

FUSED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, maximize=True, fused=True),
    "lr tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, fused=True),
}


def stepped(model, optimizer, x, scaler=None):
    """The parameters after three steps; the second one has an infinite gradient if there is a scaler."""
    for step in range(3):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
            continue
        scaler.scale(loss).backward()
        if step == 1:
            next(model.parameters()).grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_optimizer(tt_device, name, scaled):
    here = nn.Linear(5, 3)
    there = copy.deepcopy(here).to("tt")
    x = torch.randn(4, 5)
    scalers = [torch.amp.GradScaler(device, init_scale=8.0) if scaled else None for device in ("cpu", "tt")]
    wanted = stepped(here, FUSED[name](here.parameters()), x, scalers[0])
    tt_device.fallbacks(clear=True)
    got = stepped(there, FUSED[name](there.parameters()), x.to("tt"), scalers[1])
    assert tt_device.fallbacks() == {}
    for a, b in zip(wanted, got):
        torch.testing.assert_close(b, a)


# Operators whose results have a size that the elements decide, and how often each waits.
SIZED = {
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), 1),
    "unique of rows": (lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), 1),
    "unique of columns": (lambda x: torch.unique(x, dim=1), 1),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), 1),
    "unique_consecutive of rows": (lambda x: torch.unique_consecutive(x, dim=0), 1),
    "bincount": (lambda x: torch.bincount(x.flatten(), minlength=2), 1),
    "bincount with weights": (lambda x: torch.bincount(x.flatten(), x.flatten() * 0.5), 1),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x[0]), 1),
    "repeat_interleave of a known size": (lambda x: torch.repeat_interleave(x[0], output_size=4), 0),
    "nonzero_static": (lambda x: torch.nonzero_static(x, size=3), 0),
    "tril_indices": (lambda x: torch.tril_indices(4, 3, -1, device=x.device), 0),
    "triu_indices": (lambda x: torch.triu_indices(2, 5, 2, device=x.device), 0),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_elements_decide(tt_device, name):
    function, waits = SIZED[name]
    x = torch.tensor([[1, 0, 3], [1, 0, 3], [2, 2, 0], [1, 0, 3]])
    wanted, there = function(x), x.to("tt")
    before = core.torch_session().waits
    with tt_device.strict():
        got = function(there)
    assert core.torch_session().waits == before + waits
    for a, b in zip([wanted] if isinstance(wanted, torch.Tensor) else wanted,
                    [got] if isinstance(got, torch.Tensor) else got):
        assert torch.equal(a, b.cpu()) and a.dtype == b.dtype


def test_negative_counts_are_errors(tt_device):
    with pytest.raises((RuntimeError, ValueError), match="negative"):
        torch.repeat_interleave(torch.tensor([1, -1], device="tt"))
    with pytest.raises((RuntimeError, ValueError), match="non-negative"):
        torch.bincount(torch.tensor([1, -1], device="tt"))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("align", [False, True], ids=["corners", "centres"])
def test_gradients_of_a_sampled_grid(tt_device, mode, padding, align):
    x, grid = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(2, 6, 3, 2, dtype=torch.float64)
    found = {}
    for device in ("cpu", "tt"):
        a, b = x.to(device).requires_grad_(), grid.to(device).requires_grad_()
        with tt_device.strict():
            y = F.grid_sample(a, b, mode, padding, align)
            gradients = torch.autograd.grad((y * y).sum(), (a, b))
        found[device] = [each.detach().cpu() for each in (y, *gradients)]
    for a, b in zip(found["cpu"], found["tt"]):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
def test_gradients_of_bags(tt_device, mode, padding):
    weight, indices = torch.randn(6, 3), torch.tensor([0, 2, 2, 5, 1, 2])
    offsets, scale = torch.tensor([0, 3, 3]), torch.randn(6)
    found = {}
    for device in ("cpu", "tt"):
        w, s = weight.to(device).requires_grad_(), scale.to(device).requires_grad_()
        with tt_device.strict():
            y = F.embedding_bag(indices.to(device), w, offsets.to(device), mode=mode, padding_idx=padding,
                                per_sample_weights=s if mode == "sum" else None)
            wanted = (w, s) if mode == "sum" else (w,)
            gradients = torch.autograd.grad((y * y).sum(), wanted)
        found[device] = [each.detach().cpu() for each in (y, *gradients)]
    for a, b in zip(found["cpu"], found["tt"]):
        torch.testing.assert_close(b, a)


def test_a_solution_of_matrices_in_either_order_has_its_gradient(tt_device):
    for turned in (False, True):
        found = {}
        for function in (torch.linalg.solve, lambda a, b: torch.linalg.det(a), lambda a, b: torch.logdet(a @ a)):
            torch.manual_seed(3)
            matrix, right = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
            for device in ("cpu", "tt"):
                a = (matrix.T if turned else matrix).to(device).requires_grad_()
                found[device] = torch.autograd.grad(function(a, right.to(device)).sum(), a)[0].cpu()
            torch.testing.assert_close(found["tt"], found["cpu"])


PRODUCTS = {
    "mm": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(b, a, b, beta=2),
    "addmm_": lambda a, b: b.clone().conj().addmm_(a, b),
    "out": lambda a, b: torch.mm(a, b, out=torch.empty_like(b).conj()),
    "dot": lambda a, b: torch.dot(a[0], b[:, 0]),
    "vdot": lambda a, b: torch.vdot(a[0], b[:, 0]),
    "solve": lambda a, b: torch.linalg.solve(a, b),
    "eig": lambda a, b: torch.linalg.eigvals(a).abs().sort()[0],
    "stack": lambda a, b: torch.stack([a, b]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_operand_with_a_bit_of_conjugation_or_negation(tt_device, name):
    a, b = (torch.randn(3, 3, dtype=torch.complex128) for _ in range(2))
    negated = torch.randn(3, 3, dtype=torch.complex128).conj().imag
    for operands in ((a.mH, b), (a, b.conj()), (negated, negated.T)):
        if name in ("addmm_", "out") and operands[0].is_neg():
            continue
        wanted = PRODUCTS[name](*operands)
        there = [x.conj().to("tt").conj() if x.is_conj() else x.to("tt") for x in operands]
        there = [torch.conj(torch.complex(torch.zeros_like(y), x.to("tt").resolve_neg().neg())).imag
                 if x.is_neg() else y for x, y in zip(operands, there)]
        assert [x.is_conj() for x in there] == [x.is_conj() for x in operands]
        assert [x.is_neg() for x in there] == [x.is_neg() for x in operands]
        torch.testing.assert_close(PRODUCTS[name](*there).resolve_conj().resolve_neg().cpu(),
                                   wanted.resolve_conj().resolve_neg())


def test_a_mask_broadcasts_the_tensor_that_it_scatters_to(tt_device):
    x, source = torch.randn(5), torch.randn(15)
    mask = torch.rand(3, 5) < 0.5
    got = torch.masked_scatter(x.to("tt"), mask.to("tt"), source.to("tt"))
    assert torch.equal(got.cpu(), torch.masked_scatter(x, mask, source))


def test_an_embedding_of_limited_norm(tt_device):
    weight, indices = torch.randn(6, 4) * 3, torch.tensor([[1, 4], [4, 0]])
    there = weight.to("tt")
    with tt_device.strict():
        got = F.embedding(indices.to("tt"), there, max_norm=1.5)
    torch.testing.assert_close(got.cpu(), F.embedding(indices, weight, max_norm=1.5))
    torch.testing.assert_close(there.cpu(), weight)  # also in the rows that no index names


def the_same(tt_device, function, *operands, **tolerance):
    """Compares the tensors that the function gives for copies of the operands on the CPU and on the device,
    and the gradients of operands that require one. No operator may run on the CPU instead."""
    found = {}
    for device in ("cpu", "tt"):
        here = [x.detach().to(device, copy=True).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor)
                else x for x in operands]
        with tt_device.strict():
            results = function(*here)
            results = list(results) if isinstance(results, (tuple, list)) else [results]
            leaves = [x for x in here if isinstance(x, torch.Tensor) and x.requires_grad]
            if leaves:
                smooth = [x for x in results if x.requires_grad]
                # Weights that differ, and are not real for a complex result.
                weights = [torch.linspace(0.5, 2, x.numel(), device=device).reshape(x.shape).to(x.dtype)
                           * (1 + 0.5j if x.is_complex() else 1) for x in smooth]
                results += torch.autograd.grad([(x * w).abs().sum() for x, w in zip(smooth, weights)], leaves)
        found[device] = [x.detach().cpu() for x in results]
    for a, b in zip(found["cpu"], found["tt"], strict=True):
        torch.testing.assert_close(b, a, **tolerance)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, F.tanhshrink, lambda x: x.tanh_()],
                         ids=["tanh", "sigmoid", "tanhshrink", "in place"])
def test_gradients_of_complex_activations(tt_device, function, dtype):
    x = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    the_same(tt_device, lambda x: function(x * 1), x)
    if dtype is torch.complex128:
        there = x.detach()[0, :2].to("tt").requires_grad_()
        assert torch.autograd.gradgradcheck(lambda x: function(x * 1), there)


ADDED_PRODUCTS = {
    "addmm": lambda x, a, b, **k: torch.addmm(x, a[0], b[0], **k),
    "addmm_": lambda x, a, b, **k: x.clone().addmm_(a[0], b[0], **k),
    "addmm out": lambda x, a, b, **k: torch.addmm(x, a[0], b[0], out=torch.empty_like(x), **k),
    "baddbmm": lambda x, a, b, **k: torch.baddbmm(x, a, b, **k),
    "addbmm": lambda x, a, b, **k: torch.addbmm(x, a, b, **k),
    "addmv": lambda x, a, b, **k: torch.addmv(x[0], a[0], b[0, :, 0], **k),
    "addr": lambda x, a, b, **k: torch.addr(x, a[0, 0], b[0, 0], **k),
}
FACTORS = [(1, 1), (0, 2), (2, 3), (1.2j, 1), (0.5 + 1j, 0.3 + 0.2j), (0j, 1j), (1, 2j)]


@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("name", ADDED_PRODUCTS)
def test_complex_factors_of_a_product(tt_device, name, factors):
    operands = [torch.randn(*shape, dtype=torch.complex64) for shape in ((3, 3), (2, 3, 3), (2, 3, 3))]
    the_same(tt_device, lambda *x: ADDED_PRODUCTS[name](*x, beta=factors[0], alpha=factors[1]), *operands)


@pytest.mark.parametrize("name", ADDED_PRODUCTS)
def test_complex_factors_of_a_real_product_are_errors(tt_device, name):
    operands = [torch.randn(*shape, device="tt") for shape in ((3, 3), (2, 3, 3), (2, 3, 3))]
    for factors in ({"beta": 1j}, {"alpha": 1 + 1j}):
        with pytest.raises(RuntimeError, match="complex"):
            ADDED_PRODUCTS[name](*operands, **factors)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", ADDED_PRODUCTS)
def test_products_of_integers_keep_their_dtype(tt_device, name, dtype):
    operands = [torch.arange(9 * n).reshape(*shape).to(dtype)
                for n, shape in ((1, (3, 3)), (2, (2, 3, 3)), (2, (2, 3, 3)))]
    the_same(tt_device, lambda *x: ADDED_PRODUCTS[name](*x, beta=2, alpha=3), *operands)


@pytest.mark.parametrize("distinct", [torch.unique, torch.unique_consecutive])
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1])
def test_distinct_slices_along_each_dimension(tt_device, dim, distinct):
    x = torch.randint(0, 2, (2, 3, 2, 4))
    x = torch.cat([x, x.flip(dim)], dim)
    the_same(tt_device, lambda x: distinct(x, dim=dim, return_inverse=True, return_counts=True), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mask", ["bool", "own", "row"])
def test_masks_of_attention(tt_device, mask, dtype):
    query, key, value = (torch.randn(2, 2, 4, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    seen = torch.ones(4, 4, dtype=torch.bool).tril()
    given = (seen if mask == "bool" else torch.randn(4, 4).to(dtype).requires_grad_() if mask == "own"
             else torch.randn(2, 1, 1, 4).to(dtype))
    wide = 3e-2 if dtype in (torch.bfloat16, torch.float16) else None
    the_same(tt_device, lambda *x: F.scaled_dot_product_attention(*x[:3], attn_mask=x[3]),
             query, key, value, given, rtol=wide, atol=wide)


@pytest.mark.parametrize("mask", [torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.bool)], ids=["float", "bool"])
def test_a_mask_of_attention_under_autocast(tt_device, mask):
    x = torch.randn(1, 2, 4, 8)

    def attend(x, mask):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    got = attend(x.to("tt"), mask.to("tt"))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float().cpu(), F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
                               rtol=3e-2, atol=3e-2)


NORMS = {
    "batch": lambda: nn.BatchNorm2d(3),
    "cumulative batch": lambda: nn.BatchNorm2d(3, momentum=None),
    "instance": lambda: nn.InstanceNorm2d(3, affine=True),
    "tracked instance": lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(3, 3),
    "layer": lambda: nn.LayerNorm(5),
}


@pytest.mark.parametrize("parameters", ["own", "float32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_halves(tt_device, name, dtype, parameters):
    torch.manual_seed(4)
    x, weights = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    wanted, got = NORMS[name](), NORMS[name]().to("tt", dtype if parameters == "own" else torch.float32)
    for training in (True, False):
        wanted.train(training)
        got.train(training)
        here, there = (t.detach().requires_grad_() for t in (x.to(dtype).float(), x.to("tt", dtype)))
        a, b = wanted(here), got(there)
        assert b.dtype == dtype
        ((a * weights).sum() + (b * weights.to("tt", dtype)).sum().cpu()).backward()
        pairs = [(a, b), (here.grad, there.grad), *zip(wanted.buffers(), got.buffers())]
        pairs += [(p.grad, q.grad) for p, q in zip(wanted.parameters(), got.parameters())]
        for expected, found in pairs:
            torch.testing.assert_close(found.detach().cpu().float(), expected.detach().float(), rtol=5e-2, atol=0.15)
        assert there.grad.dtype == dtype
        assert [p.grad.dtype for p in got.parameters()] == [p.dtype for p in got.parameters()]


POOLS = {
    "max 1": (nn.MaxPool1d(2), (3, 6)),
    "max 2": (nn.MaxPool2d(2, return_indices=True), (3, 6, 5)),
    "max 3": (nn.MaxPool3d(2, ceil_mode=True), (2, 4, 5, 6)),
    "average 1": (nn.AvgPool1d(2), (3, 6)),
    "average 2": (nn.AvgPool2d(2, padding=1), (3, 6, 5)),
    "average 3": (nn.AvgPool3d(2, divisor_override=3), (2, 4, 5, 6)),
    "power 1": (nn.LPPool1d(2.0, 2), (3, 6)),
    "power 2": (nn.LPPool2d(2.0, 2), (3, 6, 5)),
    "power 3": (nn.LPPool3d(2.0, 2), (2, 4, 5, 6)),
    "adaptive": (nn.AdaptiveAvgPool3d(2), (2, 4, 5, 6)),
    "adaptive max": (nn.AdaptiveMaxPool2d(2, return_indices=True), (3, 6, 5)),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pooling_without_a_batch(tt_device, name):
    pool, shape = POOLS[name]
    the_same(tt_device, pool, torch.randn(*shape).abs().requires_grad_())


def test_samples_of_a_larger_batch_than_that_of_a_fractional_pooling(tt_device):
    samples = torch.rand(4, 2, 3)
    for shape in ((2, 6, 6, 6), (1, 2, 6, 6, 6)):
        the_same(tt_device, lambda x, s: F.fractional_max_pool3d(x, 2, output_size=3, _random_samples=s),
                 torch.randn(*shape, requires_grad=True), samples)


def complex_of(*shape):
    return torch.randn(*shape, dtype=torch.complex64)


COMPLEX = {
    "add": lambda x, y: torch.add(x, y, alpha=0.3 + 0.2j),
    "add of a number": lambda x, y: torch.add(x, 2, alpha=1j),
    "add to a real one": lambda x, y: torch.add(x.real, y, alpha=1j),
    "add_": lambda x, y: x.clone().add_(y, alpha=0.3 + 0.2j),
    "sub": lambda x, y: torch.sub(x, y, alpha=1j),
    "sub out": lambda x, y: torch.sub(x, y, alpha=1j, out=torch.empty_like(x)),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=1j),
    "rsub of a number": lambda x, y: torch.rsub(x, 1 + 2j, alpha=1j),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=1 + 2j),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=1 + 2j),
    "factors without an imaginary part": lambda x, y: torch.addcmul(x + y, x, y.add(x, alpha=2 + 0j), value=3 + 0j),
    "unfold": lambda x, y: F.unfold(x.reshape(1, 1, 3, 4), 2),
    "fold": lambda x, y: F.fold(x[None, :, :2].repeat(1, 4, 2), (3, 3), 2),
    "logsumexp": lambda x, y: torch.logsumexp(x, 1),
    "logsumexp of two": lambda x, y: torch.logsumexp(x, (0, 1), keepdim=True),
    "sinc": lambda x, y: torch.sinc(torch.cat([x, x * 0])),
    "nan_to_num": lambda x, y: torch.nan_to_num(torch.cat([x, x / 0]), nan=2.0, posinf=3.0),
}
NO_GRADIENT = ("add_", "sub out")


@pytest.mark.parametrize("name", COMPLEX)
def test_operators_of_complex_tensors(tt_device, name):
    x, y = complex_of(3, 4), complex_of(3, 4)
    x.requires_grad_(name not in NO_GRADIENT and name not in ("nan_to_num", "sinc"))
    the_same(tt_device, COMPLEX[name], x, y)


@pytest.mark.parametrize("function", [
    lambda x: torch.add(x, x, alpha=1j), lambda x: torch.rsub(x, x, alpha=1j),
    lambda x: torch.addcmul(x, x, x, value=1j), lambda x: torch.addcdiv(x, x, x, value=1j),
], ids=["add", "rsub", "addcmul", "addcdiv"])
def test_complex_factors_of_real_tensors_are_errors(tt_device, function):
    with pytest.raises(RuntimeError, match="complex"):
        function(torch.ones(3, device="tt"))


def test_normal_complex_numbers(tt_device):
    with tt_device.strict():
        x = torch.randn(20000, dtype=torch.complex64, device="tt")
        y = torch.empty_like(x).normal_(3, 2)
    assert torch.view_as_real(x).std(0).cpu() == pytest.approx(2 * [0.5 ** 0.5], abs=0.02)
    assert y.mean().item() == pytest.approx(3, abs=0.05)
    assert y.real.var().item() + y.imag.var().item() == pytest.approx(4, abs=0.15)


INTEGERS = {
    "left": lambda x: x << 2,
    "left of tensors": lambda x: x << (x % 3),
    "right": lambda x: x >> 1,
    "left in place": lambda x: x.clone().__ilshift__(1),
    "right in place": lambda x: x.clone().__irshift__(x % 2),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_shifts(tt_device, name, dtype):
    the_same(tt_device, INTEGERS[name], torch.arange(12).reshape(3, 4).to(dtype))


def test_bounds_of_bools(tt_device):
    x, bound = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for function in (torch.clamp_min, torch.clamp_max, torch.Tensor.clamp_min_, torch.Tensor.clamp_max_):
        the_same(tt_device, function, x, bound)


@pytest.mark.parametrize("limits", [(), (0, 9), (2, 2), (-3.5, 4)], ids=str)
@pytest.mark.parametrize("x", [torch.arange(10.0), torch.ones(5), torch.empty(0), torch.randn(3, 4).double()],
                         ids=["range", "ones", "empty", "double"])
def test_histograms_of_elements(tt_device, x, limits):
    the_same(tt_device, lambda x: torch.histc(x, 5, *limits), x)


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_a_normalized_weight(tt_device, dim):
    v = torch.randn(3, 4, 2, requires_grad=True)
    kept = [] if dim is None else [dim]
    shape = [n if i in kept else 1 for i, n in enumerate(v.shape)] if kept else []
    size = torch.randn(shape, requires_grad=True)
    the_same(tt_device, lambda v, g: torch._weight_norm(v, g, -1 if dim is None else dim), v, size)
    if dim == 0:
        vector = torch.randn(4, requires_grad=True)
        the_same(tt_device, lambda v, g: torch._weight_norm(v, g, 0), vector, torch.randn(4, requires_grad=True))


def test_a_layer_with_a_normalized_weight(tt_device):
    here = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    there, x = copy.deepcopy(here).to("tt"), torch.randn(5, 4)
    with tt_device.strict():
        got = stepped(there, torch.optim.SGD(there.parameters(), lr=0.1), x.to("tt"))
    for a, b in zip(stepped(here, torch.optim.SGD(here.parameters(), lr=0.1), x), got):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
def test_gradients_scaled_by_frequency(tt_device, padding, mode):
    weight, indices = torch.randn(6, 3, requires_grad=True), torch.tensor([[0, 2, 2], [5, 2, 0]])
    the_same(tt_device, lambda w, i: F.embedding(i, w, padding, scale_grad_by_freq=True), weight, indices)
    the_same(tt_device, lambda w, i: F.embedding_bag(i, w, mode=mode, scale_grad_by_freq=True,
                                                     padding_idx=padding), weight, indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding", [None, 2])
def test_maxima_of_bags(tt_device, padding, dtype):
    weight = torch.randn(6, 3).to(dtype)
    weight[4] = weight[1]  # of equal elements the first one has the gradient
    weight.requires_grad_()
    for offsets, indices in (([0, 3, 3, 5], [0, 2, 4, 2, 2, 1, 5, 4]), ([0, 0], []), ([0], [3])):
        the_same(tt_device, lambda w, i, o: F.embedding_bag(i, w, o, mode="max", padding_idx=padding),
                 weight, torch.tensor(indices, dtype=torch.int64), torch.tensor(offsets))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_windows(tt_device, dtype):
    windows = (torch.kaiser_window, torch.hann_window, torch.hamming_window, torch.blackman_window,
               torch.bartlett_window)
    for window in windows:
        for length in (0, 1, 2, 5, 8):
            for periodic in (True, False):
                wanted = window(length, periodic, dtype=dtype)
                with tt_device.strict():
                    got = window(length, periodic, dtype=dtype, device="tt")
                torch.testing.assert_close(got.cpu(), wanted)
    torch.testing.assert_close(torch.kaiser_window(6, False, 3.5, device="tt").cpu(),
                               torch.kaiser_window(6, False, 3.5))


def encoder(**options):
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)


PADDING = torch.tensor([[False, False, False, True, True], [False] * 5])
MASK = torch.ones(5, 5, dtype=torch.bool).triu(1)
MODULES = {
    "encoder": (lambda: nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False), {}),
    "encoder with padding": (lambda: nn.TransformerEncoder(encoder(), 2), {"src_key_padding_mask": PADDING}),
    "encoder with a mask": (lambda: nn.TransformerEncoder(encoder(), 2), {"mask": MASK}),
    "layer": (encoder, {}),
    "layer, norm first": (lambda: encoder(norm_first=True, activation="gelu"), {"src_mask": MASK}),
    "layer, both masks": (encoder, {"src_mask": MASK, "src_key_padding_mask": PADDING}),
    "layer, numbers as a mask": (encoder, {"src_mask": torch.linspace(-1, 1, 25).view(5, 5)}),
    "attention": (lambda: nn.MultiheadAttention(16, 2, batch_first=True), {}),
    "attention with padding": (lambda: nn.MultiheadAttention(16, 2, batch_first=True),
                               {"key_padding_mask": PADDING, "average_attn_weights": False}),
    "attention without weights": (lambda: nn.MultiheadAttention(16, 2, batch_first=True),
                                  {"attn_mask": MASK, "need_weights": False}),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_attention_in_evaluation(tt_device, name):
    make, masks = MODULES[name]
    here = make().eval()
    there, x = copy.deepcopy(here).to("tt"), torch.randn(2, 5, 16)
    many = 3 if name.startswith("attention") else 1
    with torch.no_grad(), tt_device.strict():
        got = there(*many * [x.to("tt")], **{key: mask.to("tt") if isinstance(mask, torch.Tensor) else mask
                                             for key, mask in masks.items()})
    wanted = here(*many * [x], **masks)  # with gradients PyTorch does not take its fast path
    for a, b in zip(wanted if many == 3 else [wanted], got if many == 3 else [got]):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b.cpu(), a.detach(), rtol=1e-4, atol=1e-5)


def test_memory_is_filled_with_deterministic_algorithms(tt_device):
    torch.use_deterministic_algorithms(True)
    try:
        made = [[torch.empty(3, device=device), torch.empty(2, dtype=torch.int16, device=device),
                 torch.empty_strided((2, 2), (1, 2), device=device, dtype=torch.complex64),
                 torch.ones(2, device=device).resize_(5)] for device in ("cpu", "tt")]
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(*made, strict=True):
        torch.testing.assert_close(b.cpu(), a, equal_nan=True)


@pytest.mark.parametrize("index", [torch.zeros(2, 0, dtype=torch.int64), torch.tensor([], dtype=torch.uint8)],
                         ids=["another rank", "uint8"])
def test_gradients_of_a_gather_of_nothing(tt_device, index):
    the_same(tt_device, lambda x, i: torch.gather(x, 0, i), torch.randn(5, requires_grad=True), index)


def test_a_mask_of_another_shape_is_an_index_error(tt_device):
    for device in ("cpu", "tt"):
        x = torch.ones(3, 2, device=device)
        mask = torch.ones(2, 2, dtype=torch.bool, device=device)
        with pytest.raises(IndexError, match="does not match the shape"):
            x[mask]
        with pytest.raises(IndexError, match="does not match the shape"):
            x[mask] = 0
