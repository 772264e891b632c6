"""Sparse tensors: what bad input does, what waits, and how functions of the package reach their sparse forms."""

import copy
import io
import pickle

import pytest


@pytest.fixture
def s(tt):
    return tt.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3))


# Indices of tensors are not read when the tensor is made: what uses one that is out of range fails.
OUTSIDE = [[[0, 2], [0, 0]], [[0, 0], [0, 3]], [[0, -1], [0, 0]], [[0, 0], [0, -1]], [[0, 2**40], [0, 0]]]
USES = {
    "to_dense": lambda tt, s: s.to_dense(),
    "mm": lambda tt, s: s @ tt.ones(3, 2),
    "left": lambda tt, s: tt.ones(4, 2) @ s,
    "coalesce": lambda tt, s: s.coalesce(),
    "sum": lambda tt, s: s.sum(0),
    "softmax": lambda tt, s: tt.sparse.softmax(s, 1),
    "mul": lambda tt, s: (s * tt.ones(2, 3))._values(),
    "broadcast": lambda tt, s: (s * tt.ones(1, 3))._values(),
    "csr": lambda tt, s: s.to_sparse_csr(),
    "add": lambda tt, s: tt.ones(2, 3) + s,
    "transposed": lambda tt, s: s.t().to_dense(),
    "joined": lambda tt, s: tt.cat([s, s]).to_dense(),
    "product": lambda tt, s: s @ s.t(),
}


@pytest.mark.parametrize("places", OUTSIDE, ids=str)
@pytest.mark.parametrize("use", USES)
def test_indices_out_of_range_are_errors(tt, use, places):
    s = tt.sparse_coo_tensor(tt.tensor(places), tt.ones(2), (2, 3))
    with pytest.raises((IndexError, RuntimeError), match="out of range|out of bounds|inconsistent|negative"):
        found = USES[use](tt, s)
        (found.to_dense() if isinstance(found, tt.sparse.SparseTensor) else found).numpy()
    assert tt.ones(2).sum().item() == 2  # the session is as it was


# (starts, columns) of a CSR matrix of shape (2, 3) with 3 values
WRONG = [([0, 1, 4], [0, 1, 2]), ([1, 1, 3], [0, 1, 2]), ([0, 5, 3], [0, 1, 2]), ([0, 1, 2], [0, 1, 2]),
         ([0, -1, 3], [0, 1, 2]), ([0, 1, 3], [0, 1, 3]), ([0, 1, 3], [0, -1, 2])]


@pytest.mark.parametrize("starts, columns", WRONG)
def test_compressed_parts_that_do_not_fit_are_errors(tt, starts, columns):
    with pytest.raises(RuntimeError, match="is not satisfied"):
        tt.sparse_csr_tensor(starts, columns, [1.0, 2.0, 3.0], (2, 3))
    parts = tt.tensor(starts), tt.tensor(columns), tt.ones(3)
    with pytest.raises(RuntimeError, match="is not satisfied"):
        tt.sparse_csr_tensor(*parts, (2, 3), check_invariants=True)
    late = tt.sparse_csr_tensor(*parts, (2, 3))
    batch = tt.sparse_csr_tensor(*(tt.stack([part, part]) for part in parts), (2, 2, 3))
    with pytest.raises((IndexError, RuntimeError), match="out of range|out of bounds"):
        batch.to_dense().numpy()
    with pytest.raises((IndexError, RuntimeError), match="out of range|out of bounds"):
        (batch @ tt.ones(2, 3, 2)).numpy()
    for use in (lambda: late.to_dense(), lambda: late @ tt.ones(3, 2), lambda: late.t().to_dense()):
        with pytest.raises((IndexError, RuntimeError), match="out of range|out of bounds"):
            use().numpy()


