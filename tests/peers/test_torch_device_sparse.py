"""Sparse tensors in COO layout on PyTorch's device "tt", and sparse gradients of embeddings there."""

import copy
import io
import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_sparse_gradients_torch import ERRORS, OPTIMIZERS, VALUES, flat, layer, trained, used

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


@pytest.fixture
def on_tt(tt_device):
    """Tensors are made on the device, and nothing runs on the CPU."""
    with tt_device.strict(), torch.device("tt"):
        yield tt_device


@pytest.mark.parametrize("name", VALUES)
def test_gradients_equal_those_of_the_cpu(on_tt, name):
    found = VALUES[name](torch)
    with torch.device("cpu"):
        assert found == VALUES[name](torch)


@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=str)
def test_optimizers_equal_those_of_the_cpu(on_tt, name, options):
    found = trained(torch, name, {"lr": 0.1, **options})
    with torch.device("cpu"):
        expected = trained(torch, name, {"lr": 0.1, **options})
    for a, b in zip(flat(found), flat(expected), strict=True):
        assert a == (pytest.approx(b, rel=1e-4, abs=1e-5) if isinstance(b, float) else b)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_equal_those_of_the_cpu(on_tt, name):
    run, text = ERRORS[name]
    with pytest.raises((RuntimeError, ValueError)) as caught:
        run(torch)
    assert text in str(caught.value)


def test_padding(on_tt):
    e = layer(torch, padding_idx=1)
    used(torch, e, 1, 4).backward()
    assert e.weight.grad._indices().tolist() == [[4]]


def test_the_daemon_stores_no_gradient_of_the_table(on_tt):
    from teletensor import _core

    e = torch.nn.Embedding(50_000, 64, sparse=True)
    optimizer = torch.optim.SGD(e.parameters(), lr=0.1)
    before = torch.tt.max_memory_allocated()
    waits = _core.torch_session().waits
    rows = torch.randint(0, 50_000, (32,))
    for _ in range(3):
        optimizer.zero_grad()
        e(rows).square().sum().backward()
        optimizer.step()
    assert _core.torch_session().waits == waits
    torch.tt.synchronize()
    assert e.weight.grad._nnz() == 32
    assert torch.tt.max_memory_allocated() - before < e.weight.nbytes // 2


def coo(device, kind=float):
    places = torch.tensor([[0, 1, 0, 1], [2, 0, 2, 1]], device=device)
    values = torch.tensor([kind(each) for each in (1, 2, 3, -4)], device=device)
    return torch.sparse_coo_tensor(places, values, (2, 3), device=device)


EXPRESSIONS = """
    s; s * d; d * s; s * s; s * (s + h2); s * z; s.coalesce(); s.to_dense(); s + s; s - s; d + s; d - s; s / 4; -s
    d.add(s, alpha=2); s * 2; 2 * s; s.abs(); s.sum(); s.norm(); s.norm(1); torch.linalg.vector_norm(s, 3); s.double()
    s.clone(); s.t(); torch.sparse.sum(s, 0); d.sparse_mask(s); d.to_sparse(); d.to_sparse(1); torch.cat([s, s])
    torch.sparse.mm(s, d.t()); s @ d.t(); torch.addmm(e, s, d.t(), beta=2, alpha=3); torch.zeros_like(s); s.detach()
    copy.deepcopy(s); s.cpu(); s.to_sparse(); z; h.coalesce(); h.to_dense(); h + h; s.is_coalesced(); s.unsqueeze(0)
    d.clone().add_(s); d.clone().sub_(s, alpha=2); s.clone().add_(s); s.clone().mul_(3).zero_(); s.clone().div_(2)
    coo(d.device, bool).coalesce(); coo(d.device, int).coalesce(); s.half().coalesce(); (s * s).sum().sqrt()
"""


@pytest.mark.parametrize("expression", [each.strip() for each in EXPRESSIONS.replace("\n", ";").split(";")
                                        if each.strip()])
def test_expressions_equal_those_of_the_cpu(on_tt, expression):
    found = []
    for device in ("tt", "cpu"):
        d = torch.arange(6.0, device=device).reshape(2, 3)
        h = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]], device=device), d.t().contiguous(), (2, 2), device=device)
        known = {"torch": torch, "copy": copy, "coo": coo, "s": coo(device), "d": d, "h": h, "h2": d.to_sparse(),
                 "z": torch.sparse_coo_tensor((2, 3), device=device), "e": torch.ones(2, 2, device=device)}
        result = eval(expression, known)
        if isinstance(result, torch.Tensor) and result.is_sparse:
            result = result.cpu().coalesce()
            result = [result.indices(), result.values(), torch.tensor(result.shape, device="cpu")]
        found.append(result)
    torch.testing.assert_close(*found, check_device=False)


def test_products_have_gradients(on_tt):
    found = []
    for device in ("tt", "cpu"):
        d = torch.arange(6.0, device=device).reshape(3, 2).requires_grad_()
        values = torch.tensor([1.0, 2.0, 3.0, -4.0], device=device, requires_grad=True)
        dense = torch.sparse_coo_tensor(coo(device)._indices(), values, (2, 3), device=device).to_dense()
        (torch.sparse.mm(coo(device), d).square().sum() + dense.square().sum()).backward()
        found.append([d.grad.cpu(), values.grad.cpu()])
    torch.testing.assert_close(*found)


def test_files_and_texts(on_tt):
    file = io.BytesIO()
    torch.save(coo("tt"), file)
    for place in ("tt", "cpu"):
        file.seek(0)
        with torch.device(place):
            loaded = torch.load(file, map_location=place)
        assert torch.equal(loaded.to_dense().cpu(), coo("cpu").to_dense())
    assert repr(coo("tt")).replace("device='tt:0', ", "") == repr(coo("cpu"))


def test_a_module_is_moved_with_its_gradient(on_tt):
    with torch.device("cpu"):
        e = layer(torch)
        used(torch, e, 1, 4).backward()
    e.to("tt")
    used(torch, e, 2).backward()
    assert e.weight.grad.device.type == "tt" and e.cpu().weight.grad.coalesce().indices().tolist() == [[1, 2, 4]]


def test_compiled_functions(on_tt):
    e = layer(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(lambda rows: e(rows).pow(2).sum(), backend="teletensor")(torch.tensor([1, 4])).backward()
    assert e.weight.grad.coalesce().indices().tolist() == [[1, 4]]


def test_captured_steps_refuse(on_tt):
    e = layer(torch)
    optimizer = torch.optim.SGD(e.parameters(), lr=0.1)

    @on_tt.capture
    def step(rows):
        optimizer.zero_grad()
        loss = used(torch, e, 1, 4)
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(NotImplementedError, match="sparse"):
        for _ in range(3):
            step(torch.tensor([1, 2]))
