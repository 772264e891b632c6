"""Views of another dtype share the memory: in windows, captured functions, files, other sessions and after
restarts. tests/peers/test_dtype_views_torch.py compares their values and gradients with PyTorch."""

import io

import numpy as np
import pytest


def crowd(tt):
    """The queue fills after these operations, so that later ones are planned as windows."""
    x = tt.ones(600, 600)
    tt.synchronize()
    return x @ x @ x @ x


def complex_ones(tt, n):
    return tt.ones(n, dtype=tt.complex64)


@pytest.mark.parametrize("size", [6, 3000, 300_000])
@pytest.mark.parametrize("seed", range(4))
def test_random_writes_in_windows(tt, size, seed):
    """Chains of elementwise steps and writes, read and written through names of four dtypes, give NumPy's
    results."""
    random = np.random.default_rng(seed)
    ours = {"i32": tt.arange(size, dtype=tt.int32)}
    ours |= {"f32": ours["i32"].view(tt.float32), "i16": ours["i32"].view(tt.int16), "i64": ours["i32"].view(tt.int64)}
    theirs = {"i32": np.arange(size, dtype=np.int32)}
    theirs |= {"f32": theirs["i32"].view("f4"), "i16": theirs["i32"].view("i2"), "i64": theirs["i32"].view("i8")}
    waiting = crowd(tt)
    made = []
    for _ in range(60):
        name = ("i32", "i16", "i64")[random.integers(3)]
        x, a = ours[name], theirs[name]
        n = int(random.integers(1, 100))
        step = random.integers(7)
        if step == 0:
            x.add_(n)
            a += n
        elif step == 1:
            x[1:].bitwise_xor_(x[:-1] if n % 2 else n)
            a[1:] ^= a[:-1].copy() if n % 2 else n
        elif step == 2:
            ours["f32"].fill_(n)
            theirs["f32"][:] = n
        elif step == 3:  # the same memory at another place and as another dtype
            half = size // 2
            ours["i16"][:half].add_(ours["i32"][half : 2 * half])
            theirs["i16"][:half] += theirs["i32"][half : 2 * half].astype("i2")
        elif step == 4:
            made.append(((x * 2 + 1).sum(), (a * 2 + 1).sum()))
        elif step == 5:
            y, b = x * n, a * a.dtype.type(n)
            made.append((y.view(tt.int16) + 1, b.view("i2") + np.int16(1)))
            y.view(tt.int32).add_(1)
            b.view("i4")[:] += 1
            made.append((y, b))
        else:
            ours["f32"].view(tt.int32).mul_(3)
            theirs["i32"] *= 3
    for name, a in theirs.items():
        assert ours[name].numpy().tobytes() == a.tobytes(), name
    for mine, other in made:
        assert np.array_equal(mine.numpy(), other)
    assert waiting.shape == (600, 600)


def test_a_part_of_an_element_is_read_and_not_written(tt):
    bytes_ = tt.arange(7, dtype=tt.uint8)
    words = bytes_[2:6].view(tt.int16)
    assert words.tolist() == [0x0302, 0x0504]
    with pytest.raises(RuntimeError, match="add_: the tensor's memory, 7 bytes, is not a whole number of elements"):
        words.add_(1)
    bytes_[2] = 9
    assert words.tolist() == [0x0309, 0x0504]


def test_bools_are_not_shared(tt):
    """A bool read from other bytes is 0 or 1, on which kernels rely."""
    x = tt.tensor([0, 1, 2, 255], dtype=tt.uint8)
    b = x.view(tt.bool)
    assert b.tolist() == [False, True, True, True] and b.view(tt.uint8).tolist() == [0, 1, 1, 1]
    b.view(tt.uint8).fill_(7)
    b.fill_(False)
    assert x.tolist() == [0, 1, 2, 255]


def test_ranks_at_the_limit(tt):
    """The history of a complex view uses the view of its parts, with one more dimension."""
    x = tt.ones(2, requires_grad=True)
    z = tt.view_as_complex(x * 1)
    with pytest.raises(RuntimeError, match=".*complex one has rank 12; .* above the limit of 12"):
        z.view(*[1] * 12)
    z.view(*[1] * 11).mul_(3)
    z.abs().sum().backward()
    assert x.grad.tolist() == pytest.approx([3 / 2**0.5] * 2)
    c = tt.ones(*[1] * 12, dtype=tt.complex64)
    with pytest.raises(RuntimeError, match="view_as_real: .*complex one has rank 12; .* above the limit of 12"):
        tt.view_as_real(c.flatten())


def test_numpy_shows_the_memory_of_the_view(tt):
    z = tt.arange(400_000, dtype=tt.float32).view(tt.complex64)
    shown = z.imag.numpy()
    z.real.fill_(0)
    z.imag.mul_(2)
    assert shown[:3].tolist() == [1, 3, 5] and z.numpy()[:2].tolist() == [2j, 6j]


def test_a_view_stays_when_its_base_is_assigned_and_dropped(tt):
    z = complex_ones(tt, 4)
    real, bits = z.real, z.view(tt.int64)
    del z
    real.fill_(2)
    assert bits.view(tt.complex64).tolist() == [2] * 4
    x = tt.zeros(4)
    words = x.view(tt.int32)
    x.data = tt.ones(4)
    words.fill_(5)
    assert x.tolist() == [1] * 4 and words.tolist() == [5] * 4


# ---------------------------------------------------------------- captured functions and files


