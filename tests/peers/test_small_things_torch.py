"""Compares details on which PyTorch's own tests rely: constructors, spellings of sizes and dtypes, indices,
types of errors. Each line is evaluated with both libraries: the results, or the types of the errors, must
be equal."""

import importlib
import warnings

import numpy as np  # noqa: F401 (the lines use it)
import pytest

LINES = """
t.Tensor([[[True]]])
t.Tensor([1, 2]), t.Tensor(2, 3).shape, t.Tensor(t.Size([2])).shape, t.Tensor().shape
t.Tensor(np.ones(3)), t.Tensor((1, 2)), t.Tensor([[1, 2], [3, 4]])
t.Tensor([1, 2], device="cpu")
t.Tensor(t.tensor([1, 2]))
t.Tensor(3.0)
t.tensor([1, 2]).new([1, 2]), t.ones(2).new(2, 3).shape, t.ones(2).new().shape
t.ones(t.tensor(3)), t.zeros(np.int64(3)), t.ones((t.tensor(2), 3)).shape
t.ones(2.0)
t.zeros(size=(2, 3)), t.randn(size=(4,)).shape
t.zeros(2, size=(3,))
t.zeros(2, dtype=int).dtype, t.zeros(2, dtype=bool).dtype, t.ones(2, dtype=complex).dtype
t.randn(2, dtype=float).dtype, t.ones(3).to(int).dtype, t.arange(3, dtype=float).dtype
t.ones(3).sum(dtype=float).dtype, t.tensor([1, 2], dtype=float)
(t.Size([1]) + (2,)).numel(), ((1,) + t.Size([2])).numel(), (t.Size([2]) * 2).numel(), (2 * t.Size([2])).numel()
t.Size([1]) + [2]
f"{t.tensor(3)} {t.tensor(1.5, requires_grad=True) * 2} {t.tensor(0.1)} {t.tensor(True)} {t.tensor(1j)} {t.ones(1)}"
t.tensor(-1, dtype=t.uint8), t.tensor([-255], dtype=t.uint8), t.tensor(255.7, dtype=t.uint8), t.tensor(2, dtype=t.bool)
t.tensor(300, dtype=t.uint8)
t.tensor([1, -256], dtype=t.uint8)
t.tensor(-129, dtype=t.int8)
t.tensor(-0.5, dtype=t.uint8)
t.tensor([1, float("nan")], dtype=t.int32)
t.tensor(1e20, dtype=t.int64)
t.as_tensor([3e10], dtype=t.int32)
t.ones(1, dtype=t.uint8).new_tensor([300])
t.full((2,), 300, dtype=t.uint8)
t.full((2,), -0.5, dtype=t.uint8)
t.full((2,), float("nan"), dtype=t.int32)
t.full((2,), 1e39)
t.full((2,), -1, dtype=t.uint8), t.full((2,), float("inf")), t.zeros(2, dtype=t.bool).fill_(300)
t.ones(2, dtype=t.uint8).fill_(300)
t.ones(2, dtype=t.float16).fill_(7e4)
t.ones(2, dtype=t.uint8).__setitem__(0, 300)
t.ones(2, dtype=t.uint8).__setitem__(t.tensor([True, False]), 300)
t.ones(2, dtype=t.uint8).index_fill(0, t.tensor([0]), 300)
t.zeros(2, dtype=t.int8).scatter(0, t.tensor([0]), 300)
t.ones(2, dtype=t.uint8).masked_fill(t.tensor([True, False]), -1)
t.nn.functional.pad(t.ones(2, dtype=t.uint8), (1, 1), value=300)
repr(t.finfo(t.float16)), repr(t.finfo(t.bfloat16)), repr(t.iinfo(t.uint8)), repr(t.nn.LazyLinear(3, bias=False))
repr(t.optim.SGD([t.ones(1, requires_grad=True)], 0.1)), repr(t.optim.Adam([t.ones(1, requires_grad=True)]))
reversed(t.arange(3)), reversed(t.tensor(3)), list(reversed(t.eye(2)))
float(t.ones(2))
int(t.ones(0))
t.randn(2, generator=3)
t.utils.data.default_collate([(1, "x"), (2, "y")]), t.utils.data.default_collate(["a", "b"])
t.zeros(3).layout is t.strided, t.zeros(3, layout=t.strided, pin_memory=False)
t.ones(3) + np.ones(3)
np.sin(t.ones(3)), np.add(t.ones(3), np.ones(3))
np.float32(2) * t.ones(3), t.ones(3) * np.float64(2), t.ones(2) + np.int64(2), np.float32(3) - t.ones(2)
np.sin(t.ones(3, requires_grad=True))
t.ones(2, 2).type(t.Tensor)
t.broadcast_shapes((1, -1), (2, 3))
t.ones(3).flip()
t.nonzero(t.ones(3), out=t.empty(0))
t.nonzero(t.ones(3), out=t.empty(0, dtype=t.int64))
t.nonzero(t.ones(3), as_tuple=True, out=t.empty(0, dtype=t.int64))
t.ones(3).resize_([8, 8, 2**29, 2**29])
t.unravel_index(t.tensor(0.5), (2, 2))
t.take_along_dim(t.ones(2, 2), t.zeros(2, 2, dtype=t.int32), 0)
t.sort(t.arange(5.0), out=(t.zeros(20)[::2], t.zeros(20, dtype=t.int64)[::2]))
t.zeros(2, 2).scatter_reduce(0, t.zeros(0, dtype=t.int64), t.ones(2, 2), "amin")
t.zeros(2, 2).scatter(0, t.zeros(0, dtype=t.int64), t.ones(2, 2))
t.zeros(2, 2).scatter_add_(0, t.zeros(0, dtype=t.int64), t.ones(2, 2))
t.ones(4, 3).T.ravel().is_contiguous(), t.ones(4)[::2].ravel().stride()
t.zeros(5, 2).__setitem__((slice(None), [1]), t.zeros(5, 1, dtype=t.int32))
t.zeros(3).__setitem__(t.tensor([True, False, True]), t.tensor([1]))
written(t.zeros(4, 4), (range(4), range(4)), t.ones(1, 4))
written(t.zeros(3), t.tensor(1, dtype=t.uint8), t.ones(1, 3))
t.tensor(2.0)[t.tensor(1, dtype=t.uint8)], t.tensor(2.0)[t.tensor(0, dtype=t.uint8)]
t.autograd.grad((t.ones(2, requires_grad=True) * 2).sum(), [])
"foo" in t.ones(2)
t.randint(3, size=(2,)).shape, t.randint(0, 3, (2,)).shape, t.randint(5, (3,)).shape
t.full((2,), 1.0, out=t.zeros(2, dtype=t.int64))
t.zeros(2, out=t.empty(0, dtype=t.int64)), t.arange(3, out=t.empty(0)), t.range(0, 2, out=t.empty(0))
t.zeros(2, dtype=t.float64, out=t.empty(0))
t.logspace(1, 2, 3, out=t.empty(0)), t.logsumexp(t.ones(2, 2), 1, out=t.empty(0))
t.meshgrid(t.ones(2), t.ones(2, dtype=t.float64), indexing="ij")
t.hann_window(4, layout=t.strided), t.kaiser_window(3, dtype=float)
t.normal(t.zeros(2), t.tensor([1.0, -1.0]))
t.zeros(3, dtype=t.int8).random_(126, None).ge(126).all(), t.zeros(3).random_(1)
t.tensor(looped())
filled(t, lambda x: t.range(0, 3, out=x)), filled(t, lambda x: t.arange(0, 4, out=x))
filled(t, lambda x: t.linspace(0, 3, 4, out=x)), filled(t, lambda x: t.logspace(0, 3, 4, out=x))
filled(t, lambda x: t.full((4,), 2.0, out=x)), t.arange(4, out=t.zeros(2, 2)).shape
isinstance(t.autograd.Variable(t.ones(2), requires_grad=True), t.autograd.Variable)
t.ones(2, requires_grad=True).numpy(force=True).tolist(), t.fft.fftfreq(4, out=t.empty(0))
t.fft.fftn(t.ones(2, 3), s=3, dim=1).abs()
within(t)
t.optim.LBFGS([t.zeros(2, requires_grad=True)], tolerance_grad=-1.0).step(lambda: t.tensor(10.0))
t.cat([])
t.concat(())
t.gather(t.ones(3), 0, t.tensor([5])).sum().item()
t.zeros(3).scatter_(0, t.tensor([-1]), 1.).sum().item()
t.zeros(3).scatter_add(0, t.tensor([5]), t.ones(1)).sum().item()
t.zeros(3).index_select(0, t.tensor([5])).sum().item()
t.ones(2, 2).all(dim=()), t.tensor([0, 2], dtype=t.uint8).any(dim=()), t.any(t.tensor([True, False]), ())
t.nn.functional.kl_div(t.zeros(2, 3), t.rand(3) * 0 + 1, reduction="batchmean")
t.nn.functional.soft_margin_loss(t.zeros(2, 3), t.ones(3))
t.nn.functional.normalize(t.arange(6.).reshape(2, 3), dim=(0, 1)), t.nn.functional.normalize(t.ones(2, 3), dim=None)
t.nn.functional.pad(t.ones(2), (1, 1), value=t.tensor(3.)), t.constant_pad_nd(t.ones(2), (1, 0), t.tensor(2))
t.nn.functional.cosine_similarity(t.ones(2, 3), t.arange(6).reshape(2, 3)).round(decimals=4)
t.nn.functional.cosine_similarity(t.ones(2, 3, dtype=t.int64), t.arange(6).reshape(2, 3))
t.ones(3, dtype=t.complex64).normal_().dtype, t.nn.init.normal_(t.ones(3, dtype=t.complex128)).dtype
~t.ones(2)
t.ones(2) & 1
t.ones(2) << 1.5
t.ones(2) - t.tensor(True)
t.mean(t.ones(2, dtype=t.int64))
t.std(t.ones(2, dtype=t.int64))
t.softmax(t.ones(2, dtype=t.int64), 0)
t.ones(2, 2).bool() @ t.ones(2, 2).bool()
t.ones(2, dtype=t.complex64) < 1
t.floor(t.ones(2, dtype=t.complex64))
t.nn.functional.gelu(t.ones(2, dtype=t.int64))
t.nn.functional.mse_loss(t.ones(2, dtype=t.int64), t.ones(2, dtype=t.int64))
t.lerp(t.ones(3, dtype=t.int64), t.ones(3, dtype=t.int64), 0.5)
t.ones(3, dtype=t.int64).normal_()
t.segment_reduce(t.arange(6.), "sum", lengths=t.tensor([2, 0, 4]))
t.segment_reduce(t.arange(6.), "mean", lengths=t.tensor([2, 0, 4])).nan_to_num(-1)
t.segment_reduce(t.arange(6.), "max", offsets=t.tensor([0, 2, 2, 6]))
t.segment_reduce(t.arange(6.), "min", lengths=t.tensor([1, 5]), initial=2)
t.segment_reduce(t.arange(12.).reshape(2, 3, 2), "prod", lengths=t.tensor([[1, 2], [3, 0]]), axis=1)
t.segment_reduce(t.arange(6.), "mean", lengths=t.tensor([2, 0, 4]), initial=5)
t.segment_reduce(t.arange(6.), "sum", lengths=t.tensor([2]), unsafe=True)
t.segment_reduce(t.arange(6.), "sum", lengths=t.tensor([2, 3])).sum().item()
t.segment_reduce(t.arange(6.), "sum")
t.add(t.ones(2, dtype=t.complex64), t.ones(2), alpha=1 + 2j), t.rsub(t.ones(2), t.ones(2) * 1j, alpha=2j)
t.ones(2, dtype=t.complex64).sub_(1j, alpha=2j), t.addcmul(t.ones(2) * 1j, t.ones(2), t.ones(2), value=2j)
t.ones(2, dtype=t.complex64).addcdiv_(t.ones(2), t.ones(2) * 1j, value=2j)
t.add(t.ones(2), t.ones(2), alpha=2j)
t.add(t.tensor([1]), 2, alpha=1.0)
t.tensor([1]).sub_(2, alpha=True)
t.add(t.tensor([1]), 2.5, alpha=1.5), t.add(t.tensor([True]), True, alpha=True)
t.add(t.ones(1), t.ones(1), alpha=t.tensor(2.0)), t.addcmul(t.ones(1), t.ones(1), t.ones(1), value=True)
t.add(t.ones(1), t.ones(1), alpha=t.tensor(2.0, requires_grad=True))
t.nn.functional.elu(t.ones(1), alpha=t.tensor(2.0, requires_grad=True))
t.ones(2, dtype=t.complex64).abs_()
t.tensor([1]).__rpow__("a"), t.tensor([1]).__ilshift__("a"), t.tensor([1, 2]).__ilshift__(2)
t.nan_to_num(t.tensor([float("nan")]), out=t.ones(1))
t.special.i0(t.tensor([1e308, -1e308], dtype=t.float64)), t.special.i1e(t.tensor([-1e308], dtype=t.float64))
t.cumulative_trapezoid(t.ones(0, 2), dim=0), t.cumulative_trapezoid(t.ones(1, 2), t.ones(1), dim=0)
t.randint(high=5, size=(2,)).shape, t.randint(5, (2,)).shape
t.tensor([1.5, 2**64]), t.tensor(2**65, dtype=t.float32), t.tensor([2**65], dtype=t.float64)
t.tensor(2**65)
t.tensor([2**65])
t.tensor([np.float32(1), 2.0]), t.tensor([np.float16(1), 2]), t.tensor([np.int64(1), 2.5]), t.tensor([np.uint8(1), 2])
t.tensor([np.complex64(1), 2.5]), t.tensor([np.bool_(True), 2.5]), t.tensor([np.float64(1), 2.0])
t.tensor([np.array([5], np.float32), [5.0]]), t.tensor([np.array([5]), [5.0]]), t.tensor([np.array([5]), np.ones(1)])
t.tensor([t.tensor(5.0, dtype=t.float64), 5.0]), t.tensor([t.tensor(5, dtype=t.int8), t.tensor(1, dtype=t.float16)])
t.tensor([t.tensor(5, dtype=t.int8), 5]), t.tensor([t.tensor(5, dtype=t.bfloat16)]).dtype
t.tensor([t.ones(1), 2]), t.tensor([t.ones(1), t.ones(1)]), t.tensor([[t.ones(1, 1), t.tensor(2)]])
t.tensor(bytearray(b"ab"))
t.ones(2).uniform_(-1e300, 1e300)
t.ones(2, dtype=t.float64).uniform_(-1e308, 1e308)
t.ones(2, dtype=t.float16).uniform_(0, 7e4)
t.ones(2).mT
t.ones(2).adjoint()
t.frombuffer(b"", dtype=t.int8)
t.frombuffer(b"abcd", dtype=t.int16, count=0)
t.frombuffer([1, 2], dtype=t.int16)
t.nn.EmbeddingBag(4, 2, mode="sum")(t.tensor([[1]]), per_sample_weights=t.ones(1, 1).double())
t.nn.utils.rnn.pack_padded_sequence(t.randn(0, 0), [])
t.nn.functional.one_hot(t.tensor([1.0])).shape
forward_hessian(t)
t.autograd.functional.jacobian(lambda x: x, t.ones(2), strict=True, vectorize=True)
t.autograd.functional.jacobian(lambda x: x.sum(), t.ones(2), strict=True, create_graph=True)
t.autograd.functional.vjp(lambda x: x.clone(), t.ones(2), t.ones(2), strict=True, create_graph=True)
t.autograd.functional.jvp(lambda x: x.sum(), t.ones(2), t.ones(2), strict=True, create_graph=True)
t.func.vmap(lambda v, x=t.ones(2, requires_grad=True): t.autograd.grad((x * v).sum(), x)[0])(t.eye(2))
t.func.vmap(lambda v, x=t.ones(2, requires_grad=True): t.autograd.grad(x * 3, x, v)[0])(t.eye(2))
t.func.functional_call(t.nn.Linear(1, 1), {"weight": t.ones(1, 1), "bias": t.ones(1), "more": t.ones(1)}, t.ones(1, 1))
t.func.functional_call(t.nn.Linear(1, 1), {"weight": t.ones(1, 1), "bias": None}, t.ones(1, 1))
t.func.functional_call(t.nn.Linear(1, 1), {"weight": 1}, t.ones(1, 1))
t.func.functional_call(t.nn.Linear(1, 1), {"": t.ones(1, 1)}, t.ones(1, 1))
t.func.functional_call(t.nn.Linear(1, 1), {"in_features": t.ones(1, 1)}, t.ones(1, 1))
t.func.functional_call(t.nn.Linear(1, 1), {"other.weight": t.ones(1, 1)}, t.ones(1, 1))
t.func.functional_call(t.nn.Linear(1, 1), "weight", t.ones(1, 1))
t.ones(0).argmax()
t.tensor(3.0).select(0, 0)
t.tensor(3.0).unbind()
t.tensor(3).split(1)
t.tensor(3).chunk(1)
t.ones(2, 3).index_select(1, t.tensor([[0]]))
t.linalg.inv(t.ones(2, 2, dtype=t.int64))
t.linalg.cholesky(t.ones(2, 2, dtype=t.float16))
t.ones(2).imag
t.fft.rfft(t.ones(2, dtype=t.complex64))
t.fft.fft(t.ones(2, dtype=t.float16))
t.where((t.arange(3) > 1).to(t.uint8), t.arange(3.0), t.tensor(2.0))
t.ones(3, requires_grad=True).view(3).detach_()
t.manual_seed(2**64)
t.func.grad(lambda x: x.nanmedian())(t.tensor([float("nan"), 2.0, 2.0, 3.0]))
t.tensor([float("nan")]).nanmedian().isnan(), t.tensor([3, 1]).nanmedian(), t.tensor([]).nanmedian().isnan()
t.split(tensor=t.arange(3), split_size_or_sections=2), t.arange(3).split(split_size=[1, 2])
t.split(t.ones(2))
t.utils.data.TensorDataset(t.ones(2), t.ones(3))
t.utils.checkpoint.checkpoint(lambda x: x, t.ones(1), use_reentrant=True, more=3)
t.nn.functional.mse_loss(t.ones(2), t.ones(2), reduction="most")
t.nn.functional.cross_entropy(t.ones(2, 3), t.tensor([0, 1]), reduction="most")
t.nn.functional.cross_entropy(t.ones(2, 3), t.tensor([0, 1], dtype=t.int32))
t.nn.functional.nll_loss(t.ones(2, 3), t.tensor([0, 1], dtype=t.int16))
t.nn.functional.binary_cross_entropy(t.tensor([0.5]), t.tensor([1.5])).item()
t.nn.functional.binary_cross_entropy(t.tensor([0.5, 0.2]), t.tensor([1.0, float("nan")])).item()
t.nn.functional.embedding(t.tensor([0]), t.ones(3, 2), padding_idx=5)
t.nn.Embedding(3, 2, padding_idx=3)
t.nn.functional.one_hot(t.tensor([1], dtype=t.int32))
repr(t.nn.ParameterDict({"a": t.nn.Parameter(t.ones(2, 3))})).replace("teletensor", "torch")
"""


