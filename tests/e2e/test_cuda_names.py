"""teletensor.cuda and teletensor.backends: PyTorch's names over a daemon with fake GPUs, and over one without."""

import pytest
from support.cuda import fake


@pytest.fixture(scope="module")
def gpus():
    """A session on a daemon with two GPUs."""
    import teletensor as tt
    from support.daemon import Daemon

    flags, environment = fake("--device-memory", "48MiB", devices=2, memory=64)
    daemon = Daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        yield tt
    problem = daemon.stop()
    assert not problem, problem


def test_what_a_gpu_is(gpus):
    cuda = gpus.cuda
    assert cuda.is_available() and cuda.is_initialized() and cuda.device_count() == 2
    assert cuda.get_device_name() == cuda.get_device_name("cuda:1") == "Fake GPU"
    assert cuda.get_device_capability(1) == (9, 0)
    found = cuda.get_device_properties(gpus.device("cuda:0"))
    assert (found.major, found.minor, found.total_memory, found.multi_processor_count) == (9, 0, 64 << 20, 132)
    assert cuda.get_arch_list() == ["sm_90"] and cuda.is_bf16_supported()
    for wrong in (2, "cuda:7"):
        with pytest.raises(AssertionError, match="Invalid device id"):
            cuda.get_device_name(wrong)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        cuda.get_device_name("cpu")


def test_the_current_gpu_is_what_cuda_means(gpus):
    cuda = gpus.cuda
    x = gpus.ones(2)
    assert cuda.current_device() == 0 and x.cuda().device == gpus.device("cuda:0")
    with cuda.device(1):
        assert cuda.current_device() == 1
        assert x.cuda().device == gpus.ones(1, device="cuda").device == gpus.device("cuda:1")
        assert gpus.device("cuda").index == 1 and gpus.device("cuda:0").index == 0
        with cuda.device_of(x), cuda.device(None), cuda.device(-1):
            assert cuda.current_device() == 1
    assert cuda.current_device() == 0
    cuda.set_device("cuda:1")
    try:
        assert x.to("cuda").get_device() == 1
        cuda.set_device(-1)
        assert cuda.current_device() == 1
    finally:
        cuda.set_device(0)
    assert x.cuda(1).device == x.cuda("cuda:1").device == gpus.device("cuda:1")
    with pytest.raises(RuntimeError, match="must be cuda device"):
        x.cuda("cpu")


def test_accelerator_is_another_name(gpus):
    accelerator = gpus.accelerator
    assert accelerator.is_available() and accelerator.device_count() == 2
    place = accelerator.current_accelerator()
    assert gpus.ones(2, device=place).device.type == place.type == "cuda"
    with accelerator.device_index(1):
        assert accelerator.current_device_index() == gpus.cuda.current_device() == 1
        assert gpus.ones(2, device=accelerator.current_accelerator()).get_device() == 1
    accelerator.synchronize()
    assert accelerator.get_memory_info() == gpus.cuda.mem_get_info()


def test_memory_is_the_sessions(gpus):
    cuda = gpus.cuda
    before = cuda.memory_allocated()
    x = gpus.ones(4 << 20, dtype=gpus.uint8, device="cuda")
    assert cuda.memory_allocated() - before == cuda.memory_reserved() - before == 4 << 20
    assert cuda.memory_allocated(1) == 0
    free, total = cuda.mem_get_info()
    assert total == 48 << 20 and total - free == cuda.memory_allocated()
    summary = cuda.memory_summary()
    assert "cuda:0, this session: 4.0 MiB of 48.0 MiB" in summary and "test_cuda_names.py" in summary
    del x
    cuda.empty_cache()
    assert cuda.memory_allocated() == before
    assert cuda.max_memory_allocated() >= 4 << 20
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == before
    assert cuda.memory_stats()["allocated_bytes.all.current"] == before
    with pytest.raises(cuda.OutOfMemoryError):
        gpus.ones(64 << 20, dtype=gpus.uint8, device="cuda").sum().item()


def test_synchronize_waits_for_the_device(gpus):
    cuda = gpus.cuda
    with pytest.raises(IndexError):  # late errors come here
        gpus.ones(3, device="cuda").index_select(0, gpus.tensor([5], device="cuda"))
        cuda.synchronize()
    cuda.synchronize(1)


def test_events_and_streams(gpus):
    cuda = gpus.cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    x = gpus.ones(100, device="cuda") + 1
    end.record()
    cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 1e6 and end.query()
    with pytest.raises(ValueError, match="enable_timing"):
        cuda.Event().elapsed_time(end)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x * 2
    cuda.current_stream().wait_stream(side)
    done = side.record_event()
    done.wait(), done.synchronize(), side.synchronize()
    assert done.query() and side.query() and y[0].item() == 4.0
    assert side == cuda.default_stream(0) != cuda.Stream("cuda:1")


