"""Assumptions of PyTorch about a device that are easily broken, each as a test on the device "tt"."""

import copy
import io
import os
import pickle
import re
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from teletensor import _core as core
from torch.utils.checkpoint import checkpoint


def reads():
    return core.torch_session().waits


def test_tied_weights_stay_tied(tt_device):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("tt")
    assert model[1].weight is model[0].weight
    model(torch.tensor([1, 2], device="tt")).sum().backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, model[0].weight)


def test_scaled_dot_product_attention(tt_device):
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.randn(5, 5)}):
        grads = []
        for device in ("cpu", "tt"):
            a, b, c = (x.detach().to(device).requires_grad_() for x in (q, k, v))
            there = {n: o.to(device) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
            y = F.scaled_dot_product_attention(a, b, c, **there)
            y.square().sum().backward()
            grads.append([x.detach().cpu() for x in (y, a.grad, b.grad, c.grad)])
        for here, there in zip(*grads):
            torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


def test_grouped_heads_in_attention(tt_device):
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    wanted = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    found = F.scaled_dot_product_attention(q.to("tt"), k.to("tt"), k.to("tt"), enable_gqa=True)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_conjugate_and_negative_bits(tt_device):
    x = torch.randn(3, dtype=torch.complex64)
    y = x.to("tt")
    assert torch.equal(y.conj().cpu(), x.conj().resolve_conj())
    assert torch.equal(y.conj().clone().cpu(), x.conj().resolve_conj())
    assert torch.equal(y.conj().imag.cpu(), x.conj().imag.resolve_neg())
    z = torch.zeros_like(y)
    z.conj().copy_(y)
    assert torch.equal(z.cpu(), x.conj().resolve_conj())


def test_memory_formats(tt_device):
    x = torch.randn(2, 3, 4, 5)
    for make in (lambda t: t.to(memory_format=torch.channels_last), lambda t: t.transpose(1, 2).clone(),
                 lambda t: t.transpose(1, 2).contiguous(),
                 lambda t: torch.empty_like(t.permute(3, 1, 0, 2)),
                 lambda t: t.permute(3, 1, 0, 2) + 1):
        assert make(x.to("tt")).stride() == make(x).stride()


def test_printing_is_one_read(tt_device):
    for x in (torch.randn(4, 5), torch.randn(300, 300), torch.arange(5), torch.tensor(1.5)):
        y = x.to("tt")
        for shown, expected in ((y, 0 if x.nbytes <= 4096 else 1), (y.clone(), 1)):  # small y: known
            before = reads()
            text = repr(shown)
            assert reads() == before + expected
            assert "".join(text.split()).replace(",device='tt:0'", "") == "".join(repr(x).split())


def test_wrapped_numbers_and_promotion(tt_device):
    here = torch.arange(4, dtype=torch.int32)
    there = here.to("tt")
    for call in (lambda t: t * 2.0, lambda t: t + 1, lambda t: t / 2, lambda t: t * torch.tensor(2.0),
                 lambda t: t.to(torch.float16) * torch.tensor(2.0, dtype=torch.float64),
                 lambda t: torch.pow(2, t), lambda t: t > 1.5, lambda t: 1 - t,
                 lambda t: t.to(torch.bool) + 1, lambda t: t * 1j):
        a, b = call(here), call(there)
        assert a.dtype == b.dtype and torch.equal(a, b.cpu())
    with pytest.raises(RuntimeError):
        there.add_(1.5)


def test_out_forms(tt_device):
    x = torch.randn(3, 4)
    out = torch.empty(0, device="tt")
    torch.sin(x.to("tt"), out=out)
    torch.testing.assert_close(out.cpu(), x.sin())
    wide = torch.empty(3, 4, device="tt", dtype=torch.float64)
    torch.add(x.to("tt"), 1, out=wide)
    torch.testing.assert_close(wide.cpu(), (x + 1).double())
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(x.to("tt"), 1, out=torch.empty(3, 4, device="tt", dtype=torch.int32))
    part = torch.zeros(3, 8, device="tt")
    torch.mul(x.to("tt"), 2, out=part[:, ::2])
    torch.testing.assert_close(part.cpu()[:, ::2], x * 2)


def test_a_write_to_what_autograd_has_saved_is_an_error(tt_device):
    x = torch.randn(3, device="tt", requires_grad=True)
    y = x.sin()
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_dtypes_that_the_device_lacks_are_refused_by_name(tt_device):
    with pytest.raises(NotImplementedError, match="complex32, float8"):
        torch.zeros(2, device="tt", dtype=torch.complex32).add_(1)


def test_sizes_that_depend_on_values(tt_device):
    x = torch.randn(5, 6)
    y = x.to("tt")
    assert torch.equal(y.nonzero().cpu(), x.nonzero())
    assert torch.equal(y[y > 0].cpu(), x[x > 0])
    assert torch.equal(torch.masked_select(y, y > 0).cpu(), x[x > 0])
    index = torch.tensor([3, 0, 3])
    assert torch.equal(y[index].cpu(), x[index]) and torch.equal(y[:, index].cpu(), x[:, index])
    assert torch.equal(y[index, :, None].cpu(), x[index, :, None])
    y[y > 0] = 7
    y[index] += 1
    x[x > 0] = 7
    x[index] += 1
    assert torch.equal(y.cpu(), x)


def test_random_numbers(tt_device):
    torch.manual_seed(3)
    first = torch.rand(100, device="tt")
    state = torch.tt.get_rng_state()
    second = torch.rand(100, device="tt")
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(100, device="tt")) and not torch.equal(first, second)
    torch.tt.set_rng_state(state)
    assert torch.equal(second, torch.rand(100, device="tt"))
    with torch.random.fork_rng(device_type="tt"):
        third = torch.randn(5, device="tt")
    assert torch.equal(third, torch.randn(5, device="tt"))
    a, b = (torch.Generator("tt").manual_seed(7) for _ in range(2))
    assert torch.equal(torch.randn(5, device="tt", generator=a), torch.randn(5, device="tt", generator=b))
    assert 0 <= first.min().item() and first.max().item() < 1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_a_checkpoint_repeats_the_random_numbers_of_the_device(tt_device, captured, reentrant):
    x = torch.ones(64, device="tt", requires_grad=True)

    def step():
        if x.grad is not None:
            x.grad.zero_()
        y = checkpoint(lambda x: F.dropout(x) * 2, x, use_reentrant=reentrant)
        y.sum().backward()
        return y.detach()

    step, drawn = tt_device.capture(step) if captured else step, set()
    for _ in range(5):
        y = step()
        assert y.unique().tolist() == [0, 4]
        assert torch.equal(y, x.grad)
        drawn.add(tuple(y.tolist()))
    assert len(drawn) == 5