@pytest.mark.parametrize("make, text", [
    (lambda tt: tt.sparse_coo_tensor([[0.5], [1.0]], [1.0], (2, 2)), "indices must be integers"),
    (lambda tt: tt.sparse_coo_tensor(tt.ones(2, 1), [1.0], (2, 2)), "indices must be integers, got float32"),
    (lambda tt: tt.sparse_coo_tensor(tt.ones(2, 1, dtype=tt.bool), [1.0], (2, 2)), "must be integers, got bool"),
    (lambda tt: tt.sparse_coo_tensor([0, 1], [1.0, 2.0], (2,)), "indices must have 2 dimensions, got 1"),
    (lambda tt: tt.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (2,)), "size is 2 but found index 2"),
    (lambda tt: tt.sparse_coo_tensor([[0, -2]], [1.0, 2.0], (2,)), "found negative index -2 for dim 0"),
    (lambda tt: tt.sparse_coo_tensor([[0, 1]], [1.0], (2,)), "must have same nnz"),
    (lambda tt: tt.sparse_coo_tensor([[0]], 1.0, (2,)), "must have same nnz"),
    (lambda tt: tt.sparse_coo_tensor([[0]], [1.0], (-2,)), "negative dimension -2"),
    (lambda tt: tt.sparse_coo_tensor([[0]], [1.0], (2, 2)), r"len\(size\) == sparse_dim \+ dense_dim"),
    (lambda tt: tt.sparse_coo_tensor([[0]]), "needs a size, or indices and values"),
    (lambda tt: tt.sparse_coo_tensor([[0], [0]], [1.0], (2**40, 2**40)).to_dense(), "overflow"),
    (lambda tt: tt.sparse_coo_tensor([[0]], [1], (2,), requires_grad=True), "floating"),
    (lambda tt: tt.sparse_csr_tensor([0.0, 1], [0], [1.0], (1, 1)), "crow_indices must be integers"),
    (lambda tt: tt.sparse_csr_tensor(0, [0], [1.0], (1, 1)), "crow_indices must have 1 dimension, got 0"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1]], [0], [[1.0]], (1, 1, 1)), "col_indices must have 2 dimensions, got 1"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1]], [[0]], [1.0], (1, 1, 1)), "must have the same length and the batch"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1]] * 2, [[0]], [[1.0]], (2, 1, 1)), "the batch of crow_indices"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1]], [[0]], [[1.0]], (2, 1, 1)), r"=1 \+ 2 \+ 0\) but got size \[2, 1, 1\]"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1]], [[0]], [[1.0]], (1, 1)), "tensor dimensionality"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1]] * 2, [[0], [3]], [[1.0]] * 2, (2, 1, 3)), "0 <= col_indices < 3"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1], [1, 1]], [[0], [1]], [[1.0]] * 2, (2, 1, 3)), r"\[..., 0\] == 0"),
    (lambda tt: tt.sparse_csr_tensor([[0, 1], [0, 0]], [[0], [1]], [[1.0]] * 2, (2, 1, 3)), r"\[..., -1\] == nnz"),
    (lambda tt: tt.sparse_csc_tensor([[0, 2]] * 2, [[0, 1], [1, 0]], [[1.0] * 2] * 2, (2, 3, 1)), "sorted and dist"),
    (lambda tt: tt.sparse_bsr_tensor([[0, 1]], [[0]], [[[1.0]]], (1, 1, 1)), r"blocks \[nnz, height, width\]"),
    (lambda tt: tt.sparse_csr_tensor([0, 1], [0], [1.0, 2.0], (1, 1)), "must have the same length"),
    (lambda tt: tt.sparse_csr_tensor([0, 1], [0], [1.0], (3, 1)), "must be equal to the number of rows"),
    (lambda tt: tt.sparse_csr_tensor([0, 1], [0], [1.0], (1,)), "tensor dimensionality"),
    (lambda tt: tt.sparse_compressed_tensor([0, 1], [0], [1.0], (1, 1)), "layout None is not supported"),
    (lambda tt: tt.sparse_bsr_tensor([0, 1], [0], [1.0], (1, 1)), r"blocks \[nnz, height, width\]"),
    (lambda tt: tt.sparse_bsr_tensor([0, 1], [0], [[[1.0, 2.0]]], (1, 3)), "divisible by the blocks' size"),
    (lambda tt: tt.sparse_bsr_tensor([0, 1], [2], [[[1.0, 2.0]]], (1, 4)), "0 <= col_indices < 2"),
    (lambda tt: tt.sparse_bsc_tensor([0, 2], [0], [[[1.0, 2.0]]], (1, 2)), "ccol_indices.* == nnz"),
    (lambda tt: tt.ones(2, 2).to_sparse(layout=tt.sparse_bsr), "blocksize needs to be a tuple of size 2"),
    (lambda tt: tt.ones(2, 3).to_sparse_bsr((2, 2)), "must be divisible by given blocksize"),
    (lambda tt: tt.ones(2, 3).to_sparse_bsr((0, 1)), "blocksize needs to be positive"),
    (lambda tt: tt.ones(2).to_sparse_bsr((1, 1)), "expected a matrix, got 1 dimensions"),
    (lambda tt: tt.ones(2, 3, 4).to_sparse_bsr((1, 1), dense_dim=2), "expected a matrix, got 3 dimensions"),
    (lambda tt: tt.ones(2, 3).to_sparse_csr(dense_dim=1), "needs a matrix, got 2 dimensions of which 1 are dense"),
    (lambda tt: tt.stack([tt.ones(2, 2), tt.eye(2)]).to_sparse_csr(), "same number of specified elements per batch"),
    (lambda tt: tt.stack([tt.ones(2, 2), tt.eye(2)]).to_sparse_bsc((1, 1)), "same number of specified elements"),
    (lambda tt: tt.ones(0, 2, 3).to_sparse_csr(), "batch dimensions to be non-zero"),
    (lambda tt: tt.ones(2, 2, 3).to_sparse_csr() @ tt.ones(2, 4, 5), "shapes cannot be multiplied"),
    (lambda tt: tt.ones(2, 2, 3).to_sparse_csr() @ tt.ones(3, 3, 5), "not broadcastable|do not fit|broadcast"),
    (lambda tt: tt.bmm(tt.ones(2, 2, 3).to_sparse_csr(), tt.ones(3, 5)), "do not fit"),
    (lambda tt: tt.bmm(tt.ones(2, 2, 3).to_sparse_csr(), tt.ones(2, 3, 2).to_sparse_csr()), "one must be dense"),
    (lambda tt: tt.ones(2, 2, 3).to_sparse_csr().t(), r"t\(\) expects"),
    (lambda tt: tt.ones(2, 2, 3).to_sparse_bsr((1, 1)).t(), r"t\(\) expects"),
    (lambda tt: tt.ones(2, 2, 3).to_sparse_bsr((1, 1)).transpose(0, 1), "only the dimensions 1 and 2"),
    (lambda tt: tt.ones(2, 2).to_sparse_bsr((1, 2)) + tt.ones(2, 2), "no form for sparse tensors"),
])
def test_bad_parts(tt, make, text):
    with pytest.raises((RuntimeError, TypeError), match=text):
        make(tt)


