"""Errors that a kernel or the memory finds: raised at a read, with the line that issued them."""

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("each_transport")


@pytest.fixture
def small(start_daemon, tt):
    """A session with a quota of 32 MiB."""
    daemon = start_daemon("--session-memory", "32MiB")
    with tt.connect(daemon.unix) as s:
        yield tt
        s.close()


def here():
    return inspect.currentframe().f_back.f_lineno


def test_the_error_names_the_line(tt):
    x = tt.ones(3, 4)
    i = tt.tensor([0, 7])
    line = here() + 1
    y = x.index_select(0, i)
    z = y + 1
    with pytest.raises((IndexError, RuntimeError)) as caught:
        z.numpy()
    text = str(caught.value)
    assert "index_select" in text and "7" in text
    assert re.search(rf"test_late_errors\.py.*{line}", text, re.DOTALL) or any(
        re.search(rf"test_late_errors\.py.*{line}", note) for note in getattr(caught.value, "__notes__", [])), text


def test_raised_once_and_names_born_failed_stay_errors(tt):
    x = tt.ones(3, 4)
    bad = x.index_select(0, tt.tensor([9]))
    after = x + 1
    with pytest.raises((IndexError, RuntimeError)):
        bad.numpy()
    assert after.sum().item() == 24  # did not depend on it
    with pytest.raises((IndexError, RuntimeError)):
        (bad * 2).numpy()
    assert x.sum().item() == 12


def test_raised_at_any_wait(tt):
    x = tt.ones(3)
    keep = x[tt.tensor([5])]
    with pytest.raises((IndexError, RuntimeError)):
        (x + 1).numpy()  # another tensor's read
    assert (x + 1).tolist() == [2.0] * 3
    again = x[tt.tensor([6])]
    with pytest.raises((IndexError, RuntimeError), match="6"):
        tt.synchronize()
    del keep, again


def test_last_good_values_after_a_failed_write(tt):
    x = tt.arange(6, dtype=tt.float32)
    x.add_(1)
    x.index_add_(0, tt.tensor([99]), tt.ones(1))
    x.mul_(10)  # depends on the failed one: did not happen either
    with pytest.raises((IndexError, RuntimeError)):
        x.numpy()
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    x.mul_(2)
    assert x.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_history_comes_back_with_the_value(tt):
    w = tt.ones(3, requires_grad=True)
    y = w * 2
    y.mul_(tt.ones(3)[tt.tensor([0, 1, 50])])
    with pytest.raises((IndexError, RuntimeError)):
        y.tolist()
    assert y.tolist() == [2.0] * 3
    y.sum().backward()
    assert w.grad.tolist() == [2.0] * 3


def test_checked_block(tt):
    x = tt.ones(3)
    caught = False
    try:
        with tt.checked():
            x[tt.tensor([4])]
    except (IndexError, RuntimeError):
        caught = True
    assert caught


