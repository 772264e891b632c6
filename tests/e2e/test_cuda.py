"""GPUs over the fake driver (tests/support/fake_cuda): a real daemon, a real client, devices cuda:0, ...

Nothing here computes on a GPU: what is shown is that the daemon's own part (memory, order, copies,
errors, the loss of a device) does what it should.
"""

import math
import re

import numpy as np
import pytest
from support.cuda import Control, fake
from support.daemon import wait_until
from support.http import ask, scrape


@pytest.fixture
def start(start_daemon):
    """start(*flags, **options of the fake driver): a daemon."""

    def started(*flags, forgets="", **options):
        arguments, environment = fake(*flags, **options)
        return start_daemon(*arguments, env=environment, forgets=forgets)
    return started


def train(tt, device, activation):
    """The losses of a small training on a device."""
    tt.manual_seed(5)
    model = tt.nn.Sequential(tt.nn.Linear(6, 16), activation, tt.nn.Linear(16, 1)).to(device)
    optimizer = tt.optim.Adam(model.parameters(), lr=0.01)
    x = tt.tensor(np.random.default_rng(0).normal(size=(32, 6)).astype("float32")).to(device)
    losses = []
    for _ in range(6):
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_trains_on_a_gpu_as_on_the_cpu(start):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix):
        assert tt.cuda.is_available() and tt.cuda.device_count() == 1
        wanted = train(tt, "cpu", tt.nn.ReLU())
        assert train(tt, "cuda:0", tt.nn.ReLU()) == wanted
        assert wanted[-1] < wanted[0]
        # Functions of libm are the device's own, so their last bits differ from the CPU's.
        np.testing.assert_allclose(train(tt, "cuda:0", tt.nn.Tanh()), train(tt, "cpu", tt.nn.Tanh()),
                                   rtol=1e-5)
        tt.cuda.synchronize()


def test_tensors_between_devices(start):
    import teletensor as tt

    daemon = start(devices=2)
    numbers = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with tt.connect(daemon.unix):
        assert tt.cuda.device_count() == 2
        x = tt.tensor(numbers)
        y = x.to("cuda")
        z = y.transpose(0, 2).to("cuda:1")
        assert (y.device, z.device) == (tt.device("cuda:0"), tt.device("cuda:1"))
        assert y.is_cuda and not x.is_cuda
        np.testing.assert_array_equal(z.numpy(), numbers.transpose(2, 1, 0))
        y[0] = -1.0  # the copy elsewhere is a copy
        z.mul_(2.0)
        np.testing.assert_array_equal(z.cpu().numpy(), 2 * numbers.transpose(2, 1, 0))
        np.testing.assert_array_equal(y.cpu()[0].numpy(), np.full((3, 4), -1.0))
        with pytest.raises(RuntimeError, match="cuda:0.*cuda:1|cuda:1.*cuda:0"):
            y + y.to("cuda:1")
        with pytest.raises(RuntimeError, match="'cuda:2' is not on this daemon; it has cpu, cuda:0, cuda:1"):
            x.to("cuda:2").sum().item()
        large = np.random.default_rng(1).normal(size=3_000_001).astype(np.float32)  # needs many slots
        np.testing.assert_array_equal(tt.tensor(large).to("cuda:0").to("cuda:1").numpy(), large)


def test_gradients_meet_on_their_device(start):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix):
        w = tt.ones(3, requires_grad=True)
        (w.to("cuda:0") * tt.tensor([1.0, 2.0, 3.0], device="cuda:0")).sum().backward()
        assert w.grad.device == tt.device("cpu") and w.grad.tolist() == [1.0, 2.0, 3.0]


def counts(daemon):
    """The counts for cuda:0 in the log of a daemon that has ended: instructions and loops as kernels,
    instructions on the host, kernels compiled, read, refused."""
    daemon.terminate()
    wait_until(lambda: "refused" in daemon.log, what="the last word of the device")
    line = next(x for x in daemon.log.splitlines() if "cuda:0: " in x and "refused" in x)
    return [int(n) for n in re.findall(r"(\d+) (?:instr|loops|kernels|read|refused)", line)]


