"""Zero-copy NumPy: for a tensor made from a NumPy array that lives in memory shared with the daemon, in-place
change of the array is seen by the tensor; `a = a + 1` is not; `tt.tensor(array)` always copies."""

import numpy as np
import pytest
from support.daemon import wait_until

MIB = 1 << 20


@pytest.fixture(params=["shared", "streams"])
def tt(request, start_daemon):
    """A session whose arrays are the daemon's memory, and one whose arrays are not."""
    import teletensor

    daemon = start_daemon("--sim-devices", "1")
    way = (daemon.unix,) if request.param == "shared" else (daemon.tcp, daemon.token)
    with teletensor.connect(*way[:1], token=way[-1] if way[1:] else None) as session:
        session.shares = request.param == "shared"
        assert session._shared.available == session.shares
        yield teletensor


def used(tt):
    return tt.current_session().memory()[0]["used"]


@pytest.mark.parametrize("size", [4, MIB])
def test_8_zero_copy_numpy(tt, size):
    a = tt.shared_empty(size)
    assert isinstance(a, np.ndarray) and a.dtype == np.float32 and not a.any()
    x = tt.from_numpy(a)
    copy = tt.tensor(a)
    a[:] = 1
    a[0] = 5  # in place: seen
    assert x[0].item() == 5 and x.sum().item() == size + 4
    a += 1
    assert x[0].item() == 6
    np.testing.assert_array_equal(x.numpy(), a)
    a = a + 1  # another array: not seen
    assert a[0] == 7 and x[0].item() == 6
    assert copy.sum().item() == 0  # a copy, always


def test_what_was_computed_keeps_its_values(tt):
    a = tt.shared_empty(1000)
    x = tt.from_numpy(a)
    results = []
    for i in range(20):
        a[:] = i
        results.append(x * 2)  # the array may be written again when the line is done
    assert [r.sum().item() for r in results] == [2000.0 * i for i in range(20)]


def test_gradients_are_of_the_values_that_were_used(tt):
    a = tt.shared_empty(3)
    a[:] = [1, 2, 3]
    x = tt.from_numpy(a)
    w = tt.ones(3, requires_grad=True)
    y = (x * w).sum()
    a[:] = 100
    y.backward()
    assert w.grad.tolist() == [1, 2, 3] and y.item() == 6
    (x * w).sum().backward()
    assert w.grad.tolist() == [101, 102, 103]


def test_views_follow_and_parts_of_an_array(tt):
    a = tt.shared_empty(4, 6, dtype=tt.float64)
    x = tt.from_numpy(a)
    row, turned = x[1], x.t()
    part, crooked = tt.from_numpy(a[2]), tt.from_numpy(a[:, ::2])
    a[1, 2] = 4
    a[2, 4] = 9
    assert row.tolist() == [0, 0, 4, 0, 0, 0] and turned[2, 1].item() == 4
    assert part[4].item() == 9 and crooked[2, 2].item() == 9 and crooked.shape == (4, 3)
    b = a.view(np.int64)
    assert tt.from_numpy(b)[1, 2].item() == b[1, 2]


def test_it_cannot_be_written_to(tt):
    a = tt.shared_empty(4)
    x = tt.from_numpy(a)
    for write in (lambda: x.add_(1), lambda: x[0].fill_(1), lambda: x.copy_(tt.ones(4))):
        with pytest.raises(RuntimeError, match="follows the array"):
            write()
    with pytest.raises(RuntimeError, match="follows the array"):
        x[0] = 1
    assert (x.clone().add_(1)).tolist() == [1] * 4


def test_hand_over_and_take_back(tt):
    a = tt.shared_empty(MIB)
    a[:] = 3
    x = tt.from_numpy(a).hand_over()
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    x.mul_(2)
    y = x + 1
    x.take_back()
    assert (a == 6).all() and (y == 7).all().item()
    a[0] = 10
    assert x[0].item() == 10 and x[1].item() == 6
    with pytest.raises(RuntimeError, match="does not follow"):
        y.hand_over()


def test_captured_functions_take_it_as_an_argument_or_refuse_it(tt):
    a = tt.shared_empty(8)
    x = tt.from_numpy(a)

    @tt.compile
    def double(t):
        return t * 2

    with pytest.raises(RuntimeError, match="shows an array's memory"):
        double(x)
    y = double(tt.ones(8))
    a[:] = 4
    assert y.tolist() == [2] * 8
    assert double(x).tolist() == [8] * 8  # the program is there, and is given the array's values
    a[:] = 5
    assert double(x).tolist() == [10] * 8


def test_other_arrays_and_arrays_of_tensors_are_copied(tt):
    for array in (np.zeros(4, np.float32), np.array(tt.zeros(MIB)), np.array(tt.zeros(4))):
        x = tt.from_numpy(array)
        array[0] = 1
        assert x[0].item() == 0
    with pytest.raises(TypeError, match="np.ndarray"):
        tt.from_numpy([1, 2])


def test_shapes_and_dtypes(tt):
    assert tt.shared_empty().shape == () and tt.shared_empty((2, 3)).shape == (2, 3)
    assert tt.shared_empty(0, 3).shape == (0, 3)
    assert tt.from_numpy(tt.shared_empty(0, 3)).shape == (0, 3)
    for dtype in (tt.int64, np.int64, "int64"):
        assert tt.from_numpy(tt.shared_empty(3, dtype=dtype)).dtype == tt.int64
    with pytest.raises(ValueError, match="negative"):
        tt.shared_empty(-1)


def test_memory_is_the_sessions_and_comes_back(tt):
    start = used(tt)
    a = tt.shared_empty(4 * MIB)
    shared = 16 * MIB if tt.current_session().shares else 0
    assert used(tt) - start == shared
    for _ in range(10):  # a tensor without references is forgotten
        x = tt.from_numpy(a)
        x.sum().item()
    assert used(tt) - start <= shared + 3 * 16 * MIB
    del x, a
    tt.from_numpy(tt.shared_empty(1))  # forgets the others
    wait_until(lambda: used(tt) - start < MIB, what="the memory is back")


def test_too_much_is_out_of_memory(start_daemon):
    import teletensor as tt

    with tt.connect(start_daemon("--session-memory", "20MiB").unix):
        with pytest.raises(tt.OutOfMemoryError):
            tt.shared_empty(8 * MIB)
        a = tt.shared_empty(2 * MIB)
        a[:] = 1
        assert tt.tensor(a).sum().item() == 2 * MIB
        with pytest.raises(tt.OutOfMemoryError):
            kept = [tt.tensor(a) for _ in range(3)]
            kept[-1].sum().item()
        assert tt.ones(3).sum().item() == 3


def test_to_a_simulated_device(tt):
    a = tt.shared_empty(MIB)
    a[:] = 2
    assert tt.tensor(a, device="sim:0").sum().item() == 2 * MIB
