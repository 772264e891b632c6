"""`python -m teletensor.torch [--as-cuda]`: a program that says "cuda" computes on the daemon."""

import os
import subprocess
import sys
import textwrap

import pytest

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


@pytest.mark.parametrize("words", [[], ["--as-cuda"], ["--other", "x.py"], ["missing.py"]])
def test_wrong_words_are_refused(shared_daemon, tmp_path, words):
    done = run(shared_daemon, *words, folder=tmp_path)
    assert done.returncode != 0 and "usage: python -m teletensor.torch" in done.stderr