def test_loops_are_compiled_beside_the_work_and_kept_on_disk(start):
    import teletensor as tt

    def work(x):
        for _ in range(3):
            x = (x * 1.5 + 0.25).relu() - 0.125
        return x

    numbers = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    daemon = start()
    with tt.connect(daemon.unix):
        captured = tt.compile(work)
        wanted = captured(tt.tensor(numbers)).numpy()
        x = tt.tensor(numbers, device="cuda:0")

        def a_loop_has_run():  # single kernels, then loops once they are there: the same bits
            for _ in range(20):
                np.testing.assert_array_equal(captured(x).numpy(), wanted)
            page = scrape(daemon)
            return int(re.search(r'device_work_total\{[^}]*kind="loop"\} (\d+)', page).group(1)) > 0
        wait_until(a_loop_has_run, what="the loop's kernel")
    instructions, loops, host, compiled, read, refused = counts(daemon)
    assert instructions >= 24 and loops > 0 and host == 0 and refused == 0, daemon.log
    assert compiled >= 4 and read == 0, daemon.log

    daemon.restart()  # another process, the same state directory
    with tt.connect(daemon.unix):
        x = tt.tensor(numbers, device="cuda:0")
        np.testing.assert_array_equal((x * 1.5 + 0.25).numpy(), numbers * np.float32(1.5) + np.float32(0.25))
    daemon.lines.clear()
    instructions, loops, host, compiled, read, refused = counts(daemon)
    assert instructions >= 2 and compiled == 0 and read >= 2, daemon.log
    daemon.restart()  # to be ended by the fixture


def products(tt, device):
    """Matrix products of whole numbers, whose results do not depend on the order of sums."""
    rng = np.random.default_rng(3)

    def x(*shape):
        return tt.tensor(rng.integers(0, 5, shape).astype(np.float32)).to(device)

    made = []
    for dtype in (tt.float32, tt.float64, tt.bfloat16):
        a, b, bias = x(6, 40).to(dtype), x(40, 8).to(dtype), x(8).to(dtype)
        made += [a @ b, a.T.contiguous().T @ b, a[1:4, 2:30] @ b[5:33, 1:7], a[0] @ b,
                 x(3, 4, 40).to(dtype) @ b, x(3, 4, 40).to(dtype) @ x(3, 40, 2).to(dtype),
                 tt.nn.functional.linear(x(2, 3, 40).to(dtype), b.T, bias),
                 tt.addmm(x(6, 8).to(dtype), a, b, beta=0.5, alpha=2.0), (a @ b)[:, ::2] @ b[:4]]
    return [y.double().tolist() for y in made]


def counted(daemon, words, made, what):
    """The number of calls that the library computed with the CPU's values; the daemon's log has these words
    for it."""
    import teletensor as tt

    assert words in daemon.log, daemon.log
    with tt.connect(daemon.unix):
        assert made(tt, "cuda:0") == made(tt, "cpu")
    daemon.terminate()
    wait_until(lambda: what in daemon.log, what="the last word of the device")
    found = re.search(rf"(\d+) {what}", daemon.log)
    daemon.restart()  # to be ended by the fixture
    return int(found.group(1))


# Calls that the library does not take: rows with gaps, and a vector added to doubles.
@pytest.mark.parametrize(("options", "wanted"), [
    ({"compile": "none"}, 26), ({"blas": "none"}, 0), ({"blas": "refuse"}, 0)])
def test_products_are_the_librarys_where_there_is_one(start, options, wanted):
    words = "cuBLASLt 13.1" if options.get("blas") != "none" else "matrix products by kernels of our own"
    assert counted(start(**options), words, products, "products by cuBLASLt") == wanted