OUT_OF_RANGE = {
    "exponential_ expects lambda > 0, but found -1.0": lambda x: x.exponential_(-1),
    "exponential_ expects lambda > 0, but found 0.0": lambda x: x.exponential_(0),
    "geometric_ expects p in (0, 1), but found 2.0": lambda x: x.geometric_(2),
    "cauchy_ expects sigma > 0, but found -1.0": lambda x: x.cauchy_(0, -1),
    "log_normal_ expects std > 0, but found nan": lambda x: x.log_normal_(0, float("nan")),
}


@pytest.mark.parametrize("text", OUT_OF_RANGE)
def test_parameters_of_random_numbers_are_checked(tt_device, text):
    with pytest.raises(RuntimeError, match=re.escape(text)):
        OUT_OF_RANGE[text](torch.empty(3, device="tt"))


def test_autocast_and_the_gradient_scaler(tt_device):
    model = nn.Linear(8, 4).to("tt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tt", init_scale=1024.0, growth_interval=1)
    x = torch.randn(3, 8, device="tt")
    with torch.autocast("tt", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16 and torch.softmax(y, 1).dtype == torch.float32
        loss = y.float().square().sum()
    before = model.weight.detach().clone()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2048.0 and not torch.equal(before, model.weight)
    model.weight.grad.fill_(float("inf"))
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1024.0 and torch.equal(before, model.weight)


def test_pinned_memory(tt_device):
    x = torch.arange(3.0).pin_memory()
    assert x.is_pinned() and not torch.arange(3.0).is_pinned()
    assert torch.equal(x.to("tt", non_blocking=True).cpu(), torch.arange(3.0))


def test_an_upload_has_its_bytes_when_it_returns(tt_device):
    for size in (10, 100_000):
        x = torch.ones(size)
        y = x.to("tt", non_blocking=True)
        x.zero_()
        assert y.sum().item() == size


def test_save_load_and_map_location(tt_device):
    model = nn.Linear(3, 2).to("tt")
    shared = torch.arange(4.0, device="tt")
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "whole": shared, "part": shared[1:3]}, file)
    file.seek(0)
    there = torch.load(file)
    assert there["whole"].device.type == "tt"
    there["part"].add_(10)
    assert there["whole"].tolist() == [0, 11, 12, 3]
    file.seek(0)
    here = torch.load(file, map_location="cpu")
    assert here["whole"].device.type == "cpu"
    assert torch.equal(here["model"]["weight"], model.weight.cpu())
    file = io.BytesIO()
    torch.save(here, file)
    file.seek(0)
    assert torch.load(file, map_location="tt")["whole"].device.type == "tt"