@pytest.mark.parametrize("call", [
    lambda tt, s: s.exp(), lambda tt, s: tt.exp(s), lambda tt, s: tt.softmax(s, 1), lambda tt, s: s.sort(),
    lambda tt, s: tt.nn.functional.gelu(s), lambda tt, s: tt.linalg.inv(s), lambda tt, s: s > s,
    lambda tt, s: tt.where(s, s, s), lambda tt, s: s[0:1], lambda tt, s: tt.nn.Softmax(1)(s), lambda tt, s: s.mean(),
    lambda tt, s: tt.tensor(s), lambda tt, s: tt.equal(s, s),
])
def test_what_has_no_sparse_form_says_so(tt, s, call):
    with pytest.raises(NotImplementedError, match=r"to_dense\(\)"):
        call(tt, s)


def test_functions_and_operators_reach_the_sparse_forms(tt, s):
    dense = tt.ones(3, 2)
    for product in (tt.mm(s, dense), tt.matmul(s, dense), s @ dense,
                    tt.spmm(s, dense), tt.sparse.mm(s, dense), (dense.t() @ s.t()).t(), tt.mm(input=s, mat2=dense)):
        assert product.tolist() == [[3, 3], [9, 9]]
    assert (tt.ones(2, 3) + s).tolist() == [[1, 1, 4], [5, 1, 6]]
    assert tt.cat([s, s]).to_dense().shape == (4, 3)
    with pytest.raises(NotImplementedError, match="out= is not supported"):
        tt.mm(s, dense, out=tt.empty(2, 2))
    with pytest.raises(TypeError, match="unsupported operand"):
        s + "text"


def test_a_sparse_tensor_is_added_to_a_dense_one_in_place(tt, s):
    x = tt.zeros(2, 3)
    view = x[1]
    x += s
    x.add_(s, alpha=2)
    x -= s
    assert view.tolist() == [8, 0, 10]
    with pytest.raises(RuntimeError, match="same size"):
        x += s.t()
    with pytest.raises(NotImplementedError, match="mul_"):
        x *= s


def test_in_place_changes_of_sparse_tensors(tt, s):
    other = s
    s *= 2
    s.add_(s)
    s.neg_()
    assert other.to_dense().tolist() == [[0, 0, -12], [-16, 0, -20]]
    assert s.zero_() is s and s._nnz() == 0
    s.copy_(tt.eye(2, 3).to_sparse())
    assert other.to_dense().tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(RuntimeError, match="requires grad cannot be changed in place"):
        tt.sparse_coo_tensor([[0]], [1.0], (2,), requires_grad=True).mul_(2)
    with pytest.raises(RuntimeError, match="can't be cast"):
        tt.sparse_coo_tensor([[0]], [1], (2,)).mul_(1.5)