def convolutions(tt, device):
    """Whole numbers, whose sums do not depend on their order."""
    F = tt.nn.functional
    made = []
    for dtype in (tt.float32, tt.float16, tt.bfloat16, tt.float64):
        def x(*shape, dtype=dtype):
            return (tt.arange(float(math.prod(shape)), device=device) % 5 - 2).reshape(*shape).to(dtype)

        image, weight, bias = x(2, 6, 9, 8), x(4, 6, 3, 3), x(4)
        made += [F.conv2d(image, weight, bias, padding=1), F.conv2d(image, weight, stride=2, dilation=2),
                 F.conv2d(image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), weight),
                 F.conv2d(image[:, :, ::2], weight, bias), F.conv2d(image, x(6, 1, 3, 3), groups=6),
                 F.conv1d(x(2, 3, 20), x(5, 3, 4), x(5)), F.conv3d(x(1, 2, 4, 5, 6), x(3, 2, 2, 2, 2)),
                 F.conv_transpose2d(x(2, 4, 5, 5), weight, x(6), stride=2, output_padding=1),
                 F.conv_transpose2d(x(2, 4, 5, 5), weight, stride=2, dilation=3, output_padding=2)]
        image, weight, bias = (each.requires_grad_() for each in (x(2, 6, 7, 8), x(4, 3, 3, 2), x(4)))
        F.conv2d(image, weight, bias, groups=2, stride=(2, 1), padding=1).sum().backward()
        made += [image.grad, weight.grad, bias.grad]
    return [y.double().tolist() for y in made]


# For each dtype the library computes nine results of ten, and the gradients with respect to image and
# weight. The exception is the one whose output_padding is a whole stride.
@pytest.mark.parametrize(("options", "wanted"), [({}, 44), ({"dnn": "none"}, 0), ({"dnn": "refuse"}, 0)])
def test_convolutions_are_the_librarys_where_there_is_one(start, options, wanted):
    words = "cuDNN 9.19" if options.get("dnn") != "none" else "convolutions by kernels of our own"
    assert counted(start(**options), words, convolutions, "convolutions by cuDNN") == wanted