def test_seeds(gpus):
    cuda = gpus.cuda
    cuda.manual_seed(7)
    first = gpus.rand(4, device="cuda").tolist()
    cuda.manual_seed_all(7)
    assert gpus.rand(4).tolist() == first and cuda.initial_seed() == 7
    state = cuda.get_rng_state()
    second = gpus.rand(4, device="cuda").tolist()
    cuda.set_rng_state(state)
    assert gpus.rand(4, device="cuda").tolist() == second != first


def test_tf32_by_the_switches(gpus):
    tt, matmul, cudnn = gpus, gpus.backends.cuda.matmul, gpus.backends.cudnn
    fine = 1 + 2**-12  # TF32 has 10 bits behind the point

    def products(device="cuda", **flag):
        """The first elements of a product, of a layer and of the gradients of their factors: 4 or 4 *
        fine."""
        a, b = (tt.full((4, 4), fine, device=device, requires_grad=True) for _ in range(2))
        ones = tt.ones(4, 4, device=device)
        made = [tt.matmul(a, ones, **flag) if flag else a @ ones, tt._core.ops["linear"](a, ones, None, **flag)]
        for each in (tt.matmul(ones, b, **flag), tt._core.ops["addmm"](tt.zeros(4, device=device), b, ones, **flag)):
            each.backward(tt.full((4, 4), fine, device=device))
        return [float(x[0, 0].item()) for x in (*made, b.grad)]

    exact, rounded = [4 * fine, 4 * fine, 8 * fine], [4.0, 4.0, 8.0]
    assert matmul.allow_tf32 is False and tt.get_float32_matmul_precision() == "highest"
    assert products() == exact and products(tf32=True) == rounded
    step = tt.compile(lambda a, b: (a @ b)[0, 0])
    a, b = tt.full((4, 4), fine, device="cuda"), tt.ones(4, 4, device="cuda")
    assert step(a, b).item() == 4 * fine
    matmul.allow_tf32 = True
    try:
        assert tt.get_float32_matmul_precision() == "high"
        assert products() == rounded and products(tf32=False) == exact and products("cpu") == exact
        assert step(a, b).item() == 4 * fine  # with the setting at the capture
        assert tt.compile(lambda a, b: (a @ b)[0, 0])(a, b).item() == 4
        assert (a.double() @ b.double())[0, 0].item() == 4 * fine
        assert tt.func.vmap(tt.matmul)(a.expand(2, 4, 4), b.expand(2, 4, 4))[0, 0, 0].item() == 4
        assert tt.func.jvp(lambda x: x @ b, (a,), (a,))[1][0, 0].item() == 4
    finally:
        matmul.allow_tf32 = False
    for precision, on in (("medium", True), ("high", True), ("highest", False)):
        tt.set_float32_matmul_precision(precision)
        assert tt.get_float32_matmul_precision() == precision and matmul.allow_tf32 is on
    with pytest.raises(RuntimeError, match="low is not one of"):
        tt.set_float32_matmul_precision("low")
    assert cudnn.allow_tf32 is True
    with cudnn.flags(allow_tf32=False):
        assert cudnn.allow_tf32 is False
    assert cudnn.allow_tf32 is True


def test_switches_that_are_kept(gpus):
    matmul = gpus.backends.cuda.matmul
    with pytest.raises(RuntimeError, match="expects a bool, but got int"):
        matmul.allow_tf32 = 3
    with pytest.raises(AttributeError, match="Unknown attribute nonsense"):
        matmul.nonsense = 1
    matmul.allow_fp16_accumulation = True
    assert matmul.allow_fp16_accumulation is True
    matmul.allow_fp16_accumulation = False
    gpus.backends.cudnn.benchmark = True
    assert not gpus.backends.cudnn.is_available() and gpus.backends.cuda.is_built()


def test_without_a_gpu(tt):
    cuda = tt.cuda
    assert not cuda.is_available() and not cuda.is_initialized() and cuda.device_count() == 0
    assert cuda.memory_allocated() == cuda.max_memory_allocated() == cuda.memory_reserved() == 0
    assert cuda.memory_stats() == {} and cuda.get_arch_list() == []
    cuda.empty_cache(), cuda.set_device(-1)
    with cuda.stream(None), cuda.device(-1):
        pass
    tt.manual_seed(3)
    cuda.manual_seed(5), cuda.manual_seed_all(5)
    assert tt.initial_seed() == 3
    calls = [cuda.current_device, cuda.get_device_name, cuda.get_device_properties, cuda.mem_get_info,
             cuda.synchronize, cuda.current_stream, cuda.Stream, cuda.init, lambda: cuda.set_device(0),
             lambda: cuda.device(0), cuda.memory_summary, cuda.initial_seed]
    for call in calls:
        with pytest.raises(RuntimeError, match="Found no NVIDIA driver"):
            call()


def test_without_an_accelerator(tt):
    accelerator = tt.accelerator
    assert not accelerator.is_available() and accelerator.device_count() == 0
    assert accelerator.current_accelerator(check_available=True) is None
    with pytest.raises(RuntimeError):
        accelerator.synchronize()