def test_pickles(tt_device):
    whole = torch.arange(6, dtype=torch.int16, device="tt").view(2, 3)
    for x in (whole, whole.t()[1:], whole[1] > 3, whole.to(torch.complex64), whole.to(torch.bfloat16), whole[:0]):
        there = pickle.loads(pickle.dumps(x))
        assert there.device == x.device and there.stride() == x.stride()
        assert torch.equal(there.cpu(), x.cpu()) and there.dtype == x.dtype
    model = nn.Linear(3, 2).to("tt")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, device="tt")).sum().backward()
    optimizer.step()
    other, state = pickle.loads(pickle.dumps((model, optimizer.state_dict())))
    assert torch.equal(other.weight.cpu(), model.weight.cpu())
    assert torch.equal(state["state"][0]["exp_avg"].cpu(), optimizer.state[model.weight]["exp_avg"].cpu())


@pytest.mark.parametrize("target", ["tt", "tt:0", "cpu", None])
@pytest.mark.parametrize("source", ["cpu", "tt"])
def test_files_of_the_legacy_format(tt_device, source, target):
    x = torch.randn(3, 4, device=source)
    file = io.BytesIO()
    torch.save({"whole": x, "part": x[1:]}, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    there = torch.load(file, map_location=target)
    assert there["part"].device.type == (target or source)[:3].rstrip(":")
    assert torch.equal(there["whole"].cpu(), x.cpu())
    there["part"].zero_()
    assert there["whole"][1:].abs().sum().item() == 0 and there["whole"][0].abs().sum().item() > 0


def test_deepcopy_and_clone(tt_device):
    model = nn.Linear(3, 2).to("tt")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
    assert model.weight.abs().sum().item() > 0 and other.weight.abs().sum().item() == 0


def test_loaders_of_worker_processes(tt_device):
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
    assert [batch.to("tt").sum().item() for (batch,) in loader] == [6, 22]


def test_late_errors_have_the_line_of_the_program(tt_device):
    weight = torch.randn(4, 2, device="tt")
    bad = F.embedding(torch.tensor([9], device="tt"), weight)  # this line
    with pytest.raises((RuntimeError, IndexError)) as raised:
        bad.sum().item()
    assert os.path.basename(__file__) in str(raised.value)


def test_eager_errors(tt_device):
    x = torch.randn(3, 4, device="tt")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="mm"):
        torch.mm(x, x)
    with pytest.raises(RuntimeError):
        x + torch.randn(5, device="tt")
    with pytest.raises(RuntimeError, match="tt:0"):
        torch.zeros(1, device="tt:1")


def test_memory(tt_device):
    before = torch.tt.memory_allocated()
    x = torch.zeros(1 << 20, device="tt").add_(1)
    assert torch.tt.memory_allocated() >= before + (4 << 20)
    del x
    torch.tt.empty_cache()
    torch.tt.synchronize()
    assert torch.tt.memory_allocated() < before + (4 << 20)


