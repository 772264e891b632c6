"""Compares sparse tensors with PyTorch's: values, gradients, layouts and texts."""

import numpy as np
import pytest
from teletensor import _core

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

# name: (indices, shape of the values, shape)
PLACES = {
    "coalesced": ([[0, 1, 1, 3], [2, 0, 2, 1]], (4,), (4, 3)),
    "unordered": ([[3, 1, 1, 0], [1, 2, 0, 2]], (4,), (4, 3)),
    "repeated": ([[3, 1, 3, 1, 0, 3], [1, 2, 1, 0, 2, 1]], (6,), (4, 3)),
    "one": ([[2], [1]], (1,), (4, 3)),
    "empty": ([[], []], (0,), (4, 3)),
    "no rows": ([[], []], (0,), (0, 3)),
}
HYBRID = {
    "hybrid": ([[2, 0, 2], [1, 1, 1]], (3, 2), (4, 3, 2)),
    "rows": ([[3, 0, 3]], (3, 3), (4, 3)),
    "cube": ([[1, 0, 1], [2, 1, 2], [0, 3, 1]], (3,), (2, 3, 4)),
    "hybrid empty": ([[], []], (0, 2), (4, 3, 2)),
}
DTYPES = ["float32", "float64", "complex64", "int64"]


def array(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.startswith("int"):
        return rng.integers(-5, 6, shape).astype(dtype)
    made = rng.standard_normal(shape)
    return (made + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else made).astype(dtype)


class Case:
    """The tensors of a comparison in one library: a sparse s with values v, another sparse r, dense ones."""

    def __init__(self, m, places, dtype, layout="coo"):
        self.m = m
        indices, values, shape = places
        inexact = not dtype.startswith("int")
        self.v = m.tensor(array(values, dtype), requires_grad=inexact)
        at = m.tensor(np.array(indices, np.int64).reshape(len(indices), -1))
        self.s = m.sparse_coo_tensor(at, self.v, shape)
        other = (np.arange(3)[None, :] * np.arange(1, len(indices) + 1)[:, None]) % np.maximum(
            np.array(shape[:len(indices)])[:, None], 1)
        if 0 in shape:
            other = other[:, :0]
        self.w = m.tensor(array((other.shape[1], *values[1:]), dtype, 1), requires_grad=inexact)
        self.r = m.sparse_coo_tensor(m.tensor(other), self.w, shape)
        if layout != "coo":
            self.s, self.r = (getattr(x, f"to_sparse_{layout}")() for x in (self.s, self.r))
        self.d = m.tensor(array(shape, dtype, 2), requires_grad=inexact)
        self.b = m.tensor(array((shape[1] if len(shape) > 1 else 1, 5), dtype, 3), requires_grad=inexact)
        self.a = m.tensor(array((5, shape[0]), dtype, 4), requires_grad=inexact)
        self.c = m.tensor(array((shape[0], 5), dtype, 5), requires_grad=inexact)
        self.x = m.tensor(array(shape[1] if len(shape) > 1 else 1, dtype, 6), requires_grad=inexact)
        self.index = m.tensor([1, 0, 1, 1] if shape[0] else np.zeros(0, np.int64))

    def leaves(self):
        return [x for x in (self.v, self.w, self.d, self.b, self.a, self.c, self.x) if x.requires_grad]


def full(m, x):
    return x if x.layout is m.strided else x.to_dense()


def values_of(case, expression):
    """The result's layout, dtype and shape, and the result as a dense tensor."""
    m = case.m
    found = eval(expression, {"m": m, **vars(case)})
    facts = [str(found.layout).split(".")[1], str(found.dtype).split(".")[1], tuple(found.shape)]
    return facts, full(m, found)


def gradients_of(case, result):
    """The gradients of all leaves."""
    if not result.requires_grad:
        return []
    result.backward(case.m.tensor(array(tuple(result.shape), str(result.dtype).split(".")[1], 9)))
    found = [(np.zeros(tuple(x.shape)) if x.grad is None else numbers(full(case.m, x.grad))) for x in case.leaves()]
    return found


def numbers(x):
    return x.detach().resolve_conj().numpy()


def oracle(places, dtype, layout, expression):
    """PyTorch's layout, values and gradients: where it has no gradient for sparse tensors, that of the same
    expression of dense ones."""
    with torch.no_grad():
        facts, values = values_of(Case(torch, places, dtype, layout), expression)
    try:
        case = Case(torch, places, dtype, layout)
        return facts, numbers(values), gradients_of(case, values_of(case, expression)[1])
    except (RuntimeError, IndexError):
        case = Case(torch, places, dtype, layout)
        case.s, case.r = case.s.to_dense(), case.r.to_dense()
        dense = expression
        for sparse_name, dense_name in DENSE.items():
            dense = dense.replace(sparse_name, dense_name)
        result = eval(dense, {"m": torch, **vars(case)})
        return facts, numbers(values), gradients_of(case, result)


# Functions of sparse tensors, and those of dense ones that have the same gradients.
DENSE = {"m.sparse.mm": "m.mm", "m.sparse.addmm": "m.addmm", "m.sparse.sum": "m.sum", "m.smm": "m.mm",
         "m.hspmm": "m.mm", "m.spmm": "m.mm", "m.sspaddmm": "m.addmm", ".coalesce()": ""}


def compare(tt, places, dtype, layout, expression):
    try:
        facts, values, gradients = oracle(places, dtype, layout, expression)
    except (RuntimeError, IndexError, TypeError) as error:
        return f"no oracle: {str(error)[:90]}"
    case = Case(tt, places, dtype, layout)
    ours, result = values_of(case, expression)
    assert ours == facts
    np.testing.assert_allclose(numbers(result), values, rtol=1e-5, atol=1e-5, err_msg="value")
    found = gradients_of(case, result)
    assert len(found) == len(gradients)
    for a, b in zip(found, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg="gradient")
    return None


MATRIX = """
    s; s.to_dense(); s.coalesce(); s @ b; a @ s; m.mm(s, b); m.sparse.mm(s, b); m.matmul(a, s); s @ x
    m.mv(s, x); m.sparse.mm(s, r.t()); s @ r.t(); m.addmm(c, s, b, beta=2, alpha=3)
    m.sparse.addmm(c, s, b, beta=3); s.t(); s.transpose(0, 1); s.permute(1, 0); s + r; s - r
    m.add(s, r, alpha=2); d + s; d - s; m.add(d, s, alpha=3); s * 2; 2 * s; s * r; -s; s.neg(); s.clone()
    s.sum(); m.sum(s, 0); m.sum(s, 1); m.sum(s, (0, 1)); m.sum(s, 0, keepdim=True); m.sparse.sum(s)
    m.sparse.sum(s, 1); s.unsqueeze(0); s.unsqueeze(-1); m.cat([s, r]); m.cat([s, r], 1); m.stack([s, r])
    m.narrow_copy(s, 1, 1, 2); m.narrow_copy(s, 1, 0, 1); m.narrow_copy(s, 0, 0, 0)
    s.index_select(0, index); s * d; d * s; s[1]; s.select(1, 2); m.smm(s, b); m.hspmm(s, b); m.spmm(s, b)
    s / 2; s ** 2; m.sparse.softmax(s, 0); m.sparse.softmax(s, 1); m.sparse.log_softmax(s, 1); s.sin()
    m.tanh(s); m.sqrt(s * s); s.relu(); m.abs(s); s.square(); s.expm1(); m.norm(s); s.sign(); m.zeros_like(s)
    d.sparse_mask(s.coalesce()); s.double(); s.to(m.complex128); s.to_sparse_csr(); s.to_sparse_csc()
    s.to_sparse_csr().to_dense(); d.to_sparse(); d.to_sparse_csr() @ b; m.sparse.mm(s, d.t()); s[1, 2]; s.T
    s.any(); m.nn.functional.linear(a, s.t()); s.sum(0, dtype=m.float64)
    m.sspaddmm(m.mm(s, r.t()), s, r.t().to_dense())
"""


def split(text):
    return [each.strip() for each in text.replace("\n", ";").split(";") if each.strip()]


def check(tt, places, dtype, layout, expressions, skipped=()):
    wrong = []
    for expression in expressions:
        if expression in skipped:
            continue
        try:
            why = compare(tt, places, dtype, layout, expression)
        except Exception as error:
            why = f"{type(error).__name__} {str(error)[:400]}"
        if why:
            wrong.append(f"{expression}: {why}")
    assert not wrong, f"{len(wrong)} of {len(expressions)}:\n" + "\n\n".join(wrong)


# Expressions that PyTorch cannot compute, or whose gradient it does not have.
SOFTMAX = {"m.sparse.softmax(s, 0)", "m.sparse.softmax(s, 1)", "m.sparse.log_softmax(s, 1)"}
MISSING = {
    "complex64": SOFTMAX | {"s.relu()", "s.sign()", "s.to_sparse_csr()", "s.to_sparse_csc()",
                            "s.to_sparse_csr().to_dense()", "d.to_sparse()", "d.to_sparse_csr() @ b"},
    "int64": SOFTMAX | {"m.sparse.mm(s, r.t())", "s @ r.t()", "m.norm(s)", "d.to_sparse_csr() @ b",
                        "m.sspaddmm(m.mm(s, r.t()), s, r.t().to_dense())"},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("places", PLACES)
def test_matrices(tt, places, dtype):
    skipped = MISSING.get(dtype, set()) | ({"s[1]", "s[1, 2]"} if places == "no rows" else set())
    check(tt, PLACES[places], dtype, "coo", split(MATRIX), skipped)


TENSORS = """
    s; s.to_dense(); s.coalesce(); s + r; s - r; m.add(s, r, alpha=2); d + s; s * 2; s * r; -s; s.sum()
    m.sum(s, 0); s.sum((0, 1)); m.sum(s, -1); m.sum(s, (0, -1)); m.sum(s, 1, keepdim=True); s.unsqueeze(0)
    s.unsqueeze(1); s.unsqueeze(-1); m.cat([s, r]); m.cat([s, r], 1); m.cat([s, r], -1); m.stack([s, r])
    s.index_select(0, index); s.index_select(-1, index); s * d; s[1]; s.select(-1, 1); s / 2; s.sin()
    m.sparse.softmax(s, 0); m.norm(s); m.sparse.softmax(s, 1); m.sparse.log_softmax(s, s.dim() - 1)
    m.zeros_like(s); d.sparse_mask(s.coalesce()); s.clone(); d.to_sparse(1); d.to_sparse(2); s.transpose(0, 1)
    s ** 2; d.to_sparse()
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("places", HYBRID)
def test_hybrid_tensors(tt, places, dtype):
    skipped = {"s.transpose(0, 1)", "d.to_sparse(2)", "s.unsqueeze(1)"}
    check(tt, HYBRID[places], dtype, "coo", split(TENSORS), skipped if places == "rows" else set())


COMPRESSED = """
    s; s.to_dense(); s @ b; a @ s; s @ x; m.mm(s, b); m.sparse.mm(s, b); m.sparse.mm(s, r.t()); s @ r.t()
    m.addmm(c, s, b, beta=2, alpha=3); s.t(); s.transpose(0, 1); s + r; s - r; m.add(s, r, alpha=2); s * 2; -s
    s.clone(); s.sum(); m.sum(s, 0, keepdim=True); m.sum(s, 1, keepdim=True); s * d; s / 2; s.sin(); s.relu()
    m.abs(s); s * r; s.to_sparse(); s.to_sparse_coo(); s.to_sparse_csr(); s.to_sparse_csc()
    s.to_sparse(layout=m.sparse_csc); s[0]; m.sparse.sampled_addmm(s, c, b.t(), beta=2, alpha=3)
    m.zeros_like(s); s.double(); s.to(m.complex128); d + s; s + d
"""

MISSING_COMPRESSED = {
    "csr": {"m.sparse.mm(s, r.t())", "s - r", "s / 2"},
    "csc": {"s + r", "s - r", "m.add(s, r, alpha=2)", "m.sum(s, 0, keepdim=True)", "m.sum(s, 1, keepdim=True)", "s * d",
            "s / 2", "s * r", "m.sparse.sampled_addmm(s, c, b.t(), beta=2, alpha=3)"},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("places", [name for name in PLACES if name != "no rows"])
def test_compressed_matrices(tt, places, layout, dtype):
    check(tt, PLACES[places], dtype, layout, split(COMPRESSED), MISSING_COMPRESSED[layout])


LEAVES = """
    m.sparse.mm(s, d).sum(); (s @ d).pow(2).sum(); s.to_dense().pow(2).sum(); m.sparse.sum(s * 3)
    (d.t() @ s).sum(); m.sparse.mm(s, s).to_dense().pow(2).sum(); s.coalesce().values().pow(2).sum()
    m.sparse.softmax(s, 1).to_dense().sin().sum(); (s.t() @ d).sin().sum()
    m.sparse.sum(s, 0).to_dense().pow(2).sum(); (s + s).to_dense().pow(2).sum(); s.clone().to_dense().sum()
    s.to(m.float64).to_dense().pow(2).sum(); m.addmm(d, s, d).sum()
"""


@pytest.mark.parametrize("name", ["coalesced", "repeated"])
@pytest.mark.parametrize("expression", split(LEAVES))
def test_gradients_of_leaves(tt, name, expression):
    """A sparse leaf gets a sparse gradient at its places, each of them once; two backwards add up."""
    found = []
    for m in (torch, tt):
        indices = {"coalesced": [[0, 1, 3], [2, 0, 1]], "repeated": [[3, 1, 3], [1, 2, 1]]}[name]
        s = m.sparse_coo_tensor(indices, [3.0, 4.0, 5.0], (4, 4), requires_grad=True)
        d = m.tensor(array((4, 4), "float32"), requires_grad=True)
        assert s.is_leaf and s.requires_grad and s.grad is None
        for _ in range(2):
            eval(expression, {"m": m, "s": s, "d": d}).backward()
        assert m is torch or s.grad.layout is m.sparse_coo  # PyTorch makes some gradients dense
        given = m.sparse_coo_tensor(indices, [1.0] * 3, (4, 4)).to_dense().numpy() != 0
        found.append((s.grad.to_dense().numpy()[given], None if d.grad is None else d.grad.numpy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4)
    if found[0][1] is not None:
        np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradients_as_results(tt, layout):
    """autograd.grad of a sparse tensor is sparse."""
    found = []
    for m in (torch, tt):
        s = m.sparse_coo_tensor([[0, 1, 3], [2, 0, 1]], [3.0, 4.0, 5.0], (4, 4))
        s = (s.to_sparse_csr() if layout == "csr" else s.coalesce()).requires_grad_()
        d = m.tensor(array((4, 4), "float32"), requires_grad=True)
        g, e = m.autograd.grad(m.sparse.mm(s, d).sum(), (s, d))
        found.append((repr(g), e.numpy()))
        assert len(m.autograd.grad((s @ d).sum(), s)) == 1
    assert found[1][0].replace("teletensor.", "torch.").split() == found[0][0].split()
    np.testing.assert_allclose(found[1][1], found[0][1])


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_products_with_a_reduction(tt, reduce):
    found = []
    for m in (torch, tt):
        s = m.sparse_csr_tensor([0, 2, 2, 5], [0, 2, 0, 1, 2], m.tensor(array(5, "float32")), (3, 3)).requires_grad_()
        d = m.tensor(array((3, 4), "float32", 1), requires_grad=True)
        result = m.sparse.mm(s, d, reduce)
        result.sin().sum().backward()
        found.append([result.detach().numpy(), s.grad.to_dense().numpy(), d.grad.numpy()])
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for call in (lambda: tt.sparse.mm(s, d, "other"), lambda: tt.sparse.mm(d, s, "mean")):
        with pytest.raises((ValueError, RuntimeError)):
            call()


FACTS = """
    s.shape; s.dtype; s.layout; s.is_sparse; s.is_sparse_csr; s.dim(); s.ndim; s.numel(); s.size(1); len(s)
    s._nnz(); s.sparse_dim(); s.dense_dim(); s.is_coalesced(); s.coalesce().is_coalesced(); s.requires_grad
    s.is_leaf; s; s._indices(); s._values(); s.coalesce().indices(); s.coalesce().values(); s.element_size()
    s.is_floating_point(); s.is_complex(); s.t(); s.to_sparse_csr(); s.to_sparse_csc(); s.double(); s.clone()
    s.detach(); (s * 2).is_coalesced(); s.t().is_coalesced(); (s.coalesce() + s.coalesce()).is_coalesced()
    m.sparse_coo_tensor(size=(2, 3)); m.sparse_coo_tensor((2, 0)); m.sparse_coo_tensor([[0]], [True], (2,))
    m.sparse_coo_tensor([[0, 1]], [1, 2]); m.sparse_coo_tensor([[0, 1]], [1.5, 2], (3,), dtype=m.float64)
    m.sparse_coo_tensor([[0]], [[1.0, 2.0]], (2, 2))
    m.sparse_coo_tensor([[0]], [1.0], (2,), requires_grad=True)
    m.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0])
    m.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 3)).crow_indices(); m.eye(3).to_sparse()
    m.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 3)).col_indices()
    m.eye(2).to_sparse_csr().is_sparse; m.sparse_csc_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2))
    m.eye(2).to_sparse_csr().t().layout
    m.sparse_csc_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2)).ccol_indices()
    m.eye(2).to_sparse_csr().is_sparse_csr; m.ones(3).sparse_dim(); m.ones(3).dense_dim()
    m.ones(2, 3).to_sparse(1); m.arange(4).to_sparse(); m.tensor(3.0).to_sparse(); m.tensor(0.0).to_sparse()
    m.ones(2, 2).is_sparse; m.ones(2).layout; m.randn(50, 40).to_sparse()._nnz()
    m.sparse_compressed_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), layout=m.sparse_csr); m.sparse_bsr
    m.sparse.spdiags(m.ones(2, 3), m.tensor([0, 1]), (3, 4)).to_dense()
    m.arange(4000).reshape(40, 100).to_sparse()
    m.sparse.spdiags(m.arange(6).reshape(2, 3), m.tensor([-1, 2]), (4, 3), m.sparse_csr).to_dense()
    [x.to_dense() for x in s]; m.numel(s); m.is_complex(s); s.is_same_size(s.t()); s.to(m.float32) is s
    m.is_floating_point(s); s.is_cuda; s.is_quantized; s.is_contiguous()
    m.sparse.check_sparse_tensor_invariants.is_enabled()
