"""Arrays made from tensors are read-only, unless a copy is requested."""

import numpy as np
import pytest

MIB = 1 << 20
SIZES = pytest.mark.parametrize("size", [1, 5, 40_000, 2 * MIB])
ways = {
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "asanyarray": np.asanyarray,
    "asarray of the same dtype": lambda t: np.asarray(t, np.float32),
    "__array__": lambda t: t.__array__(),
    "from_dlpack": np.from_dlpack,
    "a view": lambda t: t[:].numpy(),
    "data": lambda t: t.data.numpy(),
}
copies = {
    "force": lambda t: t.numpy(force=True),
    "array": np.array,
    "array of a dtype": lambda t: np.array(t, np.float32),
    "another dtype": lambda t: np.asarray(t, np.float64),
    "__array__": lambda t: t.__array__(copy=True),
    "copy": lambda t: t.numpy().copy(),
    "from_dlpack": lambda t: np.from_dlpack(t, copy=True),
}


@SIZES
def test_writes_that_would_be_lost_are_refused(each_transport, tt, size):
    x = tt.zeros(size)
    for name, way in [*ways.items()] * 2:  # the second time the values may be known in this process
        array = way(x)
        with pytest.raises(ValueError, match="read-only"):
            array += 1
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        assert not array.flags.writeable and not array.any(), name
    x += 3
    assert all(way(x)[0] == 3 for way in ways.values())


@SIZES
def test_copies_can_be_written_to(each_transport, tt, size):
    x = tt.zeros(size)
    for name, way in [*copies.items()] * 2:
        array = way(x)
        array += 1
        assert array.sum() == size and x.sum().item() == 0 and not x.numpy().any(), name


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "uint64", "float16", "float64", "complex64",
                                   "complex128"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3), (700, 800)])
def test_all_dtypes_and_shapes(tt, dtype, shape):
    x = tt.ones(shape, dtype=getattr(tt, dtype))
    assert not x.numpy().flags.writeable and np.array(x).flags.writeable
    assert x.numpy().shape == shape and x.numpy().dtype == dtype
    copied = x.numpy(force=True)
    copied[...] = 0
    assert (np.asarray(x) == 1).all()


def test_parameters(tt):
    layer = tt.nn.Linear(2, 1)
    before = layer.weight.tolist()
    with pytest.raises(ValueError, match="read-only"):
        layer.weight.data.numpy()[:] = 3.0
    with pytest.raises(RuntimeError, match="requires grad"):
        layer.weight.numpy()
    layer.weight.numpy(force=True)[:] = 3.0
    assert layer.weight.tolist() == before


def test_numpy_functions_that_write_into_a_tensor(tt):
    x = tt.arange(4.0)
    with pytest.raises(TypeError, match="must be a NumPy array"):
        np.add(x, 1, out=x)
    with pytest.raises(TypeError, match="first operand"):
        np.add.at(x, [0], 1)
    with pytest.raises(ValueError, match="read-only"):
        np.nan_to_num(x, copy=False)
    array = np.ones(4, np.float32)
    array += x
    np.add.at(array, [0], x[1])
    assert array.tolist() == [2, 2, 3, 4] and x.tolist() == [0, 1, 2, 3]


def test_arrays_of_the_array_api(tt):
    from teletensor import array_api as xp

    x = xp.zeros(4)
    for array in (np.asarray(x), np.from_dlpack(x)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for array in (np.array(x), np.from_dlpack(x, copy=True)):
        array[0] = 1
    assert not np.asarray(x).any()


def test_dlpack_for_a_consumer_that_knows_no_read_only_arrays(tt):
    """An unversioned capsule must be writable; its memory belongs only to the consumer."""
    class Old:
        def __init__(self, t):
            self.t = t

        def __dlpack__(self, **arguments):
            return self.t.__dlpack__()

        def __dlpack_device__(self):
            return self.t.__dlpack_device__()

    x = tt.arange(3.0)
    assert x.numpy().tolist() == [0, 1, 2]
    np.from_dlpack(Old(x))
    assert x.tolist() == [0, 1, 2]
