"""`python -m teletensor.torch [--as-cuda]`: a program that says "cuda" computes on the daemon."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from support.daemon import binary

# A program with the calls that programs for one GPU commonly make. The test checks each line of its output.
PROGRAM = """
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F

assert torch.cuda.is_available() and torch.cuda.device_count() == 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
torch.cuda.manual_seed_all(3)
torch.cuda.set_device(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.cuda.amp.GradScaler()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for step in range(20):
    x = torch.randn(16, 4, device=device)
    y = (x.sum(1) > 0).long().to("cuda:0", non_blocking=True)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
assert x.is_cuda and isinstance(x.device, torch.device) and isinstance(device, torch.device)
assert torch.tensor([1.0]).cuda().device == torch.device("cuda:0")
assert torch.zeros(2, device="cuda").device.type == torch.ones_like(x).device.type
assert torch.cuda.memory_allocated() > 0 and torch.cuda.get_device_properties(0).name
generator = torch.Generator(device="cuda").manual_seed(1)
assert torch.randn(2, device="cuda", generator=generator).device.index == 0
torch.save(model.state_dict(), sys.argv[1])
state = torch.load(sys.argv[1], map_location="cuda")
assert all(value.is_cuda for value in state.values())
assert next(iter(torch.load(sys.argv[1], map_location="cpu").values())).device.type == "cpu"
with torch.cuda.amp.autocast(), torch.device("cuda"):
    assert torch.zeros(1).is_cuda
print("trained", loss.item() < 1, *sys.argv[2:])
"""


def run(shared_daemon, *words, folder):
    environment = {**os.environ, "TELETENSOR_ADDRESS": shared_daemon.unix, "PYTHONPATH": ""}
    return subprocess.run([sys.executable, "-m", "teletensor.torch", *words], env=environment, cwd=folder,
                          capture_output=True, text=True, timeout=600)


def test_a_program_for_cuda_runs_without_a_change(shared_daemon, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(shared_daemon, "--as-cuda", "program.py", "model.pt", "--flag", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trained", "True", "--flag"]


def test_a_module_and_the_folder_of_a_script(shared_daemon, tmp_path):
    (tmp_path / "helper.py").write_text("NAME = 'tt'\n")
    (tmp_path / "program.py").write_text(textwrap.dedent("""
        import torch
        from helper import NAME
        print(torch.ones(2, device=NAME).sum().item(), __name__)
    """))
    for words in (["program.py"], ["-m", "program"]):
        done = run(shared_daemon, *words, folder=tmp_path)
        assert done.stdout.split() == ["2.0", "__main__"], done.stderr


def test_a_checkpoint_of_a_gpu_is_loaded(shared_daemon, tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent("""
        import torch
        # what a GPU's checkpoint says of its storages
        torch.serialization.register_package(0, lambda storage: "cuda:0", lambda storage, location: None)
        torch.save(torch.arange(3.0), "tensor.pt")
        loaded = torch.load("tensor.pt")
        print(loaded.device.type, loaded.tolist())
    """))
    done = run(shared_daemon, "--as-cuda", "program.py", folder=tmp_path)
    assert done.stdout.split() == ["tt", "[0.0,", "1.0,", "2.0]"], done.stderr


@pytest.mark.parametrize("words", [[], ["--as-cuda"], ["--other", "x.py"], ["missing.py"],
                                   *([f"--as-cuda={gpus}", "program.py"] for gpus in ("", "0", "two"))])
def test_wrong_words_are_refused(shared_daemon, tmp_path, words):
    done = run(shared_daemon, *words, folder=tmp_path)
    assert done.returncode != 0 and "usage: python -m teletensor.torch" in done.stderr


# What programs for one GPU do less often.
MORE = """
import torch
import torch.nn as nn

x = torch.ones(2, 3)
assert torch.zeros_like(x, device="cuda").is_cuda and torch.randint_like(x, 5, device="cuda:0").is_cuda
assert torch.normal(0.0, 1.0, (2,), device="cuda").is_cuda and torch.fft.rfftfreq(4, device="cuda").is_cuda
long = torch.cuda.LongTensor([1, 2])
assert long.is_cuda and long.dtype == torch.int64 and isinstance(long, torch.cuda.LongTensor)
assert not isinstance(long, torch.cuda.FloatTensor) and torch.cuda.FloatTensor(2, 3).shape == (2, 3)
assert long.type() == "torch.cuda.LongTensor" and x.type() == "torch.FloatTensor"
assert x.type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor" and x.type(torch.int32).dtype == torch.int32
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
stats = torch.cuda.memory_stats()
assert 0 < stats["allocated_bytes.all.current"] <= stats["allocated_bytes.all.peak"] and stats["num_ooms"] == 0
assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() > 0
stream = torch.cuda.Stream()
with torch.cuda.stream(stream), torch.cuda.device_of(long):
    y = x.cuda() * 2
stream.wait_stream(torch.cuda.current_stream())
y.record_stream(stream)
assert isinstance(torch.cuda.current_stream().cuda_stream, int) and stream.record_event().query()
assert not torch.cuda.is_current_stream_capturing()
model = nn.DataParallel(nn.Linear(3, 2).cuda())
assert model(y).shape == (2, 2)
assert not hasattr(y, "__cuda_array_interface__")
try:
    torch.cuda.CUDAGraph()
except NotImplementedError as error:
    assert str(error).startswith("tt: ")
else:
    raise AssertionError
assert torch.zeros(2, device=0).is_cuda and torch.ones(2).to(0).is_cuda and nn.Linear(2, 2).to(0).weight.is_cuda
for place in ("cuda:1", 1, torch.device("cuda", 1)):  # of one
    try:
        torch.zeros(2, device=place)
    except RuntimeError as error:
        assert str(error).startswith("tt: there is one device"), error
    else:
        raise AssertionError(place)
for backend in ("nccl", "gloo", "cpu:gloo,cuda:nccl"):
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    assert torch.distributed.get_backend() == backend and torch.distributed.is_nccl_available()
    torch.distributed.all_reduce(y)
    part = torch.distributed.new_group([0], backend=backend)
    assert torch.distributed.get_backend(part) == backend
    torch.distributed.all_reduce(x, group=part)
    torch.distributed.destroy_process_group()
compiled = torch.compile(model.module, mode="reduce-overhead")
torch.testing.assert_close(compiled(y), model(y))
torch.set_default_tensor_type("torch.cuda.DoubleTensor")
assert torch.zeros(1).is_cuda and torch.zeros(1).dtype == torch.float64
torch.set_default_tensor_type("torch.FloatTensor")
assert not torch.zeros(1).is_cuda
print("done")
"""


def test_calls_that_programs_for_a_gpu_make_less_often(shared_daemon, tmp_path):
    (tmp_path / "program.py").write_text(MORE)
    done = run(shared_daemon, "--as-cuda", "program.py", folder=tmp_path)
    assert done.stdout.split() == ["done"], done.stderr


def test_the_module_of_the_device_and_the_accelerator(tt_device):
    x = torch.ones(1000, device="tt")
    torch.accelerator.synchronize()
    assert torch.accelerator.current_accelerator().type == "tt"
    for module in (torch.accelerator, torch.tt):
        before = module.memory_allocated()
        more = torch.ones(100_000, device="tt")
        assert module.memory_allocated() >= before + 400_000 and module.max_memory_allocated() >= before + 400_000
        assert module.memory_reserved() >= before + 400_000
        del more
        module.empty_cache()
        module.reset_peak_memory_stats()
        assert module.max_memory_allocated() < before + 400_000
        assert module.memory_stats()["allocated_bytes.all.current"] >= 4000
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total and torch.tt.get_device_properties().total_memory == total
    assert torch.accelerator.get_device_capability() and torch.tt.get_device_capability() == (8, 0)
    for stream in (torch.Stream("tt"), torch.tt.Stream(), torch.tt.current_stream()):
        stream.synchronize()
        with torch.tt.stream(stream):
            assert stream.query() and stream.record_event().query()
    begin, end = torch.Event("tt", enable_timing=True), torch.tt.Event(enable_timing=True)
    begin.record()
    x.add_(1)
    end.record()
    end.synchronize()
    assert 0 < begin.elapsed_time(end) < 600_000
    assert "this session" in torch.tt.memory_summary() and issubclass(torch.tt.OutOfMemoryError, RuntimeError)
    assert torch.tt.default_generators[0].device.type == "tt"
    with torch.tt.device_of(x):
        assert torch.tt.current_device() == 0


def test_the_default_backend_of_torch_compile_names_the_device_s(tt_device):
    with pytest.raises(Exception, match='backend="teletensor"'):
        torch.compile(lambda x: x * 2 + 1)(torch.ones(2, device="tt"))


def test_the_default_backend_compiles_for_the_cpu(tmp_path):
    """It asks the device for its code before the first graph of a process, whatever the graph's device is, therefore
    each order has a process of its own."""
    script = tmp_path / "script.py"
    script.write_text("""import sys, teletensor.torch, torch
function = torch.compile(lambda x: (x * 2 + 1).relu())
for device in sys.argv[1:]:
    x = torch.arange(6.0, device=device)
    try:
        print(device, torch.equal(function(x), (x * 2 + 1).relu()))
    except Exception as error:
        print(device, 'backend="teletensor"' in str(error))
""", encoding="utf-8")
    for order in (["cpu", "tt", "cpu"], ["tt", "cpu"]):
        done = subprocess.run([sys.executable, str(script), *order], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "TELETENSORD": str(binary())})
        assert done.stdout.split() == [word for device in order for word in (device, "True")], done.stderr