def test_copies_pickles_and_files(tt, s):
    s.requires_grad_()
    twin = copy.deepcopy(s)
    assert twin.requires_grad and twin.to_dense().tolist() == s.to_dense().tolist()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(s)


def saved(tt, obj):
    file = io.BytesIO()
    tt.save(obj, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_files(tt, s, layout, dtype):
    x = s.coalesce().to(getattr(tt, dtype)).to_sparse(layout=getattr(tt, layout), blocksize=(1, 3))
    tree = tt.load(saved(tt, {"a": [x], "b": x.to_dense()}))
    found = tree["a"][0]
    assert repr(found) == repr(x) and (found.to_dense() == tree["b"]).all()
    assert layout != "sparse_coo" or (found.is_coalesced() and not tt.load(saved(tt, s)).is_coalesced())
    hybrid = tt.sparse_coo_tensor([[2, 0]], [[1.0, 2.0], [3.0, 4.0]], (3, 2))
    assert tt.load(saved(tt, hybrid)).to_dense().tolist() == hybrid.to_dense().tolist()


def test_damaged_files(tt, s):
    x = s.to_sparse_csr()
    for old, new in ((b"sparse_csr", b"sparse_csq"), (b"[2,3]", b"[2,1]"), (b"[2,3]", b"[1,3]"),
                     (b"[2,3]", b"[2,-3]"), (b"[2,3]", b"[2," + b"9" * 30 + b"]"), (b"$sparse", b"$sparsa")):
        content = saved(tt, x).getvalue()
        size = int.from_bytes(content[:8], "little")
        header = content[8:8 + size].replace(old, new)
        assert header != content[8:8 + size]
        with pytest.raises(ValueError, match="load"):
            tt.load(io.BytesIO(len(header).to_bytes(8, "little") + header + content[8 + size:]))


@pytest.mark.parametrize("made", [
    lambda tt: tt.sparse_coo_tensor(tt.tensor([[0, 3]]), tt.ones(2), (3,)),
    lambda tt: tt.sparse_csr_tensor(tt.tensor([0, 1, 2]), tt.tensor([0, -1]), tt.ones(2), (2, 3)),
    lambda tt: tt.sparse_bsc_tensor(tt.tensor([0, 2, 1]), tt.tensor([0]), tt.ones(1, 1, 2), (2, 4)),
])
def test_files_with_wrong_indices(tt, made):
    with pytest.raises(ValueError, match="load: .*holds a sparse tensor whose parts do not fit"):
        tt.load(saved(tt, made(tt)))


def test_a_module_keeps_a_sparse_buffer(tt, s):
    class Graph(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adjacency", s)
            self.linear = tt.nn.Linear(3, 4)

        def forward(self, x):
            return self.linear(self.adjacency.t() @ x)

    graph = Graph().double()
    assert graph.adjacency.dtype == tt.float64
    assert list(dict(graph.named_buffers())) == ["adjacency"] and "adjacency" in graph.state_dict()
    twin = Graph().double()
    twin.load_state_dict(graph.state_dict())
    assert copy.deepcopy(graph).adjacency.to_dense().equal(twin.adjacency.to_dense())
    graph(tt.ones(2, 3, dtype=tt.float64)).sum().backward()
    assert graph.linear.weight.grad.abs().sum().item() > 0


def test_training_a_sparse_matrix(tt):
    """A matrix of which only some elements are trained, by gradients in its layout."""
    tt.manual_seed(0)
    values = tt.zeros(3, requires_grad=True)
    x, y = tt.randn(20, 3), None
    wanted = tt.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -1.0]])
    y = x @ wanted.t()
    optimizer = tt.optim.SGD([values], lr=0.2)
    for _ in range(100):
        matrix = tt.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], values, (2, 3))
        loss = ((matrix @ x.t()).t() - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-4
    assert (matrix.to_dense() - wanted).abs().max().item() < 0.02


def test_second_derivatives(tt):
    v = tt.tensor([1.0, 2.0, 3.0], dtype=tt.float64, requires_grad=True)
    d = tt.ones(3, 2, dtype=tt.float64).requires_grad_()

    def product(v, d):
        return (tt.sparse_coo_tensor([[0, 1, 1], [0, 2, 2]], v, (2, 3)) @ d).sin()

    assert tt.autograd.gradcheck(product, (v, d))
    assert tt.autograd.gradgradcheck(product, (v, d))


def test_checks_of_index_tensors_are_a_switch(tt):
    places = tt.tensor([[0, 5]])
    switch = tt.sparse.check_sparse_tensor_invariants
    assert not switch.is_enabled()
    tt.sparse_coo_tensor(places, tt.ones(2), (2,))
    with switch(), pytest.raises(RuntimeError, match="size is 2 but found index 5"):
        tt.sparse_coo_tensor(places, tt.ones(2), (2,))
    assert not switch.is_enabled()

    @switch()
    def make():
        return tt.sparse_coo_tensor(places, tt.ones(2), (2,))

    with pytest.raises(RuntimeError, match="found index 5"):
        make()
    switch.enable()
    try:
        with switch(False):
            tt.sparse_coo_tensor(places, tt.ones(2), (2,))
        with pytest.raises(RuntimeError, match="found index 5"):
            tt.sparse_coo_tensor(places, tt.ones(2), (2,))
    finally:
        switch.disable()


def test_a_class_that_overrides_functions(tt):
    """Functions of the package call `__torch_function__` for arguments that they do not take."""
    calls = []

    class Like:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append((func.__name__, types, len(args), kwargs))
            return NotImplemented if func.__name__ == "exp" else "mine"

    x, like = tt.ones(2), Like()
    assert tt.add(x, like) == tt.softmax(like, 0) == tt.cat([x, like]) == x.mul(like) == "mine"
    assert tt.sum(like, dim=1) == "mine"
    assert calls[-1] == ("sum", (Like,), 1, {"dim": 1})
    with pytest.raises(TypeError, match="no implementation found for .*exp.*Like"):
        tt.exp(like)
    x += like
    assert x == "mine" and calls[-1][0] == "add_"
    with pytest.raises(TypeError, match="unsupported operand"):
        tt.ones(2) + like  # Python asks the class itself, which has no __radd__


def test_captured_functions(tt):
    """A captured function reads the parts of a sparse tensor, or makes one; what waits cannot be captured."""
    matrix = tt.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3))

    @tt.compile
    def product(values, x):
        made = tt.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], values, (2, 3))
        return (matrix @ x).sum() + (made @ x).sum()

    for scale in (1, 2, 3):
        assert product(tt.ones(3), tt.ones(3, 2) * scale).item() == 30 * scale
    with pytest.raises(RuntimeError, match="cannot read a tensor's value"):
        tt.compile(lambda v: tt.sparse_coo_tensor([[0, 0]], v, (2,)).coalesce().to_dense())(tt.ones(2))