def test_no_memory_is_pytorchs_error(tt_device):
    for size in (1 << 38, 1 << 46):
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(size, device="tt").add_(1).sum().item()


def test_an_operator_without_a_row_runs_on_the_cpu_with_one_warning(tt_device):
    x = torch.randn(4, 3)
    tt_device.fallbacks(clear=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [torch.hash_tensor(x.to("tt")) for _ in range(2)]
    assert torch.equal(found[0].cpu(), torch.hash_tensor(x))
    names = tt_device.fallbacks()
    assert set(names.values()) == {2} and len(caught) == len(names)
    assert "runs on the CPU" in str(caught[0].message)
    with tt_device.strict(), pytest.raises(NotImplementedError, match="strict"):
        torch.hash_tensor(x.to("tt"))


def fresh(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment},
                          capture_output=True, text=True, timeout=600)


def test_another_backend_in_the_process_is_one_clear_error(tt_device):
    done = fresh("import torch; torch.utils.rename_privateuse1_backend('other'); import teletensor.torch")
    assert done.returncode != 0 and "the PyTorch backend 'other' already" in done.stderr


def test_without_a_compiler_the_error_says_what_to_install(tt_device, tmp_path):
    done = fresh("import teletensor.torch", CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode != 0 and "install g++" in done.stderr


def test_an_old_torch_is_refused(tt_device, tmp_path):
    done = fresh("import torch; torch.__version__ = '2.10.1'; import teletensor.torch")
    assert done.returncode != 0 and "needs torch 2.11 or later" in done.stderr


def test_the_client_does_not_import_torch(tt_device):
    done = fresh("import teletensor, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_seed_leaves_out_the_device_in_a_child_of_a_process_that_used_it(tt_device, monkeypatch):
    torch.manual_seed(11)
    assert torch.tt.initial_seed() == 11 and not torch.tt._is_in_bad_fork()
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in the child: a fork would hang in other libraries' threads
    assert torch.tt._is_in_bad_fork()
    torch.manual_seed(3)
    assert torch.tt.initial_seed() == 11


def test_the_first_use_is_by_many_threads(tt_device):
    """The first operator of each thread waits until the session is open; meanwhile other threads run theirs."""
    done = fresh("""
import threading, torch, teletensor.torch
def work(k):
    for i in range(1000):
        x = torch.empty(16 + i % 5, device="tt").fill_(k)
        if i % 20 == 0:
            found.append(x.sum().item() == k * len(x))
found, threads = [], [threading.Thread(target=work, args=(k,)) for k in range(6)]
for each in threads: each.start()
for each in threads: each.join()
assert found == [True] * 300
""")
    assert done.returncode == 0, done.stderr[-3000:]


def test_storages_are_made_and_dropped_by_many_threads(tt_device):
    def work(k):
        for i in range(200):
            x = torch.empty(16 + i % 5, device="tt")
            y = torch.empty_like(x, dtype=torch.uint8)
            if i % 20 == 0:
                found.append((x.fill_(k) * 2).sum().item() == 2 * k * len(x))
            del x, y

    found = []
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 60


OTHER_LAYOUTS = {
    "sparse": lambda: torch.eye(2, device="tt").to_sparse().relu(),
    "sparse products": lambda: torch.eye(2, device="tt").to_sparse() * torch.ones(1, 2, device="tt"),
    "bsr": lambda: torch.eye(2).to_sparse_bsr((1, 1)).to("tt") @ torch.ones(2, 2, device="tt"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).to("tt"),
    "quantize": lambda: torch.quantize_per_tensor(torch.ones(2, device="tt"), 0.1, 0, torch.quint8),
    "float8": lambda: torch.ones(2, dtype=torch.float8_e4m3fn).to("tt"),
}


@pytest.mark.parametrize("make", OTHER_LAYOUTS.values(), ids=OTHER_LAYOUTS)
def test_tensors_that_the_device_does_not_have_are_refused_with_advice(tt_device, make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a call that fails has not run on the CPU
        warnings.filterwarnings("ignore", message=".*(invariant|CSR|beta|quantiz|deprecat)")
        with pytest.raises((NotImplementedError, RuntimeError), match="the device tt has no .*(CPU|cpu)"):
            make()