def looped():
    """A list that contains itself."""
    held = [0]
    held.append(held)
    return held


def filled(t, fill):
    """The result of `fill` for a part of a matrix, and the matrix."""
    x = t.zeros(2, 3)
    return fill(x.narrow(1, 1, 2)), x


def within(t):
    with t.device("cpu") as place:
        return place.type, t.ones(2).device.type


def written(x, index, value):
    x[index] = value
    return x


def forward_hessian(t):
    hessian = t.autograd.functional.hessian
    return hessian(lambda x, y: (x ** 3 * y).sum(), (t.ones(2), t.ones(2) * 2), vectorize=True,
                   outer_jacobian_strategy="forward-mode")


def plain(x):
    """The properties that both libraries have in common."""
    if isinstance(x, (tuple, list)):
        return [plain(each) for each in x]
    if hasattr(x, "detach"):
        return str(x.dtype).partition(".")[2], list(x.shape), x.detach().numpy().tolist()
    return str(x).partition(".")[2] if str(x).startswith(("torch.", "teletensor.")) else x


def outcome(t, line):
    try:
        return plain(eval(line, {**globals(), "t": t}))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("line", LINES.strip().split("\n"))
def test_both_say_the_same(tt, line):
    import torch

    assert outcome(tt, line) == outcome(torch, line)