def test_transforms(tt):
    def loss(values):
        return (tt.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], values, (2, 3)) @ tt.ones(3, 2)).square().sum()

    assert tt.func.grad(loss)(tt.ones(3)).tolist() == [4, 8, 8]
    assert tt.vmap(loss)(tt.ones(4, 3)).tolist() == [10] * 4


def test_nothing_waits_that_need_not(tt):
    """Reading the inputs fails, so whatever is done with the sparse tensor before has not waited for them."""
    late = tt.ones(4).index_select(0, tt.tensor([9]))  # an error that is raised where a value is read
    values = late.expand(3)
    s = tt.sparse_coo_tensor(tt.tensor([[0, 1, 1], [2, 0, 2]]), values, (2, 3))
    results = [s @ tt.ones(3, 2), tt.ones(4, 2) @ s, s.to_dense(), s * 2, s.t() @ tt.ones(2, 2), s.sum(),
               tt.ones(2, 3) + s, s * tt.ones(2, 3), tt.cat([s, s]).to_dense()]
    for result in results:
        with pytest.raises(IndexError):
            (result.to_dense() if isinstance(result, tt.sparse.SparseTensor) else result).numpy()


def test_products_in_pieces(tt):
    """A product of many elements is computed in several pieces, unless the gradient of the dense matrix is
    recorded, with the same result."""
    tt.manual_seed(0)
    rows, columns = tt.randint(0, 50, (40_000,)), tt.randint(0, 60, (40_000,))
    values, dense = tt.randn(40_000, dtype=tt.float64), tt.randn(60, 128, dtype=tt.float64)
    s = tt.sparse_coo_tensor(tt.stack([rows, columns]), values.requires_grad_(), (50, 60))
    one = s @ dense.clone().requires_grad_()
    several = s @ dense
    assert (several - s.to_dense() @ dense).abs().max().item() < 1e-9 and (several - one).abs().max().item() < 1e-9
    grads = [tt.autograd.grad(x.sin().sum(), values)[0] for x in (one, several)]
    assert (grads[0] - grads[1]).abs().max().item() < 1e-9
