"""Sparse matrices in the layouts CSR and CSC on PyTorch's device "tt"."""

import io

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


@pytest.fixture
def on_tt(tt_device):
    """Tensors are made on the device, and nothing runs on the CPU."""
    with tt_device.strict(), torch.device("tt"):
        yield tt_device


def matrix(device, layout="csr", values=None):
    """A 3 x 4 matrix with an empty row and an empty column."""
    places = ([0, 2, 2, 4], [0, 2, 1, 2]) if layout == "csr" else ([0, 1, 2, 2, 4], [0, 2, 0, 2])
    given = torch.tensor([1.5, -2.0, 3.0, 0.25], device=device) if values is None else values
    make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
    return make(*(torch.tensor(each, device=device) for each in places), given, (3, 4), device=device)


def plain(x):
    """The layout, the shape and the parts of a tensor as dense tensors of the CPU."""
    if not isinstance(x, torch.Tensor):
        return str(x), (), []
    x = x.detach().cpu()
    if x.layout in (torch.sparse_csr, torch.sparse_csc):
        by_column = x.layout is torch.sparse_csc
        parts = [x.ccol_indices(), x.row_indices()] if by_column else [x.crow_indices(), x.col_indices()]
        return x.layout, x.shape, [*(part.long() for part in parts), x.values()]
    if x.is_sparse:
        x = x.coalesce()
        return x.layout, x.shape, [x.indices(), x.values()]
    return x.layout, x.shape, [x]


def compare(ours, theirs):
    assert ours[:2] == theirs[:2]
    torch.testing.assert_close(ours[2], theirs[2])


EXPRESSIONS = """
    r; c; r.to_dense(); c.to_dense(); r.to_sparse(); c.to_sparse(); r.to_sparse_csc(); c.to_sparse_csr()
    d.to_sparse_csr(); d.to_sparse_csc(); d.to_sparse(layout=torch.sparse_csr); d.to_sparse().to_sparse_csr()
    d.to_sparse().to_sparse_csc(); r @ b; c @ b; r @ v; torch.mm(r, b); torch.sparse.mm(r, b); a @ r; a @ c
    r.mv(v); torch.addmm(e, r, b, beta=2, alpha=3); torch.addmm(e, r, b, beta=0); r.t(); c.t(); r.t().to_dense()
    r.transpose(0, 1) @ e; r * 2; 2 * r; r * f; r + r; d + r; r.sum(); -r; r.abs(); r.sin(); torch.tanh(r)
    r.relu(); r.abs().sqrt(); r.sign(); r.clone(); r.detach(); r.double(); r.cpu(); torch.zeros_like(r)
    torch.empty_like(r).shape; d.sparse_mask(r); r.values(); r.crow_indices(); r.col_indices(); c.ccol_indices()
    c.row_indices(); r._nnz(); r.sparse_dim(); r.dense_dim(); r.layout; r.is_sparse_csr; r.clone().mul_(3)
    r.clone().zero_(); r.clone().copy_(r * 2); h; h.to_dense(); n; n.to_dense(); n @ b; n.sum()
    torch.empty(2, 3, layout=torch.sparse_csr).shape; r.to(torch.float64).to_dense(); r.int()
    (r * 2).sum().sqrt()
"""


@pytest.mark.parametrize("expression", [each.strip() for each in EXPRESSIONS.replace("\n", ";").split(";")
                                        if each.strip()])