def test_copies_take_the_gradient_along(tt):
    import copy

    x = tt.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    twin = copy.deepcopy([x, x])
    assert twin[0] is twin[1] and twin[0].grad.tolist() == [2.0, 2.0, 2.0]
    twin[0].grad.zero_()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_bfloat16_number_reaches_torch(tt):
    assert tt.to_torch(tt.tensor(1.5, dtype=tt.bfloat16)).item() == 1.5


@pytest.mark.parametrize("name, options", [
    ("StepLR", {"step_size": 2}), ("MultiStepLR", {"milestones": [1, 3]}), ("ExponentialLR", {"gamma": 0.5}),
    ("LinearLR", {}), ("PolynomialLR", {"power": 0.9}), ("ConstantLR", {"total_iters": 2}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.1}), ("MultiplicativeLR", {"lr_lambda": lambda e: 0.5}),
    ("LambdaLR", {"lr_lambda": lambda e: 0.5**e}),
])
@pytest.mark.parametrize("last_epoch", [0, 1, 2, 4])
def test_schedules_go_on_from_an_epoch(tt, name, options, last_epoch):
    import torch

    def rates(t):
        parameter = t.zeros(1, requires_grad=True)
        optimizer = t.optim.SGD([{"params": [parameter], "lr": 0.4, "initial_lr": 0.5}], lr=0.4)
        schedule = getattr(t.optim.lr_scheduler, name)(optimizer, last_epoch=last_epoch, **options)
        found = [schedule.get_last_lr()[0]]
        for _ in range(3):
            optimizer.step()
            schedule.step()
            found.append(schedule.get_last_lr()[0])
        return found

    assert rates(tt) == pytest.approx(rates(torch), rel=1e-12)