"""


@pytest.mark.parametrize("expression", split(FACTS))
def test_facts(tt, expression):
    """Sparse tensors have PyTorch's attributes, and are printed as PyTorch prints them."""
    found = []
    for m in (torch, tt):
        s = m.sparse_coo_tensor([[3, 1, 3], [1, 2, 1]], [3.0, 4.25, 5.0], (4, 3))
        value = eval(expression, {"m": m, "s": s})
        _core.set_text_prefix("torch")  # the length of the prefix decides where a line ends
        try:
            found.append(repr(value))
        finally:
            _core.set_text_prefix("teletensor")
    assert found[1].replace("teletensor.", "torch.") == found[0]


ERRORS = """
    m.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0], (2, 3))
    m.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2,))
    m.sparse_coo_tensor([[0, 1, -1], [2, 0, 2]], [3.0, 4.0, 5.0])
    m.sparse_coo_tensor([[0, 1]], m.ones(2, 5), (2, 4))
    m.sparse_coo_tensor([[0, 5], [2, 0]], [3.0, 4.0], (2, 3), check_invariants=True)
    m.sparse_coo_tensor([[0, -5], [2, 0]], [3.0, 4.0], (2, 3), check_invariants=True)
    m.sparse_csr_tensor([0, 1, 4], [2, 0, 2], [1.0, 2.0, 3.0], (2, 3), check_invariants=True)
    m.sparse_csr_tensor([1, 1, 3], [2, 0, 2], [1.0, 2.0, 3.0], (2, 3), check_invariants=True)
    m.sparse_csr_tensor([0, 1, 3], [2, 0, 5], [1.0, 2.0, 3.0], (2, 3), check_invariants=True); u.indices()
    u.values(); u + d; u - d; u + 1; u / d; m.ones(2).coalesce(); m.ones(2).is_coalesced()
    m.ones(2).crow_indices(); u.crow_indices(); c.indices(); c.coalesce(); u.numpy(); bool(u); u.item()
    c.sum(0); m.cat([u, d]); m.stack([u, d]); u @ m.ones(4, 2); u.reshape(6); u.exp(); m.exp(u); u.max()
    u.sigmoid(); u == u; u.view(6); u[5]; u[0, 0, 0]; c.exp(); u.mean(); u.backward(); u.grad.foo
    m.sparse.sum(d); u.sum(5); u.transpose(0, 5); u.select(0, 9); u[0:1]; 2 ** u; m.sparse.softmax(d, 0)
    m.softmax(u, 0); m.sparse.sampled_addmm(u, d, d.t()); m.sparse_coo_tensor([[0.5]], [1.0], (2,)).foo
    m.ones(2, 2).to_sparse(3); m.ones(2).to_sparse_csr(); d.sparse_mask(d); d.add_(u.t()); m.addmm(d, u, d)
"""


