"""The rows of the op table: how an op is called, the expected result in NumPy, and its samples."""

from collections.abc import Callable
from dataclasses import dataclass, field

from arrays import ALL, FLOATS, In

# The relative and absolute tolerance of values, by the dtype of the result.
TOLERANCE = {"f64": (1e-11, 1e-12), "f32": (4e-6, 2e-6), "f16": (2e-3, 2e-3), "bf16": (1.6e-2, 1e-2),
             "c64": (4e-6, 4e-6), "c128": (1e-11, 1e-12)}


@dataclass(frozen=True)
class Sample:
    args: tuple
    kwargs: dict = field(default_factory=dict)
    dtypes: tuple | None = None  # restricts the dtypes of the row
    gradients: bool = True  # whether it may be used for gradients (no ties, inside the domain)

    def __hash__(self):
        return id(self)


@dataclass
class Row:
    op: str  # the name in the catalog
    call: Callable                # call(L, *tensors, **attributes) with L = teletensor or torch
    reference: Callable | None  # the same operation on NumPy arrays (floats as float64)
    samples: list
    dtypes: tuple = FLOATS
    result: str | Callable = "same"  # dtype of the result: same, float, bool, i64, or f(dtype)
    gradients: bool = False
    second: bool = True  # whether second derivatives are checked too
    inplace: str | None = None  # the method that overwrites operand 0
    tolerance: float = 1.0        # factor on TOLERANCE
    check: Callable | None = None  # check(arrays, results): properties instead of a reference
    torch: bool = True  # whether PyTorch has it with the same call
    torch_gradients: bool = True  # whether PyTorch can differentiate it
    exact: bool = False  # whether results must be equal bit by bit

    def result_dtype(self, dtype):
        if callable(self.result):
            return self.result(dtype)
        if self.result == "same":
            return dtype
        if self.result == "float":
            return dtype if dtype in FLOATS else "f32"
        return self.result


def function(name):
    return lambda m, *args, **kwargs: getattr(m, name)(*args, **kwargs)


def method(name):
    return lambda m, x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def elementwise(count, low=-2.0, high=2.0, others=None):
    """Samples of an op with `count` operands: shapes, layouts, broadcasts, block boundaries."""
    def same(shape, layout="plain", **kw):
        return Sample(tuple(In(shape, low, high, layout, **kw) for _ in range(count)))
    few = [same((3, 4)), same(()), same((0,)), same((5, 3), "transposed"), same((1025,))]
    narrow = [same((1,)), same((2, 0, 3)), same((2, 3, 4), "transposed"), same((3, 5), "sliced"),
              same((4, 3), "expanded"), same((4097,)), same((70001,)), same((33, 1025), "sliced")]
    samples = few + [Sample(s.args, s.kwargs, ("f32",)) for s in narrow]
    if count == 2:
        pairs = [((3, 1), (1, 4)), ((), (3,)), ((2, 3), (3,)), ((1,), (0,)), ((2, 1, 3), (4, 1))]
        samples += [Sample((In(a, low, high), In(b, low, high)), {}, ("f32", "f64", "i64", "bool"))
                    for a, b in pairs]
        samples.append(Sample((In((513, 1), low, high), In((1, 129), low, high)), {}, ("f32", "i64"), False))
        samples += [Sample((In((4, 6), low, high, x), In((4, 6), low, high, y)), {}, ("f32", "i32"))
                    for x, y in (("transposed", "plain"), ("sliced", "transposed"),
                                 ("expanded", "sliced"))]
    return samples + (others or [])


def specials(count, values, dtypes):
    """Every combination of special values, as one sample per dtype group."""
    import itertools
    columns = list(zip(*itertools.product(values, repeat=count)))
    args = tuple(In((len(c),), data=tuple(c)) for c in columns)
    return Sample(args, {}, dtypes, gradients=False)


EXTREMES = {"u8": (0, 1, 2, 127, 128, 255), "i32": (0, 1, -1, 2, -7, 2**31 - 1, -2**31),
            "i64": (0, 1, -1, 2, -7, 2**63 - 1, -2**63), "i8": (0, 1, -1, 2, -7, 127, -128),
            "i16": (0, 1, -1, 2, -7, 2**15 - 1, -2**15), "u16": (0, 1, 2, 255, 2**16 - 1),
            "u32": (0, 1, 2, 2**31, 2**32 - 1), "u64": (0, 1, 2, 2**63, 2**64 - 1)}


def extremes(count):
    return [specials(count, values, (dtype,)) for dtype, values in EXTREMES.items()]


__all__ = ["ALL", "EXTREMES", "FLOATS", "TOLERANCE", "In", "Row", "Sample", "elementwise", "extremes",
           "function", "method", "specials"]