def test_hooks_of_every_optimizer(tt):
    import torch

    def calls(t):
        said = []
        x = t.ones(2, requires_grad=True)
        optimizer = t.optim.SGD([x], lr=0.5)
        module = importlib.import_module(f"{t.__name__}.optim.optimizer")
        shared = [module.register_optimizer_step_pre_hook(lambda *_: said.append("all before")),
                  module.register_optimizer_step_post_hook(lambda *_: said.append("all after"))]
        optimizer.step()
        own = [optimizer.register_step_pre_hook(lambda *_: said.append("before")),
               optimizer.register_step_post_hook(lambda *_: said.append("after"))]
        optimizer.step()
        for handle in shared:
            handle.remove()
        optimizer.step()
        own[0].remove()
        t.optim.Adam([x]).step()
        return said

    assert calls(tt) == calls(torch)


def test_what_a_program_keeps_in_an_optimizers_state(tt):
    import torch

    for t in (tt, torch):
        x = t.ones(2, requires_grad=True)
        optimizer = t.optim.SGD([x], lr=0.5)
        optimizer.state["seen"] = 3
        saved = optimizer.state_dict()
        assert saved["state"] == {"seen": 3}
        other = t.optim.SGD([x], lr=0.5)
        other.load_state_dict(saved)
        assert other.state["seen"] == 3