@pytest.mark.parametrize("expression", split(ERRORS))
def test_errors(tt, expression):
    """Mistakes that PyTorch refuses, too."""
    for m in (torch, tt):
        u = m.sparse_coo_tensor([[0, 0, 1], [2, 2, 1]], [3.0, 4.0, 5.0], (2, 3))
        with pytest.raises((RuntimeError, TypeError, IndexError, AttributeError, ValueError)):
            eval(expression, {"m": m, "u": u, "c": u.to_sparse_csr(), "d": m.ones(2, 3)})


@pytest.mark.parametrize("make", [
    lambda: torch.sparse_coo_tensor([[3, 1, 3], [1, 2, 1]], [3.0, 4.0, 5.0], (4, 3), requires_grad=True),
    lambda: torch.eye(3).to_sparse(), lambda: torch.ones(2, 3, dtype=torch.bfloat16).to_sparse(1),
    lambda: torch.eye(3, 4).to_sparse_csr(), lambda: torch.eye(3, 4, dtype=torch.complex64).to_sparse_csc(),
    lambda: torch.eye(4).to_sparse_bsr((2, 2)), lambda: torch.eye(4, 6).to_sparse_bsc((2, 3)),
    lambda: torch.stack([torch.eye(2), torch.eye(2) * 2]).to_sparse_csr().requires_grad_(),
    lambda: torch.eye(4).expand(2, 3, 4, 4).to_sparse_bsc((2, 1)),
])
def test_conversion(tt, make):
    """from_torch and to_torch keep layout, indices, order and requires_grad."""
    theirs = make()
    there = tt.from_torch({"x": [theirs]})["x"][0]
    back = tt.to_torch((there,))[0]
    assert repr(back) == repr(theirs)
    assert there.layout is getattr(tt, str(theirs.layout).split(".")[1]) and there.requires_grad == theirs.requires_grad