def test_integer_division(tt):
    for x in (tt.tensor([1, 2]) // tt.tensor([1, 0]), tt.tensor([1, 2]) % tt.tensor([1, 0])):
        with pytest.raises(RuntimeError, match="[Zz]ero"):
            x.numpy()
    low = tt.tensor([-2**63, -2**63])
    assert (low // tt.tensor([-1, 1])).tolist() == [-2**63, -2**63]  # wraps, on every device
    assert (low % tt.tensor([-1, -1])).tolist() == [0, 0]
    x = tt.tensor([7, 8])
    x.floor_divide_(tt.tensor([2, 0]))
    with pytest.raises(RuntimeError, match="[Zz]ero"):
        x.numpy()
    assert x.tolist() == [7, 8]  # refused before the first store


def test_out_of_memory(small):
    tt = small
    keep = [tt.ones(MIB // 4) for _ in range(20)]  # 20 MiB
    total = keep[0] * 2
    weights = tt.ones(MIB, requires_grad=True)  # 4 MiB
    too_much = [weights.detach() + i for i in range(10)]
    with pytest.raises(tt.OutOfMemoryError) as caught:
        tt.synchronize()
    tt.synchronize()
    error = caught.value
    assert isinstance(error, RuntimeError) and isinstance(error, MemoryError)
    text = str(error)
    for word in ("requested", "this session uses", "quota", "free"):
        assert word in text.lower(), text
    assert "test_late_errors.py" in text + "".join(getattr(error, "__notes__", [])), text
    largest = text.split("largest tensors of this session: ")[1].split(";")[0].split(", ")
    assert len(largest) == 5, text
    assert all("MiB made at " in each and "test_late_errors.py:" in each for each in largest), text
    with pytest.raises(tt.OutOfMemoryError, match="made at .*test_late_errors.py"):
        tt.tensor(np.zeros(7 * MIB // 4, np.float32))  # the refusal of an upload
    del too_much
    assert total.sum().item() == 2 * (MIB // 4)
    assert all(k.sum().item() == MIB // 4 for k in keep[::7])
    assert (weights.detach() + 1).sum().item() == 2 * MIB  # there is room again


def test_a_tape_without_end_is_out_of_memory(small):
    """The daemon's records of names and operations are charged like tensors, and freed when they are
    dropped."""
    tt = small
    w = tt.ones(2, requires_grad=True)
    x = w
    with pytest.raises(tt.OutOfMemoryError, match="names and tape .* recorded operations") as caught:
        for _ in range(100):
            for _ in range(1000):
                x = x + 1
            tt.synchronize()
    assert "test_late_errors.py" in str(caught.value), str(caught.value)
    del x, caught
    tt.synchronize()
    (w * 3).sum().backward()
    assert w.grad.tolist() == [3.0, 3.0]
    used = {m["device"]: m["used"] for m in tt.current_session().memory()}
    assert used["cpu"] < MIB, used


def test_a_program_that_reads_nothing_gets_the_error(small):
    """The names and the tape of refused instructions take memory as well: the program learns in time, also if it
    ignores the error many times, and its session continues."""
    tt = small
    w = tt.ones(2, requires_grad=True)
    kept = []
    with pytest.raises(tt.OutOfMemoryError, match="out of memory on cpu") as caught:
        for _ in range(200_000):
            kept.append(w * 2)
    assert "test_late_errors.py" in str(caught.value), str(caught.value)
    ignored = 0
    for _ in range(200_000):  # on a busy machine the daemon runs late
        try:
            kept.append(w * 2)
        except tt.OutOfMemoryError:
            ignored += 1
            if ignored == 50:
                break
    assert ignored == 50
    del kept, caught
    tt.synchronize()
    assert (w * 2).tolist() == [2.0, 2.0]
    used = {m["device"]: m["used"] for m in tt.current_session().memory()}
    assert used["cpu"] < MIB, used


def test_a_program_that_reads_nothing_gets_an_older_error_first(small):
    """The error for lack of memory comes next, and the session continues."""
    tt = small
    w = tt.ones(2, requires_grad=True)
    bad = tt.ones(3).index_select(0, tt.tensor([9]))
    kept = []
    for error in (IndexError, tt.OutOfMemoryError):
        with pytest.raises(error) as caught:
            for _ in range(200_000):
                kept.append(w * 2)
        assert "test_late_errors.py" in str(caught.value), str(caught.value)
    del kept, bad, caught
    tt.synchronize()
    assert (w * 2).tolist() == [2.0, 2.0]


def test_out_of_memory_sweep_keeps_last_good_values(start_daemon, tt):
    """The same training at many quotas: it ends right, or OOM is raised and parameters are whole."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((256, 512)).astype(np.float32)
    finished, failed = 0, 0
    for quota in (1, 2, 3, 4, 5, 6, 8, 16):
        daemon = start_daemon("--session-memory", f"{quota}MiB")
        with tt.connect(daemon.unix) as s:
            try:
                tt.manual_seed(1)
                w = (tt.ones(512, 256) * 0.01).requires_grad_()
                x = tt.tensor(data)
                before = w.detach().clone().numpy()
            except tt.OutOfMemoryError:
                failed += 1
                tt.synchronize()
                s.close()
                continue
            try:
                loss = ((x @ w).tanh() ** 2).mean()
                loss.backward()
                with tt.no_grad():
                    w -= 0.1 * w.grad
                assert np.isfinite(loss.item())
                tt.synchronize()
                finished += 1
                assert not np.array_equal(w.detach().numpy(), before)
            except tt.OutOfMemoryError:
                failed += 1
                tt.synchronize()
                assert np.array_equal(w.detach().numpy(), before)
            s.close()
    assert finished and failed, (finished, failed)


def test_larger_than_the_quota_at_its_line(small):
    with pytest.raises(small.OutOfMemoryError, match="quota"):
        small.empty(64 * MIB)
    with pytest.raises(small.OutOfMemoryError, match="quota"):
        small.tensor(np.zeros(16 * MIB, np.float32))


def test_failed_kernel_of_a_simulated_device_is_not_needed(tt):
    """Work on the simulated device is right as long as nothing fails."""
    x = tt.arange(5, dtype=tt.float32).to("sim:1")
    assert (x * x).sum().item() == 30.0
    assert (x.to("cpu") + 1).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_burst_of_failures_is_one_exception(small):
    """The errors of a hundred failed allocations are raised once, not at a hundred reads of good tensors."""
    tt = small
    good = [tt.ones(3) * i for i in range(100)]
    first = here() + 1
    failing = [tt.ones(MIB) + i for i in range(100)]  # 4 MiB each: seven of them fit
    with pytest.raises(tt.OutOfMemoryError) as caught:
        good[0].tolist()
    text = str(caught.value)
    assert "from an earlier line" in text and f"test_late_errors.py:{first} in" in text, text
    assert f"test_late_errors.py:{first + 2} in" in text, text  # the line that raises
    further = int(re.search(r"\((\d+) further commands failed in the same way", text)[1])
    assert further > 80, text
    assert [g.tolist() for g in good] == [[float(i)] * 3 for i in range(100)]
    tt.synchronize()
    assert tt.current_session().errors() == []
    with pytest.raises(tt.OutOfMemoryError):  # each read of a failed tensor raises the error again
        failing[-1].sum().item()
    with pytest.raises(tt.OutOfMemoryError):
        failing[-1].sum().item()
    assert good[1].tolist() == [1.0] * 3


def test_errors_of_two_kinds_are_two_exceptions(tt):
    x = tt.ones(3).exp().log()  # the client does not know its value
    whole = tt.tensor([1, 2])
    for i in range(4):
        x[tt.tensor([5 + i])]
        whole // tt.tensor([1, 0])
    with pytest.raises(IndexError, match="index 5") as caught:
        x.tolist()
    assert "3 further commands failed" in str(caught.value)
    with pytest.raises(RuntimeError, match="[Zz]ero") as caught:
        x.tolist()
    assert "3 further commands failed" in str(caught.value)
    assert x.tolist() == [1.0] * 3


def test_every_line_and_text_is_told_with_the_number_of_its_command(tt):
    table = tt.nn.Embedding(3, 2)
    x = tt.ones(3).exp().log()  # the client does not know its value
    table(tt.tensor([7]))
    table(tt.tensor([9]))
    tt.ones(2)[tt.tensor([4])]
    line = here()
    session = tt.current_session()
    with pytest.raises(IndexError, match="index 7") as caught:
        x.tolist()
    text = str(caught.value)
    for number, index in ((3, 7), (2, 9), (1, 4)):
        assert f"index {index}" in text and f"test_late_errors.py:{line - number} in" in text, text
    assert text.count("\nalso: ") == 2 and "2 further commands failed, " in text, text
    assert type(caught.value.root) is int and caught.value.root > 0
    assert session.errors() == [] and x.tolist() == [1.0] * 3


def test_the_number_of_the_failed_command(tt):
    bad = tt.nn.Embedding(3, 2)(tt.tensor([7]))
    tt.nn.Embedding(3, 2)(tt.tensor([8]))
    with pytest.raises(IndexError, match="index 7") as first:
        bad.tolist()
    with pytest.raises(IndexError, match="index 7") as again:
        (bad + 1).tolist()
    assert first.value.root == again.value.root > 0
    tt.nn.Embedding(3, 2)(tt.tensor([9]))
    with pytest.raises(IndexError, match="index 9") as other:
        tt.synchronize()
    assert other.value.root > first.value.root


def test_caught_where_it_is_expected_and_not_again(tt):
    table = tt.nn.Embedding(3, 2)
    for _ in range(4):
        table(tt.tensor([7]))
    with pytest.raises(IndexError):
        tt.ones(1).exp().item()
    for _ in range(4):
        assert tt.ones(2).prod().item() == 1.0


def test_one_exception_takes_back_every_failed_write(tt):
    tensors = [tt.arange(3, dtype=tt.float32) + i for i in range(5)]
    leaf = tt.ones(3, requires_grad=True)
    derived = leaf * 2
    for t in tensors:
        t.index_add_(0, tt.tensor([9]), tt.ones(1))
        t.mul_(10)  # depends on the failed write
        t.index_add_(0, tt.tensor([8]), tt.ones(1))
    derived.mul_(leaf.detach()[tt.tensor([0, 1, 50])])
    with pytest.raises(IndexError, match="5 further commands"):
        tt.synchronize()
    assert [t.tolist() for t in tensors] == [[float(i), i + 1.0, i + 2.0] for i in range(5)]
    derived.sum().backward()
    assert leaf.grad.tolist() == [2.0] * 3


def test_errors_are_listed_and_forgotten(tt):
    session = tt.current_session()
    x = tt.arange(3, dtype=tt.float32)
    line = here() + 1
    bad = x[tt.tensor([9])]
    x.index_add_(0, tt.tensor([7]), tt.ones(1))
    listed = session.errors()
    assert [type(e) for e in listed] == [IndexError, IndexError]
    assert f"test_late_errors.py:{line} in" in str(listed[0]) and "index 9" in str(listed[0])
    assert [str(e) for e in session.clear_errors()] == [str(e) for e in listed]
    assert session.errors() == []
    assert x.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(IndexError, match="index 9"):
        bad.tolist()


@pytest.mark.parametrize("device", ["cpu:1", "cuda:7"])
def test_a_device_that_the_daemon_does_not_have(tt, device):
    """The error names the missing device with its number and the existing devices; it is raised at its
    line."""
    assert str(tt.device(device)) == device
    for make in (lambda: tt.ones(2, device=device), lambda: tt.tensor([1.0, 2.0]).to(device)):
        with pytest.raises(RuntimeError, match=rf"device '{device}' is not on this daemon; it has cpu"):
            make()


@pytest.mark.parametrize("name", ["mps", "xpu:0", "cpux", "cuda:x"])
def test_a_name_that_is_no_devices(tt, name):
    x = tt.ones(2)
    text = rf"device '{name}' is not on this daemon; it has cpu"
    for use in (tt.device, tt.set_default_device, tt.Generator, x.to, lambda n: x.to(device=n),
                lambda n: tt.zeros(2, device=n), lambda n: tt.randn(2, device=n), lambda n: tt.arange(3, device=n),
                lambda n: tt.tensor([1], device=n), lambda n: tt.zeros_like(x, device=n),
                lambda n: x.new_zeros(2, device=n), lambda n: tt.nn.Linear(2, 2, device=n),
                lambda n: tt.nn.Linear(2, 2).to(n)):
        with pytest.raises(RuntimeError, match=text):
            use(name)
    with pytest.raises(RuntimeError, match="device 'xpu:0' is not on this daemon; it has cpu"):
        tt.device("xpu", 0)


def test_a_name_that_is_no_devices_without_a_session():
    code = "import teletensor as tt\ntry: tt.device('mps')\nexcept RuntimeError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    devices = "a daemon has 'cpu', and its GPUs are 'cuda:0', 'cuda:1', ..."
    assert done.stdout == f"device 'mps' is on no daemon: {devices}\n"
