"""The inputs of samples: arrays of every dtype and layout, and their conversion to tensors of a library and
back."""

from dataclasses import dataclass, replace

import numpy as np

FLOATS = ("f16", "bf16", "f32", "f64")
COMPLEX = ("c64", "c128")
INTS = ("u8", "i8", "i16", "i32", "i64", "u16", "u32", "u64")
WIDE_UNSIGNED = ("u16", "u32", "u64")  # PyTorch has these dtypes, but supports them in hardly any op
ALL = ("bool", *INTS, *FLOATS)  # all real dtypes
# bf16 arrays are represented by float32 arrays whose values are exact in bf16.
NUMPY = {"bool": np.bool_, "u8": np.uint8, "i32": np.int32, "i64": np.int64, "f16": np.float16,
         "bf16": np.float32, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16,
         "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "c64": np.complex64,
         "c128": np.complex128}
TORCH = {"bool": "bool", "u8": "uint8", "i32": "int32", "i64": "int64", "f16": "float16",
         "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16",
         "u16": "uint16", "u32": "uint32", "u64": "uint64", "c64": "complex64", "c128": "complex128"}
NAMES = {v: k for k, v in TORCH.items()}
SPECIALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, -1e-30, 1e30, 60000.0)


def to_bf16(array):
    """Rounds to the nearest bfloat16 (ties to even); the result is float32."""
    array = np.asarray(array)
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    result = np.where(np.isnan(array), array.astype(np.float32), rounded.view(np.float32))
    return result.reshape(np.shape(array))


def quantise(array, dtype):
    with np.errstate(all="ignore"):
        return to_bf16(array) if dtype == "bf16" else np.asarray(array).astype(NUMPY[dtype])


def exact(array):
    """The values for oracles: floating-point numbers in float64, all others unchanged."""
    kind = array.dtype.kind
    return array.astype(np.float64 if kind == "f" else np.complex128) if kind in "fc" else array


def held(data):
    """The numbers of a sample as an array; integers above 63 bits must not become floating-point."""
    array = np.array(data)
    if array.dtype.kind == "f" and all(isinstance(v, int) for v in data):
        array = np.array(data, dtype=object)
    return array


@dataclass(frozen=True)
class In:
    """A tensor operand. dtype None means the dtype under test. `data` replaces random numbers."""

    shape: tuple = (3, 4)
    low: float = -2.0
    high: float = 2.0
    layout: str = "plain"  # transposed, sliced, expanded, reversed-memory order
    dtype: str | None = None
    data: tuple | None = None
    grad: bool = True  # whether it takes part in gradient tests

    def make(self, rng, dtype):
        """Returns (the array in the sample's layout as the op sees it, the base array, the recipe)."""
        dtype = self.dtype or dtype
        if self.data is not None:
            array = quantise(held(self.data).reshape(self.shape), dtype)
        elif dtype == "bool":
            array = rng.random(self.shape) > 0.5
        elif dtype in INTS:
            low = max(self.low, np.iinfo(NUMPY[dtype]).min)
            low, high = int(np.ceil(low)), int(max(np.floor(self.high), np.ceil(low)))
            array = rng.integers(low, high + 1, self.shape).astype(NUMPY[dtype])
        elif dtype in COMPLEX:
            parts = rng.uniform(self.low, self.high, (2, *self.shape))
            array = quantise(parts[0] + 1j * parts[1], dtype)
        else:
            array = quantise(rng.uniform(self.low, self.high, self.shape), dtype)
        if self.layout == "expanded" and len(self.shape) and self.shape[0] > 1:
            array = np.broadcast_to(array[:1], self.shape).copy()
        return array

    def with_layout(self, layout):
        return replace(self, layout=layout)


@dataclass(frozen=True)
class Ins:
    """A list of tensor operands."""

    items: tuple

    def make(self, rng, dtype):
        return [i.make(rng, dtype) for i in self.items]


@dataclass(frozen=True)
class Dt:
    """A dtype argument."""

    name: str


class Library:
    """teletensor or PyTorch, with the operations that the tester needs."""

    def __init__(self, module):
        self.m = module
        self.options = {"force": True} if module.__name__ == "torch" else {}

    def dtype(self, name):
        return getattr(self.m, TORCH[name])

    def plain(self, array, dtype, **options):
        """A new contiguous tensor."""
        return self.m.tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=self.dtype(dtype),
                             **options)

    def tensor(self, spec, array, dtype):
        """A tensor with the values of `array`, with the memory layout that `spec` requires."""
        dtype = spec.dtype or dtype
        rank = array.ndim
        if spec.layout == "transposed" and rank >= 2:
            return self.plain(array.T, dtype).permute(*reversed(range(rank)))
        if spec.layout == "sliced" and rank >= 1:
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
            wide[..., 1::2] = array
            return self.plain(wide, dtype)[..., 1::2]
        if spec.layout == "expanded" and rank >= 1 and array.shape[0] > 1:
            return self.plain(array[:1], dtype).expand(array.shape)
        return self.plain(array, dtype)

    def numpy(self, tensor):
        tensor = tensor.detach()
        if self.name(tensor) == "bf16":
            tensor = tensor.to(self.m.float32)
        return np.asarray(tensor.numpy(**self.options))

    def name(self, tensor):
        return NAMES[str(tensor.dtype).split(".")[-1]]