def test_a_layout_that_cannot_be_converted(tt):
    with pytest.raises(TypeError, match="torch._mkldnn and shape .* is not supported; convert its to_dense"):
        tt.from_torch(torch.ones(2, 2).to_mkldnn())


def steps(rng, shape):
    """Random (sparse form, dense form) pairs of functions for a sparse matrix of this shape."""
    rows, columns = shape
    index = rng.integers(0, rows, 3)
    factor = array(shape, "float64", int(rng.integers(100)))
    other = array((columns, rows), "float64", int(rng.integers(100)))
    return [
        lambda m, x: x + x, lambda m, x: x * -1.5, lambda m, x: x.t(), lambda m, x: m.cat([x, x], 0),
        lambda m, x: m.cat([x, x * 2], 1), lambda m, x: x * m.tensor(factor), lambda m, x: x * x,
        lambda m, x: x.index_select(0, m.tensor(index)), lambda m, x: x.sum(0, keepdim=True), lambda m, x: x - x * 3,
        lambda m, x: x.unsqueeze(0)[0], lambda m, x: m.stack([x, x])[1], lambda m, x: x @ x.t(), lambda m, x: x.sin(),
        lambda m, x: x.to_sparse_csr().to_sparse() if x.layout is m.sparse_coo else x, lambda m, x: x.permute(1, 0),
        lambda m, x: x.coalesce() if x.layout is m.sparse_coo else x, lambda m, x: m.mm(x, x.t()),
        lambda m, x: (x @ m.tensor(other)).to_sparse() if x.layout is m.sparse_coo else x @ m.tensor(other),
        lambda m, x: x.to_sparse_csc().t().to_sparse() if x.layout is m.sparse_coo else x.t(), lambda m, x: x.square(),
    ]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(tt, seed):
    """A random program of sparse tensors here, and of dense ones in PyTorch: the same values and gradients."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 6, 2))
    count = int(rng.integers(0, 9))
    indices = np.stack([rng.integers(0, n, count) for n in shape])
    data = array(count, "float64", seed) / 3
    v, w = tt.tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    ours = tt.sparse_coo_tensor(tt.tensor(indices), v, shape)
    theirs = torch.sparse_coo_tensor(torch.tensor(indices), w, shape).to_dense()
    for _ in range(5):
        choices = steps(rng, tuple(theirs.shape))
        step = choices[int(rng.integers(len(choices)))]
        ours, theirs = step(tt, ours), step(torch, theirs)
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours.detach().to_dense().numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-9)
        if theirs.numel() > 500 or theirs.abs().max() > 1e6:
            break
    ours.to_dense().sin().sum().backward()
    theirs.sin().sum().backward()
    np.testing.assert_allclose(v.grad.numpy(), w.grad.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layout", ["sparse_bsr", "sparse_bsc"])
@pytest.mark.parametrize("block", [(2, 3), (2, 2), (1, 1), (4, 6)], ids=str)
def test_matrices_of_blocks(tt, layout, block):
    """Facts are PyTorch's, and values and gradients are those of dense matrices, because PyTorch multiplies
    square blocks only."""
    given = array((4, 6), "float64") * np.kron([[1, 0], [0, 1]], np.ones((2, 3)))
    found = []
    for m in (torch, tt):
        x = m.tensor(given, requires_grad=True)
        s = getattr(x, f"to_{layout}")(block)
        own = s.detach()
        parts = [own.crow_indices(), own.col_indices()] if layout == "sparse_bsr" else [
            own.ccol_indices(), own.row_indices()]
        made = getattr(m, f"{layout}_tensor")(*parts, own.values(), (4, 6))
        again = own.to_sparse().to_sparse(layout=getattr(m, layout), blocksize=block)
        found.append([repr(own).replace("torch.", "teletensor.").split(), repr(made) == repr(own), own.values().numpy(),
                      (own * 2).to_dense().numpy(), own.transpose(0, 1).values().numpy(), again.values().numpy(),
                      str(own.transpose(0, 1).layout).split(".")[1], own.sum().numpy(), own.sparse_dim(),
                      own.dense_dim(), tuple(own.to_sparse().shape), tuple(own.shape), str(own.float().dtype)[-7:]])
        c, b, a = (m.tensor(array(shape, "float64", i), requires_grad=True)
                   for i, shape in enumerate([(4, 5), (6, 5), (3, 4)]))
        w = s if m is tt else x
        outputs = [w @ b, a @ w, m.addmm(c, w, b, beta=2, alpha=3), m.nn.functional.linear(b.t(), w), w @ b[:, 0],
                   (w * m.tensor(given) if m is torch else (w * m.tensor(given)).to_dense()),
                   w.sin() if m is torch else w.sin().to_dense(), s.to_dense() if m is tt else x]
        sum((each * each).sum() for each in outputs).backward()
        inside = own.to_dense().numpy() != 0
        found[-1] += [each.detach().numpy() for each in outputs]
        found[-1] += [x.grad.numpy()[inside], *(each.grad.numpy() for each in (a, b, c))]
    for ours, theirs in zip(found[1], found[0], strict=True):
        if isinstance(theirs, np.ndarray):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        else:
            assert ours == theirs


def batch(dtype, shape):
    """A dense batch [*shape, 4, 6] whose matrices have the same number of blocks of 2 x 3 and of elements."""
    made = array((*shape, 4, 6), dtype)
    made[made == 0] = 7
    kept = np.zeros((*shape, 2, 2), bool)
    for i, place in enumerate(np.ndindex(*shape)):
        kept[place].ravel()[[i % 4, (i + 1 + i % 3) % 4]] = True
    return made * np.kron(kept, np.ones((2, 3), bool)).reshape(made.shape)


def facts_of(m, s, layout):
    by_column = layout in ("sparse_csc", "sparse_bsc")
    starts, others = ("ccol_indices", "row_indices") if by_column else ("crow_indices", "col_indices")
    starts, others = getattr(s, starts)(), getattr(s, others)()
    made = m.sparse_compressed_tensor(starts, others, s.values(), tuple(s.shape), layout=getattr(m, layout))
    turned = s.transpose(-2, -1)
    text = "" if s.is_complex() else repr(made).replace("torch.", "teletensor.").split()
    return [starts.numpy(), others.numpy(), s.values().numpy(), made.to_dense().numpy(), text,
            tuple(s.shape), s.sparse_dim(), s.dense_dim(), s._nnz(), s.to_dense().numpy(), s.sum().numpy(),
            s.to_sparse().to_dense().numpy(), s.to_sparse().sparse_dim(), str(turned.layout).split(".")[1],
            tuple(turned.shape), turned.to_dense().numpy(), tuple(s[1].shape), s[1].to_dense().numpy(),
            str(s[1].layout).split(".")[1], (s * 2).to_dense().numpy(), str((-s).layout).split(".")[1],
            s.sin().values().numpy(), s.clone().values().numpy(), str(s.double().dtype)[-7:]]


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
@pytest.mark.parametrize("shape", [(2,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_batches_of_matrices(tt, layout, shape, dtype):
    """Facts and conversions are PyTorch's."""
    given = batch(dtype, shape)
    options = [(2, 3)] if layout in ("sparse_bsr", "sparse_bsc") else []
    found = []
    for m in (torch, tt):
        s = getattr(m.tensor(given), f"to_{layout}")(*options)
        found.append(facts_of(m, s, layout))
        if options:
            hybrid = m.tensor(array((*shape, 4, 6, 2), dtype)).to_sparse(layout=getattr(m, layout), blocksize=(2, 3),
                                                                        dense_dim=1)
        else:
            hybrid = m.tensor(array((*shape, 4, 6, 2), dtype)).to_sparse(layout=getattr(m, layout), dense_dim=1)
            other = "csc" if layout == "sparse_csr" else "csr"
            found[-1] += [getattr(s, f"to_sparse_{other}")().values().numpy(), (s + s).to_dense().numpy(),
                          m.zeros_like(s).to_dense().numpy(), m.tensor(given).sparse_mask(s).values().numpy()]
        found[-1] += [tuple(hybrid.values().shape), hybrid.dense_dim(), hybrid.to_dense().numpy(), tuple(hybrid.shape)]
    for ours, theirs in zip(found[1], found[0], strict=True):
        if isinstance(theirs, np.ndarray):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        else:
            assert ours == theirs