def test_kernels_that_refuse_their_operands_change_nothing(start):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix):
        x = tt.arange(12.0, device="cuda:0").reshape(3, 4)
        assert x.index_select(0, tt.tensor([2, 0], device="cuda:0")).tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
        with pytest.raises(IndexError, match="index 5 is out of range for size 3"):
            x.index_select(0, tt.tensor([5], device="cuda:0")).tolist()
        y = tt.tensor([7, 9], device="cuda:0")
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            y //= tt.tensor([2, 0], device="cuda:0")
            y.tolist()
        assert y.tolist() == [7, 9]
        assert (y // 2).tolist() == [3, 4]


def test_memory_is_a_budget(start):
    import teletensor as tt

    daemon = start("--device-memory", "32MiB", memory=64)
    with tt.connect(daemon.unix):
        kept = tt.ones(1 << 20, device="cuda:0")
        with pytest.raises(tt.OutOfMemoryError) as caught:
            tt.zeros(32 << 20, device="cuda:0").sum().item()
        text = str(caught.value)
        for part in ("cuda:0", "requested 128.0 MiB (134217728 bytes)", "uses 4.0 MiB",
                     "quota of 32.0 MiB", "free on the device 28.0 MiB", "4.0 MiB made at"):
            assert part in text, text
        assert kept.sum().item() == 1 << 20
        # Freed memory can be used again, also in other sizes.
        for size in (3 << 20, 5 << 20, 6 << 20, 2 << 20, 6 << 20):
            x = tt.ones(size, device="cuda:0")
            assert x[-1].item() == 1.0
            del x
            tt.cuda.synchronize()


def test_a_device_that_is_full_refuses_and_goes_on(start, tmp_path):
    import teletensor as tt

    control = Control(tmp_path)
    daemon = start("--device-memory", "64MiB", memory=128, control=control.path)
    with tt.connect(daemon.unix):
        kept = tt.ones(1 << 20, device="cuda:0")
        assert kept.sum().item() == 1 << 20
        control("full 0")
        with pytest.raises(tt.OutOfMemoryError, match="on cuda:0"):
            tt.zeros(8 << 20, device="cuda:0").sum().item()
        control.taken()
        assert kept.add_(1.0)[7].item() == 2.0


def test_nobody_reads_what_others_left(start):
    import teletensor as tt

    daemon = start("--device-memory", "16MiB", memory=64)
    for _ in range(3):
        with tt.connect(daemon.unix):
            x = tt.empty(1 << 20, device="cuda:0")
            assert x.count_nonzero().item() == 0
            x.fill_(7.0)
            assert x[3].item() == 7.0


def test_a_box_without_a_driver(start_daemon):
    import teletensor as tt

    daemon = start_daemon("--cuda-driver", "libno-such-driver.so.1")
    assert "no GPU: libno-such-driver.so.1" in daemon.log
    with tt.connect(daemon.unix):
        assert not tt.cuda.is_available() and tt.cuda.device_count() == 0
        with pytest.raises(RuntimeError, match="'cuda:0' is not on this daemon; it has cpu"):
            tt.ones(2, device="cuda:0").sum().item()


@pytest.mark.parametrize(("options", "text"), [
    ({"driver": 12080}, "speaks CUDA 12.8 .* is of CUDA 13.0: the compiler must not be of a later major"),
    ({"driver": 12010, "nvrtc": "12.1"}, "speaks CUDA 12.1 .* a driver for CUDA 12.4 or later"),
    ({"capability": 70}, "compute capability 7.0; the minimum is 7.5"),
    ({"devices": 0}, "the driver has no device"),
])
def test_what_does_not_fit_is_said_in_one_line(start, options, text):
    import teletensor as tt

    daemon = start(**options)
    lines = [line for line in daemon.log.splitlines() if re.search(text, line)]
    assert len(lines) == 1, daemon.log
    with tt.connect(daemon.unix):
        assert not tt.cuda.is_available()


def test_lines_are_put_in_order_on_the_device(start):
    import teletensor as tt

    daemon = start()
    numbers = np.random.default_rng(4).integers(-50, 50, (2, 1200)).astype("float32")
    numbers[0, 7], numbers[1, 5:9] = np.nan, -0.0
    with tt.connect(daemon.unix):
        found = []
        for device in ("cpu", "cuda"):
            x = tt.tensor(numbers, device=device)
            results = [*tt.sort(x, dim=1, stable=True), *tt.topk(x, 40, dim=1), tt.argsort(x, descending=True),
                       *tt.kthvalue(x, 1100, dim=1), *tt.median(x, 1), tt.median(x[1])]
            found.append([result.cpu().numpy() for result in results])
        for on_cpu, on_device in zip(*found, strict=True):
            np.testing.assert_array_equal(on_device, on_cpu)
    assert counts(daemon)[2] == 0, daemon.log
    daemon.restart()  # to be ended by the fixture


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_16_bits_makes_no_scores(start, dtype):
    import teletensor as tt

    daemon = start()
    with tt.connect(daemon.unix):
        tt.manual_seed(3)
        numbers = [tt.randn(1, 1024, 8).to(getattr(tt, dtype)) for _ in range(3)]
        found = []
        for device in ("cpu", "cuda"):
            q, k, v = (x.clone().to(device).requires_grad_() for x in numbers)
            y = tt.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            assert y.dtype == q.dtype
            (y.float() ** 2).sum().backward()
            found.append([x.float().cpu().detach().numpy() for x in (y, q.grad, k.grad, v.grad)])
        for on_cpu, on_device in zip(*found, strict=True):
            np.testing.assert_allclose(on_device, on_cpu, rtol=0.02, atol=0.02)
        text = scrape(daemon)
        peak = re.search(r'teletensor_device_memory_bytes{device="cuda:0",kind="peak"} (\S+)', text)
        assert 0 < float(peak[1]) < 1 << 20  # the scores are 2 MiB
        assert "teletensor_device_host_calls_total{" not in text


@pytest.mark.parametrize(("what", "patience", "text"), [
    ("sticky 0", 60, "CUDA_ERROR_ILLEGAL_ADDRESS"), ("lost 0", 60, "CUDA_ERROR_UNKNOWN"),
    ("hang 0", 5, "it has made no progress for 5 seconds")])
def test_a_lost_device(start, tmp_path, what, patience, text):
    import teletensor as tt

    control = Control(tmp_path)
    daemon = start("--device-patience", str(patience), devices=2, control=control.path,
                   forgets="a daemon that keeps sessions would start again, without the loss")
    with tt.connect(daemon.unix):
        there, here = tt.arange(5.0, device="cuda:0") * 1, tt.arange(4.0)
        other, large = tt.arange(3.0, device="cuda:1"), tt.ones(1 << 20, device="cuda:0")
        assert there.sum().item() == 10.0 and other.sum().item() == 3.0
        assert large.sum().item() == 1 << 20
        assert ask(daemon.http, "/readyz").status == 200
        control(what)
        with pytest.raises(tt.DeviceLostError, match=f"DEVICE_LOST: cuda:0.*{text}"):
            (there * 2).sum().item()
        # Readiness has already failed when the client gets the error.
        reply = ask(daemon.http, "/readyz")
        assert reply.status == 503 and "DEVICE_LOST: cuda:0" in reply.text, reply.text
        assert (here + 1).sum().item() == 10.0
        assert (other * 2).sum().item() == 6.0
        with pytest.raises(tt.DeviceLostError, match=text):
            there.tolist()
        with pytest.raises(tt.DeviceLostError, match=text):
            large.numpy()  # the loss is found by a download
        with pytest.raises(tt.DeviceLostError, match=text):
            tt.tensor(np.ones(1 << 20, np.float32), device="cuda:0").sum().item()  # by an upload
        with pytest.raises(tt.DeviceLostError, match=text):
            tt.ones(3, device="cuda:0").sum().item()
    with tt.connect(daemon.unix):  # a later session finds the same device lost
        with pytest.raises(tt.DeviceLostError, match=text):
            tt.ones(3, device="cuda:0").sum().item()
        assert tt.ones(3).sum().item() == 3.0
    wait_until(lambda: "DEVICE_LOST: cuda:0" in daemon.log, what="a line in the log")


def test_the_daemon_starts_again_without_a_lost_device(start, tmp_path):
    import teletensor as tt

    control = Control(tmp_path)
    daemon = start("--restart", "60", "--lease", "600", devices=2, control=control.path)
    with tt.connect(daemon.unix):
        here, there = tt.arange(4.0), tt.arange(5.0, device="cuda:0")
        other = tt.arange(3.0, device="cuda:1")
        weight = tt.ones(3, requires_grad=True)
        loss = (weight * 2).sum()
        assert there.sum().item() == 10.0 and other.sum().item() == 3.0 and loss.item() == 6.0
        control("sticky 0")
        with pytest.raises(tt.DeviceLostError, match="DEVICE_LOST: cuda:0.*ILLEGAL_ADDRESS"):
            (there * 2).sum().item()
        wait_until(lambda: daemon.log.count(" ready ") == 2, what="a second start")
        # The same process and session keep everything that was not on the lost device.
        assert daemon.alive()
        assert (here + 1).sum().item() == 10.0
        assert (other * 2).sum().item() == 6.0
        loss.backward()
        assert weight.grad.tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(tt.DeviceLostError, match="ILLEGAL_ADDRESS"):
            there.sum().item()
        assert tt.ones(3, device="cuda:0").sum().item() == 3.0  # the device works again
        there = tt.arange(5.0, device="cuda:0")
        assert there.sum().item() == 10.0
    assert "event=device_lost restart=true" in daemon.log


def test_a_signal_ends_a_daemon_that_is_about_to_start_again(start, tmp_path):
    """The signal comes while the daemon writes its sessions for the next start. They are whole in the next daemon."""
    import teletensor as tt

    control = Control(tmp_path)
    daemon = start("--restart", "60", "--lease", "600", control=control.path)
    with tt.connect(daemon.unix):
        here, there = tt.arange(4.0), tt.arange(5.0, device="cuda:0")
        assert here.sum().item() == 6.0 and there.sum().item() == 10.0
        control("sticky 0")
        with pytest.raises(tt.DeviceLostError, match="ILLEGAL_ADDRESS"):
            (there * 2).sum().item()
        slow = tt.eye(1000)
        for _ in range(50):  # the daemon waits for them before it writes the session
            slow = slow @ slow
        wait_until(lambda: "event=device_lost restart=true" in daemon.log, what="the loss in the log")
        assert daemon.terminate() == 0
        daemon.restart()
        assert (here + 1).sum().item() == 10.0 and slow.sum().item() == 1000.0