def test_captured_functions_write_through_views(tt):
    @tt.compile
    def step(z, x):
        tt.view_as_real(z)[..., 1].add_(x)
        x.view(tt.int32).bitwise_xor_(1)
        return z * 2, z.imag

    z, x = complex_ones(tt, 3), tt.zeros(3)
    model_z, model_x = np.ones(3, np.complex64), np.zeros(3, np.float32)
    for _ in range(3):
        twice, imag = step(z, x)
        model_z.imag += model_x
        model_x.view("i4")[:] ^= 1
        assert twice.tolist() == (model_z * 2).tolist() and imag.tolist() == model_z.imag.tolist()
        assert z.tolist() == model_z.tolist() and x.numpy().tobytes() == model_x.tobytes()


def test_views_of_two_dtypes_from_outside(tt):
    """The tensors of another call need not share their memory."""
    z = complex_ones(tt, 3)
    real = z.real
    both = tt.compile(lambda: (real * 2 + z.imag).sum())
    with pytest.raises(RuntimeError, match="two tensors of different dtypes from outside that share their memory"):
        both()
    inside = tt.compile(lambda: (z.real * 2 + z.imag).sum())
    assert inside().item() == 6
    real.add_(1)
    assert inside().item() == 12


def test_gradients_of_captured_functions(tt):
    def f(w):
        y = w * 1
        y.real.mul_(3)
        y.imag[0] = 0
        return (tt.view_as_real(y) * tt.tensor([[1.0, 2.0], [3.0, 4.0]])).sum()

    for function in (f, tt.compile(f)):
        w = tt.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        function(w).backward()
        assert w.grad.tolist() == [3, 9 + 4j]


def test_saved_functions(tt):
    def f(z):
        y = z * 2
        y.real.add_(1)
        return y.view(tt.float32), y

    file = io.BytesIO()
    tt.jit.save(tt.jit.trace(f, complex_ones(tt, 3)), file)
    file.seek(0)
    parts, whole = tt.jit.load(file)(complex_ones(tt, 3) * 1j)
    assert whole.tolist() == [1 + 2j] * 3 and parts.tolist() == [1, 2] * 3


def test_scripts(tt):
    @tt.jit.script
    def f(z, n: int):
        for _ in range(n):
            y = z * 1
            y.real.mul_(2)
            z = y
        return z.imag + z.real

    assert f(complex_ones(tt, 2) * (1 + 1j), 3).tolist() == [9, 9]


# ---------------------------------------------------------------- sessions


def test_a_failed_write_is_taken_back(tt):
    x = tt.tensor([1.0, 2.0])
    words = x.view(tt.int32)
    before = words.tolist()
    words.floor_divide_(tt.tensor([1, 0], dtype=tt.int32))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        x.tolist()
    assert x.tolist() == [1, 2] and words.tolist() == before


def test_other_sessions_see_writes_through_views(shared_daemon):
    import teletensor as tt

    with tt.connect(shared_daemon.unix) as a, tt.connect(shared_daemon.unix) as b:
        with a.as_current():
            w = tt.zeros(4)
            tt.publish("dtype_views", w, writable=True)
        with b.as_current():
            shared = tt.published("dtype_views")
            shared.view(tt.int32)[1:3].fill_(0x3F800000)
            b.synchronize()
        assert w.tolist() == [0, 1, 1, 0]
        with a.as_current():
            w.view(tt.complex64).imag.add_(1)
            a.synchronize()
        assert shared.tolist() == [0, 2, 1, 1]


@pytest.mark.parametrize("crash", [False, True])
def test_names_of_several_dtypes_outlive_the_daemon(start_daemon, tt, crash):
    daemon = start_daemon("--lease", "120", "--restart", "60", "--drain", "60")
    with tt.connect(daemon.unix, name="exp").as_current() as s:
        z = complex_ones(tt, 1000)
        s.keep("z", z)
        s.keep("real", z.real)
        s.keep("bits", z.view(tt.int32))
        odd = tt.arange(7, dtype=tt.uint8)
        s.keep("word", odd[:4].view(tt.int32))
        s.keep("odd", odd)
        z.real.fill_(2)
        s.snapshot()
        s.detach()
    if crash:
        daemon.kill()
    else:
        assert daemon.terminate() == 0, daemon.log
    daemon.restart()
    with tt.connect(daemon.unix, name="exp", fresh=True).as_current() as s:
        kept = s.kept()
        assert kept["z"].tolist() == [2 + 0j] * 1000 and kept["word"].tolist() == [0x03020100]
        kept["bits"][1] = 0x40400000
        kept["real"][1:].add_(1)
        kept["odd"][0] = 5
        assert kept["z"][:2].tolist() == [2 + 3j, 3] and kept["word"].tolist() == [0x03020105]
        s.close()


def test_gradients_through_views_outlive_the_daemon(start_daemon, tt):
    daemon = start_daemon("--lease", "120", "--restart", "60", "--drain", "60")
    with tt.connect(daemon.unix).as_current() as s:
        w = complex_ones(tt, 3).requires_grad_()
        y = w * 2
        y.real.mul_(3)
        imag = y.imag
        s.synchronize()
        assert daemon.terminate() == 0, daemon.log
        daemon.restart()
        y.imag.add_(w.real)
        (y.real + imag).sum().backward()
        assert w.grad.tolist() == [7 + 2j] * 3


def test_views_of_what_lies_on_the_disk(start_daemon, tt):
    daemon = start_daemon("--host-memory", "32MiB", "--disk-memory", "256MiB")
    with tt.connect(daemon.unix).as_current():
        many = [complex_ones(tt, 500_000) * i for i in range(20)]
        for z in many:
            z.view(tt.float32).add_(1)
            z.imag.mul_(2)
        for i, z in enumerate(many):
            assert z.real.sum().item() == 500_000 * (i + 1) and z[7].item() == i + 1 + 2j