@pytest.mark.parametrize("shape", [(2,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_products_of_batches(tt, layout, shape):
    """Values and gradients are those of PyTorch's dense matrices: its sparse batches have no products."""
    given = batch("float64", shape)
    found = []
    for m in (torch, tt):
        x, b, v, a, few = (m.tensor(value, requires_grad=True) for value in (
            given, array((*shape, 6, 5), "float64", 1), array(6, "float64", 2), array((*shape, 3, 4), "float64", 3),
            array((6, 2), "float64", 4)))
        s = x if m is torch else x.to_sparse(layout=getattr(tt, layout), blocksize=(2, 3))
        outputs = [s @ b, a @ s, s @ v, s @ few, s.transpose(-2, -1) @ a.transpose(-2, -1), full(m, s * x.detach()),
                   full(m, s[1]), full(m, s.sin()), full(m, s)]
        if len(shape) == 1:
            outputs += [m.bmm(s, b), m.bmm(a, s)]
        sum((each * each).sum() for each in outputs).backward()
        inside = given != 0
        found.append([each.detach().numpy() for each in outputs])
        found[-1] += [x.grad.numpy()[inside], *(each.grad.numpy() for each in (b, v, a, few))]
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_sampled_products_of_batches(tt):
    given, found = batch("float64", (3,)), []
    for m in (torch, tt):
        x = m.tensor(given)
        a, b = (m.tensor(array(shape, "float64", i), requires_grad=True)
                for i, shape in enumerate([(3, 4, 5), (3, 5, 6)]))
        made = m.sparse.sampled_addmm(x.to_sparse_csr(), a, b, beta=2, alpha=3).to_dense().detach()
        if m is torch:  # PyTorch has no gradients of it for batches.
            ((2 * x + 3 * a @ b) * (x != 0)).sin().sum().backward()
        else:
            m.sparse.sampled_addmm(x.to_sparse_csr(), a, b, beta=2, alpha=3).values().sin().sum().backward()
        found.append([made.numpy(), a.grad.numpy(), b.grad.numpy()])
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_gradients_of_leaves_of_batches(tt):
    v = tt.tensor(array((2, 3), "float64"))
    s = tt.sparse_csr_tensor([[0, 1, 3], [0, 2, 3]], [[2, 0, 1], [0, 2, 2]], v, (2, 2, 3), requires_grad=True)
    (s @ tt.ones(2, 3, 4, dtype=tt.float64)).sum().backward()
    assert s.grad.layout is tt.sparse_csr and tuple(s.grad.shape) == (2, 2, 3)
    np.testing.assert_array_equal(s.grad.values().numpy(), np.full((2, 3), 4.0))
