"""tt.func and vmap, compared with the same derivatives by formulas, with one sample at a time, and with each
other."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def doubles(tt):
    before = tt.get_default_dtype()
    tt.set_default_dtype(tt.float64)
    tt.manual_seed(7)
    yield
    tt.set_default_dtype(before)


def equal(a, b, tolerance=1e-10):
    a = a.detach().numpy() if hasattr(a, "detach") else np.asarray(a)
    b = b.detach().numpy() if hasattr(b, "detach") else np.asarray(b)
    assert a.shape == b.shape
    assert np.allclose(a, b, tolerance, tolerance), (a, b)


# ---------------------------------------------------------------- derivatives

def test_grad_and_its_nesting(tt):
    g = tt.func.grad(lambda x: x ** 4)
    x = tt.tensor(2.0)
    assert g(x).item() == 32.0
    assert tt.func.grad(g)(x).item() == 48.0
    assert tt.func.grad(tt.func.grad(g))(x).item() == 48.0
    assert not g(x).requires_grad
    with tt.no_grad():
        assert g(x).item() == 32.0
    value_of = tt.func.grad_and_value(lambda x: (x * x, "more"), has_aux=True)
    found, (value, aux) = value_of(x)
    assert (found.item(), value.item(), aux) == (4.0, 4.0, "more")
    with pytest.raises(RuntimeError, match="Expected f.*args. to return a scalar tensor"):
        tt.func.grad(lambda x: x * 2)(tt.ones(3))


def test_gradients_of_nested_containers(tt):
    params = {"w": tt.randn(3), "parts": [tt.randn(2), (tt.randn(1),)]}

    def loss(p, x):
        return (p["w"] * x).sum() + (p["parts"][0] ** 2).sum() + p["parts"][1][0].sum()
    x = tt.randn(3)
    g = tt.func.grad(loss)(params, x)
    equal(g["w"], x)
    equal(g["parts"][0], 2 * params["parts"][0])
    equal(g["parts"][1][0], tt.ones(1))
    both = tt.func.grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(x, params["w"])
    equal(both[1], 2 * x * params["w"])


def test_no_confusion_of_perturbations(tt):
    """d/dx x * (d/dy (x + y)) = 1, by every mix of modes."""
    x = tt.tensor(3.0)
    one = tt.tensor(1.0)

    def forward(f):
        return lambda x: tt.func.jvp(f, (x,), (tt.ones_like(x),))[1]
    for outer in (tt.func.grad, forward):
        for inner in (tt.func.grad, forward):
            found = outer(lambda x, inner=inner: x * inner(lambda y: x + y)(one))(x)
            assert found.item() == 1.0
            third = outer(lambda x, inner=inner: inner(lambda y: x * x * y * y)(x))(x)
            assert third.item() == 6 * 3.0 ** 2


def test_vjp_jvp_and_linearize_agree(tt):
    w = tt.randn(4, 3)

    def f(x):
        return tt.tanh(w @ x), (x * x).sum()
    x, t = tt.randn(3), tt.randn(3)
    out, tangents = tt.func.jvp(f, (x,), (t,))
    values, pull = tt.func.vjp(f, x)
    equal(out[0], values[0])
    assert not values[0].requires_grad
    u = (tt.randn(4), tt.randn(()))
    left = (tangents[0] * u[0]).sum() + tangents[1] * u[1]
    (pulled,) = pull(u)
    equal(left, (pulled * t).sum())
    value, push = tt.func.linearize(f, x)
    for again in (t, 2 * t):
        _, want = tt.func.jvp(f, (x,), (again,))
        equal(push(again)[0], want[0])
        equal(push(again)[1], want[1])


def test_jacobians_and_hessians_by_every_composition(tt):
    w = tt.randn(3, 3)

    def f(x):
        return tt.tanh(w @ x).sum() + (x[0] * x[1]).exp() * x[2]
    x = tt.randn(3)
    F = tt.func
    found = [F.hessian(f)(x), F.jacrev(F.jacrev(f))(x), F.jacfwd(F.jacfwd(f))(x),
             F.jacrev(F.jacfwd(f))(x), tt.autograd.functional.hessian(f, x),
             tt.autograd.functional.hessian(f, x, vectorize=True)]
    for each in found[1:]:
        equal(found[0], each)
    xs = tt.randn(5, 3)
    equal(tt.vmap(F.hessian(f))(xs), tt.stack([F.hessian(f)(x) for x in xs]))
    third = F.jacfwd(F.hessian(f))(x)
    equal(third, F.jacrev(F.jacfwd(F.jacrev(f)))(x))
    equal(third, third.transpose(0, 2))


def test_jacobian_of_several_inputs_and_outputs(tt):
    def f(a, b):
        return a * b, {"s": (a * a).sum()}
    a, b = tt.randn(3), tt.randn(3)
    for jac in (tt.func.jacrev, tt.func.jacfwd):
        first, second = jac(f, argnums=(0, 1))(a, b)
        equal(first[0], tt.diag(b))
        equal(first[1], tt.diag(a))
        equal(second["s"][0], 2 * a)
        equal(second["s"][1], tt.zeros(3))
    equal(tt.func.jacrev(lambda x: x ** 2, chunk_size=2)(a), tt.diag(2 * a))


def test_products_with_the_hessian(tt):
    w = tt.randn(4, 4)

    def f(x):
        return tt.tanh(w @ x).sum()
    x, v = tt.randn(4), tt.randn(4)
    h = tt.func.hessian(f)(x)
    AF = tt.autograd.functional
    equal(AF.vhp(f, x, v)[1], v @ h)
    equal(AF.hvp(f, x, v)[1], h @ v)
    equal(tt.func.jvp(tt.func.grad(f), (x,), (v,))[1], h @ v)
    equal(tt.func.grad(lambda x: (tt.func.grad(f)(x) * v).sum())(x), h @ v)
    equal(AF.jvp(f, x, v)[1], tt.func.grad(f)(x) @ v)
    equal(AF.vjp(f, x)[1], tt.func.grad(f)(x))
    rows = AF.jacobian(lambda x: w @ x, x)
    equal(rows, w)
    equal(AF.jacobian(lambda x: w @ x, x, vectorize=True), w)
    equal(AF.jacobian(lambda x: w @ x, x, strategy="forward-mode", vectorize=True), w)


# ---------------------------------------------------------------- forward mode

def test_dual_numbers_through_views_and_writes(tt):
    x, t = tt.randn(4), tt.randn(4)

    def f(x):
        out = tt.zeros(2, 4)
        out[0] = x * x
        out[1, :2] = x[1:3].sin()
        y = x.clone()
        y[::2] *= 3
        y.add_(out[0])
        z = y.view(2, 2)
        z[0].exp_()
        return out, y

    def pure(x):
        top = x * x
        second = tt.cat([x[1:3].sin(), tt.zeros(2)])
        y = x * tt.tensor([3.0, 1, 3, 1]) + top
        return tt.stack([top, second]), tt.cat([y[:2].exp(), y[2:]])
    got, want = tt.func.jvp(f, (x,), (t,)), tt.func.jvp(pure, (x,), (t,))
    for a, b in zip((*got[0], *got[1]), (*want[0], *want[1])):
        equal(a, b)


def test_levels_nest_and_end(tt):
    ad = tt.autograd.forward_ad
    x = tt.tensor(3.0)
    with ad.dual_level():
        a = ad.make_dual(x, tt.tensor(1.0))
        with ad.dual_level():
            b = ad.make_dual(a, tt.ones_like(a))
            y = b * b * b
            primal, tangent = ad.unpack_dual(y)
            assert tangent.item() == 27.0
            assert ad.unpack_dual(tangent, level=0).tangent.item() == 18.0
            assert ad.unpack_dual(primal, level=0).tangent.item() == 27.0
        assert ad.unpack_dual(y).tangent.item() == 27.0
        assert ad.unpack_dual(a.detach()).tangent is None
    assert ad.unpack_dual(y).tangent is None
    with pytest.raises(RuntimeError, match="no level exists"):
        ad.make_dual(x, x)
    with ad.dual_level(), pytest.raises(RuntimeError, match="different size"):
        ad.make_dual(x, tt.ones(2))


# ---------------------------------------------------------------- vmap

def test_vmap_over_dimensions_and_structures(tt):
    a, b = tt.randn(3, 5), tt.randn(5, 4, 3)

    def f(a, b):
        return a @ b.T, {"s": b.sum(), "a": a}
    out = tt.vmap(f, in_dims=(1, 0), out_dims=(1, {"s": 0, "a": None} and 0))(a, b)
    equal(out[0], tt.stack([a[:, i] @ b[i].T for i in range(5)], 1))
    equal(out[1]["s"], b.sum((1, 2)))
    equal(out[1]["a"], a.T)
    equal(tt.vmap(tt.dot, in_dims=(None, 0))(a[:, 0], b[:, 0]), b[:, 0] @ a[:, 0])
    equal(tt.vmap(tt.vmap(lambda x, y: x * y, (0, None)), (None, 0))(a[0], a[1]),
          a[1].unsqueeze(1) * a[0])
    equal(tt.vmap(lambda d: d["x"] + d["y"], ({"x": 0, "y": None},))({"x": a, "y": b[0, 0, 0]}),
          a + b[0, 0, 0])
    equal(tt.vmap(lambda x: x.sum(), chunk_size=2)(b), b.sum((1, 2)))


def written(made, at, value):
    made[at] = value
    return made


NEW = {
    "zeros_like": lambda tt, a: tt.zeros_like(a), "ones_like": lambda tt, a: tt.ones_like(a),
    "full_like": lambda tt, a: tt.full_like(a, 3.0), "empty_like": lambda tt, a: tt.empty_like(a).fill_(4),
    "new_zeros": lambda tt, a: a.new_zeros(3), "new_ones": lambda tt, a: a.new_ones(3),
    "new_full": lambda tt, a: a.new_full((3,), 5.0), "new_empty": lambda tt, a: a.new_empty(3).fill_(6),
    "new_empty_strided": lambda tt, a: a.new_empty_strided((3,), (1,)).fill_(7),
    "of another dtype": lambda tt, a: tt.zeros_like(a, dtype=tt.float64),
    "of a view": lambda tt, a: tt.zeros_like(a.reshape(3, 1).t()).reshape(3)}


@pytest.mark.parametrize("make", NEW.values(), ids=NEW)
def test_new_tensors_under_vmap_can_be_written_to_with_each_sample(tt, make):
    a = tt.arange(6.0).reshape(2, 3)
    expected = tt.stack([make(tt, each).mul_(2).add_(each) for each in a])
    equal(tt.vmap(lambda x: make(tt, x).mul_(2).add_(x))(a), expected)
    equal(tt.vmap(tt.vmap(lambda x: make(tt, x).mul_(2).add_(x)))(a.unsqueeze(1)), expected.unsqueeze(1))
    equal(tt.vmap(tt.func.grad(lambda x: (make(tt, x).mul_(x) ** 2).sum()))(a),
          tt.stack([2 * make(tt, each) ** 2 * each for each in a]).to(a.dtype))
    with pytest.raises(RuntimeError, match="vmap: inplace"):  # of a tensor that is one for all samples
        tt.vmap(lambda x, one: make(tt, one).add_(x), in_dims=(0, None))(a, a[0])


def test_vmap_over_a_place(tt):
    """A 0-d integer that differs between samples is an index like any other, for reading and writing."""
    i = tt.tensor([0, 2])
    a, b = tt.arange(6.0).reshape(2, 3), tt.arange(18.0).reshape(2, 3, 3)
    indices = (lambda i: i, lambda i: (slice(None), i), lambda i: (i, slice(1, None)), lambda i: (..., i),
               lambda i: (i, i), lambda i: (None, i), lambda i: (i, [0, 1]), lambda i: -i - 1)
    for number, index in enumerate(indices):
        def read(x, i, index=index):
            return x[index(i)]

        def write(x, i, index=index):
            return written(x.clone(), index(i), 9.0)

        for source in (a, b) if number in (0, 5, 7) else (b,):
            for do in (read, write):
                equal(tt.vmap(do)(source, i),
                      tt.stack([do(x, int(n)) for x, n in zip(source, i, strict=True)]))
    equal(tt.vmap(lambda i: a[1][i])(i), a[1][i])
    equal(tt.vmap(lambda x, i: written(tt.zeros_like(x), i, x.sum()))(a, i),
          tt.tensor([[3.0, 0, 0], [0, 0, 12]]))
    equal(tt.vmap(tt.func.grad(lambda x, i: x[i] ** 2))(a, i), tt.tensor([[0.0, 0, 0], [0, 0, 10]]))
    with pytest.raises(IndexError, match="out of"):
        tt.vmap(lambda x, i: x[i])(a, i + 1).tolist()


def test_vmap_refuses_as_pytorch(tt):
    a = tt.randn(3, 2)
    with pytest.raises(ValueError, match="same size in the mapped dimension"):
        tt.vmap(tt.add)(a, tt.randn(2, 2))
    with pytest.raises(ValueError, match="at least one in_dim must not be None"):
        tt.vmap(tt.sin, in_dims=(None,))(a)
    with pytest.raises(ValueError, match="expected in_dim to satisfy -2 <= in_dim < 2"):
        tt.vmap(tt.sin, in_dims=2)(a)
    with pytest.raises(ValueError, match="must only return Tensors"):
        tt.vmap(lambda x: 3)(a)
    with pytest.raises(RuntimeError, match="calling .item.. on a Tensor"):
        tt.vmap(lambda x: x.sum().item())(a)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        tt.vmap(lambda x: x + tt.rand(2))(a)
    with pytest.raises(RuntimeError, match="inplace arithmetic"):
        tt.vmap(lambda x: tt.zeros(2).add_(x))(a)
    with pytest.raises(RuntimeError, match=r"\[2\].*\[3\]"):  # shapes as the function sees them
        tt.vmap(lambda x: x + tt.ones(3))(a)
    kept = []
    tt.vmap(lambda x: kept.append(x) or x)(a)
    with pytest.raises(RuntimeError, match="vmap that has ended"):
        kept[0] + 1
    equal(a + 1, a.numpy() + 1)


def test_vmap_of_writes_and_of_ops_without_a_rule(tt):
    a = tt.randn(3, 4)

    def f(x):
        y = x.clone()
        y[0] = 5
        y[1:] += x[0]
        y.relu_()
        return y
    equal(tt.vmap(f)(a), tt.stack([f(x) for x in a]))
    equal(tt.vmap(tt.diag)(a), tt.stack([tt.diag(x) for x in a]))  # one call a sample
    b = a.clone()
    tt.vmap(lambda x: x.mul_(2))(b)
    equal(b, 2 * a)


def test_random_numbers_inside_vmap(tt):
    a = tt.zeros(4, 3)
    same = tt.vmap(lambda x: x + tt.rand(3), randomness="same")(a).numpy()
    assert (same == same[0]).all()
    different = tt.vmap(lambda x: x + tt.rand(3), randomness="different")(a).numpy()
    assert len(np.unique(different)) == 12
    dropped = tt.vmap(lambda x: tt.nn.functional.dropout(x + 1, 0.5), randomness="same")(
        tt.zeros(4, 50)).numpy()
    assert (dropped == dropped[0]).all()


def test_gradients_of_each_sample(tt):
    model = tt.nn.Sequential(tt.nn.Linear(3, 5), tt.nn.LayerNorm(5), tt.nn.Tanh(),
                             tt.nn.Linear(5, 2)).double()
    params = {k: v.detach() for k, v in model.named_parameters()}
    x, y = tt.randn(6, 3), tt.randint(0, 2, (6,))

    def loss(params, x, y):
        out = tt.func.functional_call(model, params, (x.unsqueeze(0),))
        return tt.nn.functional.cross_entropy(out, y.unsqueeze(0))
    found = tt.vmap(tt.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for i in range(6):
        one = tt.func.grad(loss)(params, x[i], y[i])
        for name, g in one.items():
            equal(found[name][i], g)
    for p in model.parameters():
        assert p.grad is None


def test_an_ensemble(tt):
    models = [tt.nn.Linear(3, 2).double() for _ in range(4)]
    params, buffers = tt.func.stack_module_state(models)
    x = tt.randn(5, 3)
    out = tt.vmap(lambda p, b, x: tt.func.functional_call(models[0], (p, b), (x,)),
                  in_dims=(0, 0, None))(params, buffers, x)
    equal(out, tt.stack([m(x) for m in models]))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        tt.func.functional_call(models[0], {"nothing": x}, (x,), strict=True)


def test_vmap_of_custom_functions(tt):
    class Cube(tt.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, n):
            return x ** 3 * n

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.n = inputs[1]

        @staticmethod
        def backward(ctx, g):
            assert g.dim() == 0
            x, = ctx.saved_tensors
            assert x.dim() == 0
            return 3 * x ** 2 * g * ctx.n, None

    class Own(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def vmap(info, in_dims, x):
            assert info.batch_size == 5
            return Own.apply(x), in_dims[0]

    class Neither(tt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x
    x = tt.randn(5)
    equal(tt.vmap(lambda x: Cube.apply(x, 2))(x), 2 * x ** 3)
    equal(tt.vmap(tt.func.grad(lambda x: Cube.apply(x, 2)))(x), 6 * x ** 2)
    equal(tt.vmap(tt.func.grad(Own.apply))(x), 2 * tt.ones(5))
    with pytest.raises(RuntimeError, match="does not have vmap support"):
        tt.vmap(Neither.apply)(x)