def test_expressions_equal_those_of_the_cpu(on_tt, expression):
    found = []
    for device in ("tt", "cpu"):
        with torch.device(device):
            d = torch.arange(12.0).reshape(3, 4) % 5
            known = {"torch": torch, "d": d, "r": matrix(device), "c": matrix(device, "csc"),
                     "b": torch.arange(8.0).reshape(4, 2), "v": torch.arange(4.0), "a": torch.arange(6.0).reshape(2, 3),
                     "e": torch.ones(3, 2), "f": torch.tensor(1.5), "n": (d * 0).to_sparse_csr(),
                     "h": torch.arange(24.0).reshape(3, 4, 2).to_sparse_csr(dense_dim=1)}
            result = eval(expression, known)
            assert not isinstance(result, torch.Tensor) or result.device.type in (device, "cpu")
            found.append(plain(result))
    compare(*found)


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_gradients_equal_those_of_the_cpu(on_tt, layout):
    found = []
    for device in ("tt", "cpu"):
        values = torch.tensor([1.0, 2.0, 3.0, -4.0], device=device, requires_grad=True)
        b = torch.arange(8.0, device=device).reshape(4, 2).requires_grad_()
        v = torch.arange(4.0, device=device).requires_grad_()
        s = matrix(device, layout, values)
        loss = s.values().sin().sum()
        if layout == "csr":  # PyTorch has no such gradient in the layout CSC.
            loss = loss + s.to_dense().square().sum()
        fixed = s.detach()
        loss = loss + (fixed @ b).square().sum() + (fixed @ v).square().sum() + torch.sparse.mm(fixed, b).sum()
        loss.backward()
        found.append([each.grad.cpu() for each in (values, b, v)])
    torch.testing.assert_close(*found)


def test_the_gradient_of_a_matrix_in_a_product(on_tt):
    found = []
    for device in ("tt", "cpu"):
        s = matrix(device).requires_grad_()
        b = torch.arange(8.0, device=device).reshape(4, 2)
        (s @ b).square().sum().backward()
        found.append(plain(s.grad))
    compare(*found)


def test_files_texts_and_moves(on_tt):
    for layout in ("csr", "csc"):
        file = io.BytesIO()
        torch.save(matrix("tt", layout), file)
        for place in ("tt", "cpu"):
            file.seek(0)
            with torch.device(place):
                loaded = torch.load(file, map_location=place, weights_only=False)
            assert loaded.device.type == place
            assert torch.equal(loaded.to_dense().cpu(), matrix("cpu", layout).to_dense())
        words = repr(matrix("tt", layout)).split()
        words.remove("device='tt:0',")
        assert words == repr(matrix("cpu", layout)).split()
        assert torch.equal(matrix("cpu", layout).to("tt").values().cpu(), matrix("cpu", layout).values())


def test_blocks_and_batches_are_moved_only(on_tt):
    with torch.device("cpu"):
        blocks = torch.ones(4, 4).to_sparse_bsr((2, 2))
        batch = torch.stack([torch.eye(2)] * 2).to_sparse_csr()
    for each in (blocks, batch):
        there = each.to("tt")
        assert there.values().device.type == "tt" and torch.equal(there.cpu().to_dense(), each.to_dense())
        with pytest.raises(NotImplementedError, match="blocks and batches"):
            there.to_dense()


@pytest.mark.parametrize("run, text", [
    (lambda r, d: r @ torch.ones(3, 2), "cannot be multiplied"),
    (lambda r, d: r @ torch.ones(4, 2, dtype=torch.float64), "same dtype|expected"),
    (lambda r, d: r @ torch.ones(4, 2, device="cpu"), "device"),
    (lambda r, d: r + torch.ones(2, 4), "match"),
    (lambda r, d: d.sparse_mask(torch.ones(4, 3).to_sparse_csr()), "incompatible sizes"),
    (lambda r, d: torch.ones(2, 3, 4).to_sparse_csr(), "converts matrices only, got 3"),
    (lambda r, d: d.to_sparse_bsr((1, 2)), "to_sparse_bsr|no such operator|layout|supported"),
    (lambda r, d: r.softmax(1), "no such operator for sparse"),
    (lambda r, d: torch.sparse_csr_tensor(torch.tensor([0, 5]), torch.tensor([0]), torch.ones(1), (1, 2),
                                          check_invariants=True), "is not satisfied"),
])
def test_errors(on_tt, run, text):
    with pytest.raises((RuntimeError, NotImplementedError), match=text):
        run(matrix("tt"), torch.ones(3, 4))
    assert matrix("tt").sum().item() == 2.75  # the session is as it was


def test_products_wait_for_nothing(on_tt):
    from teletensor import _core

    r, b = matrix("tt"), torch.ones(4, 2)
    waits = _core.torch_session().waits
    (r @ b).sum()
    r.to_dense()
    (r * 2).sin()
    assert _core.torch_session().waits == waits
