"""Values that the client knows: reading them costs no wait, and no read returns an old value."""

import gc

import numpy as np
import pytest
from support.clients import client, finish

KNOWN = 4096  # bytes of the largest tensor whose value is kept


@pytest.fixture
def core(tt):
    return tt.current_session()._core


@pytest.fixture
def waits(core):
    """waits(function) -> the number of waits of a call of it"""
    def count(function):
        before = core.waits
        function()
        return core.waits - before
    return count


# ---------------------------------------------------------------- what costs no wait

def test_a_tensor_that_was_made_of_numbers_is_read_without_a_wait(tt, waits):
    x, n, rows = tt.tensor(2.5), tt.tensor(3), tt.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=tt.float64)

    def read():
        assert x.item() == float(x) == 2.5 and int(n) == 3 and list(range(5))[n] == 3
        assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0]] and rows.t()[1].tolist() == [2.0, 4.0]
        assert np.array_equal(rows.numpy(), [[1, 2], [3, 4]]) and rows[1, 0].item() == 3.0
        assert f"{x:.2f}" == "2.50" and "2.5000" in repr(x)
        assert x > 2 and 3 > x and x <= 2.5 and not x != 2.5 and n == 3 and n < tt.tensor(4)
    assert waits(read) == 0


def test_a_small_tensor_of_one_number_is_read_without_a_wait(tt, waits):
    x, like = tt.zeros(3), tt.tensor([1.0, 2.0]) * 2

    def read():
        assert tt.zeros(()).item() == 0.0 and tt.ones(2, 2).tolist() == [[1.0, 1.0]] * 2 and x.tolist() == [0.0] * 3
        assert tt.full((), 0.1).item() == np.float32(0.1) and tt.full((2,), 0.1, dtype=tt.float64)[1].item() == 0.1
        assert tt.full((), 7).item() == 7 and tt.full((), True).item() is True and tt.ones((), dtype=tt.bool).item()
        assert tt.zeros(2, dtype=tt.complex64).tolist() == [0j, 0j]
        assert tt.zeros(2, dtype=tt.float16).tolist() == [0.0] * 2
        assert tt.zeros_like(like).tolist() == [0.0, 0.0] and tt.ones_like(like, dtype=tt.int64).tolist() == [1, 1]
        assert tt.full_like(like, -2).tolist() == [-2.0] * 2 and like.new_zeros(2).tolist() == [0.0] * 2
        assert tt.zeros(KNOWN // 4)[5] == 0 and bool(tt.ones(KNOWN // 8, dtype=tt.int64)[-1] == 1)
    assert waits(read) == 0
    assert waits(lambda: tt.zeros(KNOWN // 4 + 1).tolist()) == 1 and waits(lambda: tt.empty(2).tolist()) == 1
    x += 1
    assert x.tolist() == [1.0] * 3


def test_a_small_range_of_integers_is_read_without_a_wait(tt, core, waits):
    most = core.most_known_bytes
    ranges = [(5,), (2, 7), (7, 2, -2), (3.0,), (-3, 3), (2**24 - 2, 2**24 + 1)]
    for each in ranges:
        for dtype in (None, tt.float32, tt.float64, tt.int32, tt.int64):
            core.most_known_bytes = most
            made = tt.arange(*each, dtype=dtype)
            assert waits(made.tolist) == 0, (each, dtype)
            core.most_known_bytes = 0
            assert made.tolist() == tt.arange(*each, dtype=dtype).tolist(), (each, dtype)
            assert waits(made.tolist) == 1
    core.most_known_bytes = most
    negative = tt.arange(-0.0, -2.0, -1.0)
    assert [np.copysign(1.0, v) for v in negative.tolist()] == [-1.0, -1.0]
    for unknown in (tt.arange(0, 1, 0.25), tt.arange(2**25), tt.arange(2**24, 2**24 + 2)):
        assert waits(unknown[0].item) == 1


def test_sums_and_products_of_known_numbers_cost_no_wait(tt, waits):
    a, h, i = tt.tensor(2.0), tt.tensor(0.1, dtype=tt.float64), tt.tensor(3)

    def step():
        assert (a + 1).item() == 3.0 and (1 - a).item() == -1.0 and (a * a).item() == 4.0 and (-a).item() == -2.0
        assert (h + h + h).item() == 0.1 + 0.1 + 0.1 and bool(h * 3 > 0.3) and (i + 1) * 2 - i == 5
        assert list(range(9))[i + 1] == 4 and (a[None] + a).item() == 4.0
        t = tt.zeros(())
        while t < 1:
            t = t + 0.25
        n = tt.tensor(0)
        for _ in range(5):
            n += 1
            n *= 2
        assert t.item() == 1.0 and n.item() == 62
    assert waits(step) == 0
    for other in (a + i, a.add(a, alpha=2), a / 2, a + h, a - float("inf") + float("inf"), tt.tensor([1.0, 2.0]) + 1):
        assert waits(other.tolist) == 1
    b = tt.tensor([1.0, 2.0])
    b[0] += 1  # one element of two
    assert waits(b.tolist) == 1 and b.tolist() == [2.0, 2.0]


def test_a_sum_that_requires_grad_is_known_and_has_its_gradient(tt, waits):
    x = tt.tensor(3.0, requires_grad=True)
    y = x * x + x
    assert waits(lambda: y.item()) == 0 and y.requires_grad and y.item() == 12.0
    y.backward()
    assert x.grad.item() == 7.0
    with pytest.raises(RuntimeError, match="leaf"):
        x += 1
    assert x.item() == 3.0


def test_a_sum_is_not_computed_early_in_a_captured_function_or_vmap(tt):
    known = tt.tensor(3.0)

    @tt.compile
    def captured(x):
        y = known + x
        y += 1
        return y * 2

    assert [captured(tt.tensor(v)).item() for v in (1.0, 2.0, 5.0)] == [10.0, 12.0, 18.0]
    known.fill_(4.0)
    assert captured(tt.tensor(1.0)).item() == 12.0
    assert tt.vmap(lambda x: x + known + 1)(tt.tensor([1.0, 2.0])).tolist() == [6.0, 7.0]


def test_a_sum_with_the_result_of_a_failed_command_raises(tt):
    x, bad = tt.tensor(1.0), tt.tensor([1.0])[tt.tensor([9])].sum()
    y = x + bad
    x += bad
    with pytest.raises((IndexError, RuntimeError), match="9"):
        y.item()
    assert x.item() == 1.0 and (x + 1).item() == 2.0


def test_a_small_tensor_is_fetched_once_for_all_its_elements(tt, waits):
    x = tt.arange(100.0) * 2
    assert waits(lambda: [float(v) for v in x]) == 1
    assert waits(lambda: [x[j].item() for j in range(100)] + x.tolist() + x.reshape(10, 10)[3].tolist()) == 0
    assert [float(v) for v in x] == list(np.arange(100.0) * 2)
    turned = (tt.arange(6.0).reshape(2, 3).t() + 1)
    assert waits(lambda: turned[1, 1].item()) == 1 and not turned.is_contiguous()
    assert waits(lambda: turned.tolist()) == 0 and turned.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_a_value_that_was_read_is_read_again_without_a_wait(tt, waits):
    x = tt.arange(3.0) + 1
    total = x.sum()
    assert waits(lambda: total.item()) == 1
    assert waits(lambda: (total.item(), total.detach().item(), total.view(1)[0].item(), bool(total > 1))) == 0


def test_an_index_that_is_a_known_integer_costs_no_wait(tt, waits):
    c, i = tt.zeros(27, 10), tt.tensor(3)

    def count():
        for _ in range(10):
            c[i] += 1.0
            c[i, i] += 1.0
            c[:i] += 1.0
    assert waits(count) == 0
    expected = np.zeros((27, 10), np.float32)
    expected[:4] += 10
    expected[3, 3] += 10
    assert np.array_equal(c.numpy(), expected)
    j = tt.arange(5).sum()  # is computed by the daemon
    assert waits(lambda: c.__setitem__(j, c[j] + 1.0)) == 1
    assert c[10].tolist() == [1.0] * 10


def test_a_large_tensor_and_one_of_which_a_part_is_read(tt, waits):
    most = KNOWN // 4
    x, y = tt.tensor([1.0] * most), tt.tensor([1.0] * (most + 1))
    assert waits(lambda: x.tolist()) == 0 and waits(lambda: (y.tolist(), y.tolist())) == 2
    assert waits(lambda: [y[3].item() for _ in range(5)]) == 1
    assert waits(lambda: y[4].item()) == 1


def test_without_memory_for_values_every_read_is_a_fetch(tt, core, waits):
    x = tt.tensor(1.0)
    assert core.known_bytes > 0
    core.most_known_bytes = 0
    assert core.known_bytes == 0
    assert waits(lambda: (x.item(), x.item(), tt.tensor(2.0).item())) == 3


def test_the_memory_of_values_is_bounded(tt, core):
    kept = [tt.tensor(np.full(128, k, np.float32)) for k in range(20)]
    core.most_known_bytes = core.known_bytes // 2
    assert 0 < core.known_bytes <= core.most_known_bytes
    more = [tt.tensor(np.full(128, k, np.float32)) for k in range(20)]
    assert core.known_bytes <= core.most_known_bytes
    assert [x[5].item() for x in kept + more] == 2 * [float(k) for k in range(20)]
    del kept, more
    gc.collect()
    assert core.known_bytes == 0


# ---------------------------------------------------------------- no old value

def test_every_kind_of_write_is_seen(tt):
    """Each write is a function of a tensor x = [1, 2, 3, 4] that returns its new value."""
    @tt.compile
    def doubled(x):
        x.mul_(2)

    def out(x):
        tt.add(x, 1, out=x)

    def by_data(x):
        x.data = tt.tensor([7.0, 7.0, 7.0, 7.0])

    def by_view_of_data(x):
        x.data[1] = 9.0

    def optimizer(x):
        x.requires_grad_()
        (x * x).sum().backward()
        tt.optim.SGD([x], lr=0.25).step()

    def random(x):
        tt.manual_seed(1)
        x.uniform_(20, 30)

    def masked(x):
        x[x > 2] = 0.0

    writes = [lambda x: x.add_(1), lambda x: x[1:3].mul_(5), lambda x: x.view(2, 2).t()[0].fill_(8),
              lambda x: x.detach().zero_(), lambda x: x.copy_(tt.tensor([5.0, 6.0, 7.0, 8.0])),
              lambda x: x.__setitem__(tt.tensor([0, 2]), 4.0), lambda x: x.index_fill_(0, tt.tensor([1]), 3.0),
              lambda x: x.__setitem__(0, -1.0), lambda x: x.scatter_(0, tt.tensor([3]), 6.0), doubled, out,
              by_data, by_view_of_data, optimizer, random, masked, lambda x: x.view(tt.int32).add_(1)]
    core = tt.current_session()._core
    for k, write in enumerate(writes):
        found = []
        for most in (core.most_known_bytes, 0):
            before, core.most_known_bytes = core.most_known_bytes, most
            x = tt.tensor([1.0, 2.0, 3.0, 4.0])
            assert x.tolist() == [1.0, 2.0, 3.0, 4.0] and x[1:][0].item() == 2.0
            write(x)
            found.append((x.tolist(), [v.item() for v in x], x.detach().numpy().tolist()))
            core.most_known_bytes = before
        assert found[0] == found[1] and found[0][0] == found[0][1] != [1.0, 2.0, 3.0, 4.0], k


def test_gradients_are_not_old(tt):
    x = tt.tensor([1.0, 2.0], requires_grad=True)
    for k in range(1, 4):
        (x * x).sum().backward()
        assert x.grad.tolist() == [2.0 * k, 4.0 * k] and x.grad[1].item() == 4.0 * k
    x.grad.zero_()
    assert x.grad.tolist() == [0.0, 0.0]


def test_what_another_session_writes_is_seen(shared_daemon):
    import teletensor as tt

    with tt.connect(shared_daemon.unix) as a, tt.connect(shared_daemon.unix) as b:
        with a.as_current():
            w = tt.tensor([1.0, 2.0])
            assert w.tolist() == [1.0, 2.0]
            tt.publish("known", w, writable=True)
            a.synchronize()
        for value in (3.0, 4.0):
            with b.as_current():
                v = tt.published("known")
                v.fill_(value)
                b.synchronize()
            assert w.tolist() == [value] * 2 and w[1].item() == value
            with a.as_current():
                w.add_(1)
                a.synchronize()
            assert v.tolist() == [value + 1] * 2


def test_what_the_program_writes_to_shared_memory_is_seen(tt):
    array = tt.shared_empty(3)
    x, other = tt.from_numpy(array), tt.tensor(5.0)
    one = x[1]
    for value in (1.0, 2.0):
        array[:] = value
        assert one.item() == value and other.item() == 5.0
        assert np.array_equal(x.numpy(), [value] * 3) and x.tolist() == [value] * 3 and x[1].item() == value
        assert not (x[2] > value) and (x[2] == value)
        assert one.item() == value and np.array_equal(x.numpy(), [value] * 3)
    x.hand_over()
    assert x.tolist() == [2.0] * 3
    x.add_(1)
    assert x.tolist() == [3.0] * 3


def test_a_kept_tensor_of_the_next_client(start_daemon, tt):
    """The tensors that a session gives its next client may be published; they are read each time."""
    daemon = start_daemon("--lease", "60")
    assert finish(client(f"""
        with tt.connect({daemon.unix!r}, name="exp").as_current() as s:
            w = tt.tensor([1.0, 2.0])
            s.keep("w", w)
            tt.publish("w", w, writable=True)
            s.synchronize()
    """, daemon.unix))[0] == 0
    with tt.connect(daemon.unix, name="exp").as_current() as s, tt.connect(daemon.unix) as other:
        w = s.kept()["w"]
        assert w.tolist() == [1.0, 2.0]
        with other.as_current():
            tt.published("w").fill_(5.0)
            other.synchronize()
        assert w.tolist() == [5.0, 5.0] and w[0].item() == 5.0


# ---------------------------------------------------------------- errors

def test_a_failed_write_did_not_happen_and_its_error_is_raised(tt):
    x = tt.tensor([1.0, 2.0])
    x.index_add_(0, tt.tensor([9]), tt.tensor([1.0]))
    with pytest.raises((IndexError, RuntimeError), match="9"):
        x.tolist()
    assert x.tolist() == [1.0, 2.0]


def test_a_pending_error_is_raised_at_the_read_of_a_known_value(tt):
    x, bad = tt.tensor(1.0), tt.ones(3)[tt.tensor([9])]
    core = tt.current_session()._core
    core.wait_completed()  # waits, and raises nothing
    assert core.has_pending
    with pytest.raises((IndexError, RuntimeError), match="9"):
        x.item()
    assert x.item() == 1.0
    with pytest.raises((IndexError, RuntimeError), match="9"):
        bad.tolist()


def test_a_tensor_without_memory_stays_an_error(start_daemon, tt):
    """Also where its value was known: the command that makes it has failed."""
    with tt.connect(start_daemon("--session-memory", "1MiB").unix) as s, s.as_current():
        made = [tt.tensor(np.full(1024, k, np.float32)) for k in range(600)]
        with pytest.raises(tt.OutOfMemoryError):
            s.synchronize()
        with pytest.raises(tt.OutOfMemoryError):
            made[-1].tolist()
        assert made[0].tolist() == [0.0] * 1024


def test_dropped_commands_made_nothing(tt):
    x = tt.randn(500, 500)
    for _ in range(200):
        x = (x @ x) / 30
    y = tt.tensor([1.0, 2.0])
    assert y.tolist() == [1.0, 2.0]
    if tt.current_session().cancel().commands:
        with pytest.raises(tt.InterruptedOpError):
            y.tolist()
    assert tt.tensor(3.0).item() == 3.0


def test_a_closed_session_has_no_values(start_daemon, tt):
    with tt.connect(start_daemon().unix) as s, s.as_current():
        x = tt.tensor(1.0)
        assert x.item() == 1.0
        s.close()
        with pytest.raises(RuntimeError):
            x.item()


def test_a_fork_has_no_values(shared_daemon):
    assert finish(client("""
        x = tt.tensor(1.0)
        print(x.item(), flush=True)
        pid = os.fork()
        if pid == 0:
            try:
                x.item()
                os._exit(1)
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """, shared_daemon.unix))[:2] == (0, "1.0\n0\n")


def test_no_value_can_be_read_while_a_function_is_captured_or_mapped(tt):
    known = tt.tensor(3.0)

    @tt.compile
    def captured(x):
        return x * known.item()

    with pytest.raises(RuntimeError, match="cannot read a tensor's value"):
        captured(tt.ones(2))
    with pytest.raises(RuntimeError, match="vmap"):
        tt.vmap(lambda x: x * x.item())(tt.tensor([1.0, 2.0]))
    assert known.item() == 3.0


# ---------------------------------------------------------------- random programs

def random_program(tt, rng, most):
    """Runs random views, writes and reads, and compares each read with NumPy's. Returns the values read."""
    core = tt.current_session()._core
    before, core.most_known_bytes = core.most_known_bytes, most
    sizes = {np.float32: 4, np.int64: 8}
    kind = list(sizes)[int(rng.integers(2))]
    shape = tuple(int(n) for n in rng.integers(1, 5, size=int(rng.integers(1, 4))))
    base = rng.integers(-9, 9, shape).astype(kind)
    pairs = [(tt.tensor(base), base.copy())]
    seen = []
    for _ in range(60):
        x, a = pairs[int(rng.integers(len(pairs)))]
        step = int(rng.integers(12))
        value = int(rng.integers(-9, 9))
        if step == 0 and a.ndim:
            i = int(rng.integers(a.shape[0]))
            pairs.append((x[tt.tensor(i)], a[i, ...]))
        elif step == 1 and a.ndim > 1:
            pairs.append((x.transpose(0, 1), a.swapaxes(0, 1)))
        elif step == 2 and a.ndim:
            i = int(rng.integers(a.shape[0]))
            pairs.append((x[i:], a[i:]))
        elif step == 3:
            pairs.append((x.detach(), a))
        elif step == 4:
            pairs.append((x + value, np.asarray(a + kind(value))))
        elif step == 5:
            x += value
            a += kind(value)
        elif step == 6:
            x.fill_(value)
            a[...] = value
        elif step == 7 and a.ndim:
            i = int(rng.integers(a.shape[0]))
            x[tt.tensor(i)] += value
            a[i] += kind(value)
        elif step == 8 and a.size:
            assert [v.item() for v in x.reshape(-1)] == a.reshape(-1).tolist()
            seen.append(a.reshape(-1).tolist())
        elif step == 9 and a.size:
            i = int(rng.integers(a.size))
            element = x.reshape(-1)[i]
            assert bool(element > value) == bool(a.reshape(-1)[i] > value)
            assert bool(element == tt.tensor(value, dtype=x.dtype)) == bool(a.reshape(-1)[i] == value)
            assert element.item() == a.reshape(-1)[i]
        elif step == 10:
            y, b = pairs[int(rng.integers(len(pairs)))]
            if a.shape == b.shape:
                x.copy_(y)
                a[...] = b.copy()
        else:
            assert np.array_equal(x.numpy(), a)
            seen.append(a.tolist())
    for x, a in pairs:
        assert np.array_equal(x.numpy(), a)
        seen.append(a.tolist())
    core.most_known_bytes = before
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_read_what_numpy_has(tt, seed):
    most = tt.current_session()._core.most_known_bytes
    found = [random_program(tt, np.random.default_rng(seed), each) for each in (most, 2000, 0)]
    assert found[0] == found[1] == found[2]


def random_arithmetic(tt, seed, most):
    """Computes with single elements; returns the bytes of all of them."""
    core = tt.current_session()._core
    before, core.most_known_bytes = core.most_known_bytes, most
    rng = np.random.default_rng(seed)
    kind = [np.float32, np.float64, np.int32, np.int64][seed % 4]
    whole = np.issubdtype(kind, np.integer)

    def drawn():
        if whole:
            info = np.iinfo(kind)
            return int(rng.choice([0, 1, -1, info.min, info.max, int(rng.integers(info.min, info.max, dtype=kind))]))
        bits = rng.integers(0, 2**63, dtype=np.int64) * 2 + rng.integers(2)
        value = np.array([bits]).view(kind)[0]  # of every exponent
        return float(rng.choice([0.0, -0.0, np.inf, np.finfo(kind).tiny / 4, 1.5, value, rng.standard_normal()]))
    values = [tt.tensor(drawn(), dtype=getattr(tt, np.dtype(kind).name)) for _ in range(4)]
    operations = [tt.add, tt.sub, tt.mul, lambda a, _: -a, lambda a, b: a + b]
    for _ in range(60):
        a, b = (values[int(k)] for k in rng.integers(len(values), size=2))
        number = int(rng.integers(-9, 9)) if whole or rng.random() < 0.3 else float(rng.standard_normal())
        step = int(rng.integers(9))
        if step < 5:
            values.append(operations[step](a, b))
        elif step == 5:
            values.append(number - a if rng.random() < 0.5 else a * number)
        elif step == 6:
            a += number
        elif step == 7:
            a *= b
        else:
            a -= a if rng.random() < 0.2 else b
    found = [v.numpy().tobytes() for v in values]
    core.most_known_bytes = before
    return found


@pytest.mark.parametrize("seed", range(24))
def test_the_arithmetic_of_known_numbers_has_the_bits_of_the_daemons(tt, seed):
    most = tt.current_session()._core.most_known_bytes
    assert random_arithmetic(tt, seed, most) == random_arithmetic(tt, seed, 0)