def test_the_gradient_of_what_is_no_leaf(tt):
    import torch

    for t in (tt, torch):
        x = t.ones(2, requires_grad=True)
        y, z = x * 2, x * 3
        z.retain_grad()
        (y + z).sum().backward()
        with pytest.warns(UserWarning, match="not a leaf Tensor"):
            assert y.grad is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert x.grad.tolist() == [5.0, 5.0] and z.grad.tolist() == [1.0, 1.0]
            assert t.ones(2).grad is None and x.detach().grad is None


@pytest.mark.parametrize("library", ["teletensor", "torch"])
def test_what_functional_call_assigns_and_ties(tt, library):
    t = importlib.import_module(library)

    class Count(t.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", t.zeros(1))
            self.weight = t.nn.Parameter(t.ones(1))
            self.tied = self.weight

        def forward(self, x):
            self.n = self.n + 1
            return x + self.n + self.tied

    module, n = Count(), t.ones(1)
    given = {"n": n, "weight": t.zeros(1)}
    assert t.func.functional_call(module, given, t.zeros(1), strict=True).tolist() == [2.0]
    assert given["n"].tolist() == [2.0] and n.tolist() == [1.0] and module.n.tolist() == [0.0]
    with pytest.raises(ValueError, match="multiple values for keys"):
        t.func.functional_call(module, {**given, "tied": t.ones(1)}, t.zeros(1))


def test_shifts_in_place_of_another_name(tt):
    import torch

    for t in (tt, torch):
        x = y = z = t.tensor([8, 2])
        y <<= 2
        z >>= 1
        assert x.tolist() == [16, 4]


def test_more_tensors_than_one_instruction_holds(tt):
    import torch

    for t in (tt, torch):
        x = t.arange(70000)
        assert [len(x.split(1)), len(x.unbind()), sum(1 for _ in x), len(x.reshape(2, -1).chunk(35000, 1))] == [
            70000, 70000, 70000, 35000]
        assert x.split([1] * 69999 + [1])[-1].tolist() == x.unsqueeze(0).unbind(1)[-1].tolist() == [69999]
        parts = x.tensor_split(70000)
        assert t.cat(parts).equal(x) and t.stack(parts, 1)[0].equal(x) and t.hstack(parts).equal(x)
        with pytest.raises(RuntimeError):
            x.split([1] * 70001)


def test_paths_of_layers(tt):
    """Every layer is found under PyTorch's path, and is the same object as in nn."""
    import torch

    paths = [name for name, value in vars(torch.nn.modules).items()
             if getattr(value, "__name__", "").startswith("torch.nn.modules.")
             and name != "linear_cross_entropy_options"]
    absent = {"Container", "NonDynamicallyQuantizableLinear", "SyncBatchNorm"}
    count = 0
    for name in paths:
        theirs = importlib.import_module(f"torch.nn.modules.{name}")
        for layer in set(getattr(theirs, "__all__", ())) - absent:
            if isinstance(getattr(theirs, layer), type):
                ours = importlib.import_module(f"teletensor.nn.modules.{name}")
                assert getattr(ours, layer) is getattr(tt.nn, layer) is getattr(tt.nn.modules, layer), layer
                count += 1
    assert count > 100
    from teletensor.nn.modules.batchnorm import _BatchNorm
    from teletensor.nn.modules.conv import _ConvNd, _ConvTransposeNd
    from teletensor.nn.modules.utils import _pair, _triple
    nn = tt.nn
    assert isinstance(nn.BatchNorm2d(2), _BatchNorm) and not isinstance(nn.LayerNorm(2), _BatchNorm)
    assert isinstance(nn.ConvTranspose1d(1, 1, 1), _ConvTransposeNd) and issubclass(_ConvTransposeNd, _ConvNd)
    assert (_pair(3), _triple((1, 2, 3)), _pair([4, 5])) == ((3, 3), (1, 2, 3), (4, 5))
