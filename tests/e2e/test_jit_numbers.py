"""Numbers among the arguments of captured functions are numbers, whatever the function does with them."""

import decimal
import fractions
import functools
import math
import numbers
import operator

import numpy as np
import pytest
import teletensor as tt
from teletensor import nn

F = nn.functional

INTS = {
    "isinstance": lambda x, k: x * k if isinstance(k, int) else x * 0,
    "isinstance of two": lambda x, k: x * k if isinstance(k, (int, float)) else x * 0,
    "isinstance of Number": lambda x, k: x * k if isinstance(k, numbers.Number) else x * 0,
    "isinstance of Integral": lambda x, k: x * k if isinstance(k, numbers.Integral) else x * 0,
    "isinstance of bool": lambda x, k: x * 0 if isinstance(k, bool) else x * k,
    "type": lambda x, k: x * k if type(k) is int else x * 0,
    "type in": lambda x, k: x * k if type(k) in (int, float) else x * 0,
    "__class__": lambda x, k: x * k if k.__class__ is int else x * 0,
    "hasattr": lambda x, k: x * k if hasattr(k, "bit_length") else x * 0,
    "match": lambda x, k: _match(x, k),
    "dispatch": lambda x, k: _dispatch(k) * x,
    "product": lambda x, k: x * k,
    "product from the left": lambda x, k: k * x,
    "sum": lambda x, k: x + k + k,
    "difference": lambda x, k: k - x,
    "quotient": lambda x, k: x / k + k / x,
    "floor": lambda x, k: x // k + k // x,
    "remainder": lambda x, k: x % k + k % x,
    "power": lambda x, k: x ** k,
    "power from the left": lambda x, k: k ** x,
    "power of both": lambda x, k: x * k ** k,
    "negative power": lambda x, k: x * k ** -k,
    "comparison": lambda x, k: (x > k) | (k == x),
    "decides": lambda x, k: x * 2 if k > 2 else x,
    "truth": lambda x, k: x * 2 if k else x,
    "not": lambda x, k: x * 2 if not k - 2 else x,
    "and": lambda x, k: x * (k and 5),
    "chained": lambda x, k: x if 1 < k < 3 else x * 2,
    "bits": lambda x, k: x * (k & 3 | 8 ^ 1),
    "shift": lambda x, k: x * (1 << k) + (k >> 1),
    "invert": lambda x, k: x * ~k,
    "divmod": lambda x, k: x * divmod(7, k)[0] + divmod(k, 2)[1],
    "abs": lambda x, k: x * abs(-k),
    "pow": lambda x, k: x * pow(k, 2),
    "pow with modulus": lambda x, k: x * pow(k, 2, 3),
    "round": lambda x, k: x * round(k),
    "min and max": lambda x, k: x * min(k, 2) + max(k, 2),
    "sum of a list": lambda x, k: x * sum([k, k, 1]),
    "sorted": lambda x, k: x * sorted([k, 2, 0])[1],
    "reduce": lambda x, k: x * functools.reduce(operator.mul, [k, 2]),
    "int": lambda x, k: x * int(k),
    "float": lambda x, k: x * float(k),
    "complex": lambda x, k: x * complex(k, 1).real,
    "str": lambda x, k: x * len("a" * k) + len(str(k)) + int(f"{k:03d}") + int("%d" % k),  # noqa: UP031
    "index": lambda x, k: x * operator.index(k),
    "hash": lambda x, k: x * {1: 5, 2: 6, 3: 7}[k],
    "in a set": lambda x, k: x * 2 if k in {1, 2} else x,
    "in a tuple": lambda x, k: x * 2 if k in (1, 2) else x,
    "list": lambda x, k: x * [5, 6, 7, 8][k],
    "slice of a list": lambda x, k: x * sum([5, 6, 7, 8][:k]),
    "list times": lambda x, k: x * len([1] * k),
    "range": lambda x, k: sum((x * i for i in range(k)), x),
    "bit_length": lambda x, k: x * k.bit_length(),
    "real": lambda x, k: x * k.real + k.imag + k.numerator,
    "math": lambda x, k: x * math.sqrt(k) + math.factorial(k) + math.log(k),
    "floor of math": lambda x, k: x * math.floor(k / 2) + math.ceil(k / 2),
    "gcd": lambda x, k: x * math.gcd(k, 4),
    "isclose": lambda x, k: x * 2 if math.isclose(k, 2) else x,
    "Fraction": lambda x, k: x * float(fractions.Fraction(k, 7)),
    "Decimal": lambda x, k: x * float(decimal.Decimal(k)),
    "numpy": lambda x, k: x * float(np.sqrt(k)),
    "array": lambda x, k: x * int(np.array([k, 1]).sum()),
    "zeros of numpy": lambda x, k: x * np.zeros(k).shape[0],
    "float32 of numpy": lambda x, k: x * float(np.float32(2) * k),
    "in a container": lambda x, k: x * {"k": [k, (k, 2)]}["k"][1][0],
    "default": lambda x, k: (lambda y, j=k: y * j)(x),
    "partial": lambda x, k: functools.partial(tt.mul, other=k)(x),
    "starred": lambda x, k: tt.mul(*[x, k]),
    "alpha": lambda x, k: tt.add(x, x, alpha=k),
    "comprehension": lambda x, k: x * sum([i * k for i in range(3)]),
    "generator": lambda x, k: x * sum(i * k for i in range(3)),
    "map": lambda x, k: x * sum(map(lambda i: i * k, range(3))),
    "enumerate": lambda x, k: x * [i + v for i, v in enumerate([k, k])][1],
    "zip": lambda x, k: x * dict(zip("ab", [k, 2]))["a"],
    "conditional": lambda x, k: x * (3 if k is None else k),
    "walrus": lambda x, k: x * j if (j := k + 1) else x,
    "try": lambda x, k: _tried(x, k),
    "class": lambda x, k: x * _Box(k).value,
    "named tuple": lambda x, k: x * _pair(k),
    "roll": lambda x, k: x.roll(k),
    "shifts": lambda x, k: tt.roll(x, (k,), (0,)),
    "reshape": lambda x, k: x.repeat(k).reshape(k, -1),
    "view": lambda x, k: x.repeat(k).view(-1, k),
    "expand": lambda x, k: x.expand(k, 4),
    "repeat": lambda x, k: x.repeat(k),
    "repeat_interleave": lambda x, k: x.repeat_interleave(k),
    "tile": lambda x, k: x.tile((k,)),
    "split": lambda x, k: x.split(k)[0],
    "chunk": lambda x, k: x.chunk(k)[-1],
    "tensor_split": lambda x, k: x.tensor_split(k)[-1],
    "narrow": lambda x, k: x.narrow(0, k - 1, 2),
    "select": lambda x, k: x.select(0, k),
    "item": lambda x, k: x[k],
    "slice": lambda x, k: x[k - 1:k + 1],
    "step": lambda x, k: x[::k],
    "ellipsis": lambda x, k: x.reshape(2, 2)[..., k - k],
    "written": lambda x, k: _written(x, 0, k),
    "written at": lambda x, k: _written(x, k, 5),
    "fill_": lambda x, k: x.clone().fill_(k),
    "add_": lambda x, k: x.clone().add_(k),
    "tensor": lambda x, k: x * tt.tensor(k),
    "tensor of a list": lambda x, k: x[0] * tt.tensor([k, 1]),
    "as_tensor": lambda x, k: x * tt.as_tensor(k),
    "full": lambda x, k: tt.full((k,), k) * x[0],
    "zeros": lambda x, k: tt.zeros(k) + x[0],
    "ones of a tuple": lambda x, k: tt.ones((k, 2)) * x[0],
    "arange": lambda x, k: tt.arange(k) * x[0],
    "linspace": lambda x, k: tt.linspace(0, 1, k + 1) * x[0],
    "eye": lambda x, k: tt.eye(k) * x[0],
    "new_full": lambda x, k: x.new_full((2,), k),
    "movedim": lambda x, k: x.reshape(1, 1, 2, 2).movedim(0, k),
    "transpose": lambda x, k: x.reshape(1, 1, 2, 2).transpose(0, k),
    "unsqueeze": lambda x, k: x.reshape(1, 2, 2).unsqueeze(k),
    "sum of a dim": lambda x, k: x.reshape(1, 1, 2, 2).sum(k),
    "sum of dims": lambda x, k: x.reshape(1, 1, 2, 2).sum((0, k)),
    "softmax": lambda x, k: x.reshape(1, 1, 2, 2).softmax(dim=k),
    "cat": lambda x, k: tt.cat([x.reshape(1, 1, 2, 2)] * 2, k),
    "stack": lambda x, k: tt.stack([x.reshape(1, 2, 2)] * k, k),
    "flip": lambda x, k: x.reshape(1, 1, 2, 2).flip(k),
    "tril": lambda x, k: x.reshape(2, 2).tril(k - 2),
    "diagonal": lambda x, k: x.reshape(2, 2).diagonal(k - 2),
    "topk": lambda x, k: x.topk(k)[0],
    "kthvalue": lambda x, k: x.kthvalue(k)[0],
    "unfold": lambda x, k: x.unfold(0, k, 1),
    "one_hot": lambda x, k: F.one_hot(tt.tensor([0, 1]), k + 1) * x[0],
    "cumsum": lambda x, k: x.reshape(1, 1, 2, 2).cumsum(k),
    "norm": lambda x, k: x.norm(k),
    "clamp": lambda x, k: x.clamp(1, k),
    "where": lambda x, k: tt.where(x > 2, k, x),
    "masked_fill": lambda x, k: x.masked_fill(x > 2, k),
    "lerp": lambda x, k: x.lerp(x * 2, k),
    "max_pool": lambda x, k: F.max_pool1d(x.reshape(1, 1, 4), k),
    "avg_pool": lambda x, k: F.avg_pool1d(x.reshape(1, 1, 4), 2, stride=k),
    "adaptive pool": lambda x, k: F.adaptive_avg_pool1d(x.reshape(1, 1, 4), k),
    "conv": lambda x, k: F.conv1d(x.reshape(1, 1, 4), tt.ones(1, 1, 1), stride=k, padding=k, dilation=k),
    "padding": lambda x, k: F.pad(x, (k, 1), value=k),
    "interpolate": lambda x, k: F.interpolate(x.reshape(1, 1, 4), size=k),
    "interpolate by": lambda x, k: F.interpolate(x.reshape(1, 1, 4), scale_factor=k),
    "pixel_shuffle": lambda x, k: F.pixel_shuffle(x[:1].expand(1, k * k, 1, 1), k),
    "fft": lambda x, k: tt.fft.fft(x.reshape(1, 1, 2, 2), dim=k).real,
    "fft of n": lambda x, k: tt.fft.rfft(x, k).real,
    "fftshift": lambda x, k: tt.fft.fftshift(x.reshape(1, 1, 2, 2), k),
    "tensordot": lambda x, k: tt.tensordot(x.reshape(1, 1, 2, 2), tt.ones(2, 2, 1, 1), 2) * k,
    "matrix_power": lambda x, k: tt.linalg.matrix_power(x.reshape(2, 2), k),
    "glu": lambda x, k: F.glu(x.reshape(2, 2, 1, 1).expand(2, 2, 2, 2), k),
    "dropout": lambda x, k: F.dropout(x, 0.0 * k),
    "threshold": lambda x, k: F.threshold(x, k, 0),
    "leaky_relu": lambda x, k: F.leaky_relu(-x, k),
    "softplus": lambda x, k: F.softplus(x, k),
    "celu": lambda x, k: F.celu(-x, k),
    "layer_norm": lambda x, k: F.layer_norm(x, (4,), eps=k),
    "smooth_l1": lambda x, k: F.smooth_l1_loss(x, x * 3, beta=k),
    "huber": lambda x, k: F.huber_loss(x, x * 3, delta=k),
    "a module's attribute": lambda x, k: _module(x, k),
    "device of zeros": lambda x, k: tt.zeros((2, k), dtype=tt.float64) + x[:1],
    "size compared": lambda x, k: x * 2 if x.shape[0] == k * 2 else x,
    "numel": lambda x, k: x * (x.numel() // k),
}

FLOATS = {
    "isinstance": lambda x, k: x * k if isinstance(k, float) else x * 0,
    "isinstance of two": lambda x, k: x * k if isinstance(k, (int, float)) else x * 0,
    "isinstance of Number": lambda x, k: x * k if isinstance(k, numbers.Real) else x * 0,
    "type": lambda x, k: x * k if type(k) is float else x * 0,
    "match": lambda x, k: _match(x, k),
    "dispatch": lambda x, k: _dispatch(k) * x,
    "is_integer": lambda x, k: x * 2 if k.is_integer() else x * k,
    "as_integer_ratio": lambda x, k: x * k.as_integer_ratio()[1],
    "hex": lambda x, k: x * float.fromhex(k.hex()),
    "math": lambda x, k: x * math.sqrt(k) + math.exp(k) + math.cos(k) + math.log1p(k),
    "trunc": lambda x, k: x * math.trunc(k) + math.floor(k) + math.ceil(k),
    "isnan": lambda x, k: x * 0 if math.isnan(k) else x * k,
    "int": lambda x, k: x * int(k) + round(k, 1),
    "str": lambda x, k: x * float(f"{k:.2f}") + float("%.1f" % k) + float(repr(k)),  # noqa: UP031
    "numpy": lambda x, k: x * float(np.sqrt(k)),
    "array": lambda x, k: x * float(np.array([k]).sum()),
    "linspace of numpy": lambda x, k: x * float(np.linspace(0, k, 3)[1]),
    "product of numpy": lambda x, k: x * float(np.ones(1)[0] * k),
    "decides": lambda x, k: x * 2 if k > 1 else x,
    "chained": lambda x, k: x if 0.6 < k < 1 else x * 2,
    "truth": lambda x, k: x * 2 if k else x,
    "min and max": lambda x, k: x * min(k, 1.0) + max(k, 1),
    "sum of a list": lambda x, k: x * sum([k, 1]),
    "sorted": lambda x, k: x * sorted([k, 1.0])[0],
    "fsum": lambda x, k: x * math.fsum([k, 1.0]),
    "product": lambda x, k: k * x * k,
    "power": lambda x, k: x ** k,
    "power from the left": lambda x, k: k ** x,
    "quotient": lambda x, k: k / x + x / k + x // k + k % x,
    "arithmetic": lambda x, k: x * (1 - k ** 2) ** 0.5 / (1 - k / 7),
    "root of a negative": lambda x, k: x * abs((-k) ** 0.5),
    "divmod": lambda x, k: x * divmod(k, 0.3)[0],
    "hash": lambda x, k: x * {0.5: 2, 1.5: 3, 2.0: 4}[k],
    "in a set": lambda x, k: x * 2 if k in {0.5} else x,
    "list": lambda x, k: x * [1.0, k][1],
    "written": lambda x, k: _written(x, 0, k),
    "written to a slice": lambda x, k: _written(x, slice(1, 3), k),
    "tensor": lambda x, k: x * tt.tensor(k),
    "tensor of a list": lambda x, k: x[0] * tt.tensor([k, [k]][0]),
    "tensor of lists": lambda x, k: x[0] * tt.tensor([[k, 1.0], [2.0, k]]),
    "as_tensor": lambda x, k: x * tt.as_tensor(k),
    "scalar_tensor": lambda x, k: x * tt.full((), k),
    "from_numpy": lambda x, k: x * tt.from_numpy(np.full(4, k)),
    "full": lambda x, k: tt.full((2,), k) * x[0],
    "full_like": lambda x, k: tt.full_like(x, k),
    "arange": lambda x, k: tt.arange(0, 3, k) * x[0],
    "linspace": lambda x, k: tt.linspace(0, k, 3) * x[0],
    "fill_": lambda x, k: x.clone().fill_(k),
    "add_": lambda x, k: x.clone().add_(x, alpha=k),
    "addcmul": lambda x, k: tt.addcmul(x, x, x, value=k),
    "lerp": lambda x, k: x.lerp(x * 2, k),
    "clamp": lambda x, k: x.clamp(max=k) + x.clamp(k, 9.0),
    "where": lambda x, k: tt.where(x > 2, k, x),
    "masked_fill": lambda x, k: x.masked_fill(x > 2, k),
    "comparison": lambda x, k: (x > k) & (x != k),
    "minimum": lambda x, k: tt.minimum(x, tt.tensor(k)),
    "interpolate": lambda x, k: F.interpolate(x.reshape(1, 1, 4), scale_factor=k),
    "dropout": lambda x, k: F.dropout(x, k - k),
    "leaky_relu": lambda x, k: F.leaky_relu(-x, k),
    "elu": lambda x, k: F.elu(-x, k),
    "softplus": lambda x, k: F.softplus(x, k),
    "hardtanh": lambda x, k: F.hardtanh(x, -k, k),
    "gumbel": lambda x, k: (x / k).softmax(0),
    "cross_entropy": lambda x, k: F.cross_entropy(x[None], tt.tensor([0]), label_smoothing=k / 4),
    "huber": lambda x, k: F.huber_loss(x, x * 3, delta=k),
    "normalize": lambda x, k: F.normalize(x, eps=k, dim=0),
    "norm": lambda x, k: x.norm(k),
    "layer_norm": lambda x, k: F.layer_norm(x, (4,), eps=k),
    "pad": lambda x, k: F.pad(x, (1, 1), value=k),
    "quantile": lambda x, k: x.quantile(k / 3),
    "isclose": lambda x, k: tt.isclose(x, x + 1, atol=k),
    "logit": lambda x, k: (x / 9).logit(eps=k / 10),
    "nan_to_num": lambda x, k: (x / 0 * 0).nan_to_num(k),
    "std": lambda x, k: x.std() * k,
    "partial": lambda x, k: functools.partial(F.softplus, beta=k)(x),
    "starred": lambda x, k: tt.mul(*(x, k)),
    "named": lambda x, k: tt.mul(**{"input": x, "other": k}),
    "class": lambda x, k: x * _Box(k).value,
    "a module's attribute": lambda x, k: _module(x, k),
    "schedule": lambda x, k: x * (0.5 * (1 + math.cos(math.pi * k))),
    "complex": lambda x, k: x * abs(complex(0, k)),
    "complex tensor": lambda x, k: (x * (k * 1j)).imag,
    "Fraction": lambda x, k: x * float(fractions.Fraction(k)),
    "Decimal": lambda x, k: x * float(decimal.Decimal(k)),
    "floor_divide": lambda x, k: tt.floor_divide(x, k),
    "pow of torch": lambda x, k: tt.pow(k, x) + tt.pow(x, k),
    "float_power": lambda x, k: tt.float_power(x, k),
    "atan2": lambda x, k: tt.atan2(x, tt.full_like(x, k)),
    "index_fill": lambda x, k: x.index_fill(0, tt.tensor([1]), k),
    "scatter": lambda x, k: x.scatter(0, tt.tensor([1]), k),
    "addmm": lambda x, k: tt.addmm(x.reshape(2, 2), x.reshape(2, 2), x.reshape(2, 2), beta=k, alpha=k),
    "distribution": lambda x, k: tt.distributions.Normal(0.0, k, validate_args=False).log_prob(x),
}


class _Box:
    def __init__(self, value):
        if not isinstance(value, (int, float)):
            raise TypeError
        self.value = value


class _Scaled(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return x * self.k


def _module(x, k):
    return _Scaled(k)(x)


def _match(x, k):
    match k:
        case bool():
            return x * 0
        case 2:
            return x * 100
        case int():
            return x * k
        case float():
            return x * k + 1
    return x * 0


@functools.singledispatch
def _dispatch(k):
    return 0


@_dispatch.register
def _(k: int):
    return k * 2


@_dispatch.register
def _(k: float):
    return k * 3


def _tried(x, k):
    try:
        return x * [5, 6][k]
    except IndexError:
        return x * k


def _pair(k):
    import collections

    return collections.namedtuple("Pair", "a b")(k, 2).a


def _written(x, at, value):
    y = x.clone()
    y[at] = value
    return y


@pytest.mark.parametrize("name", INTS)
def test_ints(name):
    f = INTS[name]
    compiled = tt.compile(lambda x, k: f(x, k))
    x = tt.arange(1.0, 5.0)
    for k in (1, 2, 3, 2, 1, 3):
        same(compiled(x, k), f(x, k))


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    f = FLOATS[name]
    compiled = tt.compile(lambda x, k: f(x, k))
    x = tt.arange(1.0, 5.0)
    for k in (0.5, 1.5, 2.0, 1.5, 0.5):
        same(compiled(x, k), f(x, k))


def same(found, right):
    assert type(found) is type(right)
    assert found.shape == right.shape and found.dtype == right.dtype
    np.testing.assert_array_equal(found.numpy(), right.numpy())


def test_numbers_that_a_gradient_computes_from_an_argument():
    """The gradient of x ** k contains k - 1, which is no argument of the captured function."""
    def f(x, k):
        y = x.detach().requires_grad_()
        (y ** k).sum().backward()
        return y.grad

    compiled = tt.compile(f)
    x = tt.arange(1.0, 5.0)
    for k in (2.5, 3.5, 1.5, 2.5):
        same(compiled(x, k), f(x, k))


KEPT = ["product", "fill_", "gumbel", "where", "lerp", "named", "starred", "class",
        "sum of a list", "isinstance", "isinstance of two", "type", "full", "a module's attribute"]


@pytest.mark.parametrize("name", KEPT)
def test_what_is_only_calculated_with_is_captured_once(name):
    f = FLOATS[name]
    compiled = tt.compile(lambda x, k: f(x, k))
    x = tt.arange(1.0, 5.0)
    for k in (0.5, 1.5, 2.0, 2.5):
        same(compiled(x, k), f(x, k))
    assert compiled._entries == 1


def test_numbers_that_are_handed_out_are_numbers():
    seen = {}

    @tt.compile
    def f(x, k):
        seen["k"] = k
        seen["twice"] = [k * 2]
        return x * k, k

    for k in (0.5, 1.5):
        y, back = f(tt.ones(1), k)
        assert type(back) is float and back == k and y.item() == k
        assert type(seen["k"]) is float and type(seen["twice"][0]) is float and seen["k"] == k


def test_arguments_that_cannot_be_hashed():
    c = tt.compile(lambda x, at: x[at])
    x = tt.arange(4.0)
    for at in (slice(2, 3), slice(1, 3), slice(2, 3), slice(None, None, 2)):
        assert c(x, at).tolist() == x[at].tolist()
    assert c._entries == 3
    table = np.arange(3.0)
    c = tt.compile(lambda x, t: x * float(t.sum()))
    assert c(x, table).tolist() == (x * 3).tolist()
    table[0] = 1.0
    assert c(x, table).tolist() == (x * 4).tolist()


def test_a_tensor_from_outside_may_be_the_result():
    k, other = tt.ones(2), tt.zeros(3)
    c = tt.compile(lambda x: k)
    assert c(tt.ones(1)) is k and c(tt.ones(1)) is k
    c = tt.compile(lambda x: (x * 2, k, {"a": [other]}))
    for _ in range(3):
        a, b, d = c(tt.ones(1))
        assert a.item() == 2 and b is k and d["a"][0] is other
    k = tt.zeros(1)
    assert c(tt.ones(1))[1] is k
    base = tt.zeros(3)
    part = base[1:]

    @tt.compile
    def write(x):
        part.add_(x)
        return base

    for i in range(1, 4):
        assert write(tt.ones(1)) is base and base.tolist() == [0, i, i]
