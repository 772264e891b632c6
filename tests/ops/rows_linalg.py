"""Rows for linear algebra. If signs or phases are not unique, the call returns values that do not depend on
them."""

import numpy as np
import scipy.linalg
from arrays import In
from table import Row, Sample

REAL = ("f32", "f64")
ALL = (*REAL, "c64", "c128")
SQUARE = ((4, 4), (1, 1), (0, 0), (2, 3, 3), (0, 3, 3), (2, 0, 0), (2, 1, 3, 3))
SHAPES = (*SQUARE, (5, 3), (3, 5), (2, 5, 3), (2, 3, 5), (0, 3), (3, 0), (2, 0, 3))
LAYOUTS = ("transposed", "sliced", "expanded")


def samples(shapes, *extra, low=-1.0, large=(33, 33), **kwargs):
    made = [Sample((In(s, low, 1), *extra), kwargs) for s in shapes]
    made += [Sample((In((2, *shapes[0]), low, 1, x), *extra), kwargs) for x in LAYOUTS]
    return made + ([Sample((In(large, low, 1), *extra), kwargs, None, False)] if large else [])


def T(x):
    return np.swapaxes(x, -1, -2)


def H(m, x):
    return np.conj(T(x)) if m is np else x.mT.conj()


def square_of(x):
    """|x|^2, which does not depend on the phases of columns."""
    return abs(x) ** 2


def eye(m, x):
    """The identity matrix that fits x, of a library or of NumPy."""
    n = x.shape[-1]
    return np.eye(n) if m is np else m.eye(n, dtype=x.dtype)


def regular(m, x):
    """A matrix that is far from singular."""
    return x + 3 * x.shape[-1] * eye(m, x)


def definite(m, x):
    return x @ H(m, x) + eye(m, x)


def symmetric(m, x):
    return x + H(m, x)


def graded(m, x):
    """Symmetric, with well separated eigenvalues, so that eigenvectors and their derivatives are well
    determined."""
    n = x.shape[-1]
    d = np.arange(n) * 2.0
    d = d if m is np else m.tensor(d, dtype=x.dtype)
    return 0.3 * symmetric(m, x) + eye(m, x) * d


def graded_plainly(m, x):
    """Not symmetric, with well separated eigenvalues."""
    return graded(m, x) + 0.1 * x


def invertible(m, x):
    """Symmetric, with well separated eigenvalues, none of which is near 0."""
    return graded(m, x) + 3 * eye(m, x)


def spread(m, x):
    """With well separated singular values."""
    rows, columns = x.shape[-2:]
    k = min(rows, columns)
    d = np.zeros((rows, columns))
    d[range(k), range(k)] = 2.0 * np.arange(1, k + 1)
    return 0.3 * x + (d if m is np else m.tensor(d, dtype=x.dtype))


def row(name, call, reference, made, prepare=None, tolerance=64.0, **options):
    """`call(m, x, ...)` and `reference(x, ...)` see the prepared first operand."""
    def prepared(m, x, *rest, **kwargs):
        return call(m, prepare(m, x) if prepare else x, *rest, **kwargs)

    def expected(x, *rest, **kwargs):
        return reference(prepare(np, x) if prepare else x, *rest, **kwargs)
    return Row(name, prepared, expected, made, options.pop("dtypes", REAL), gradients=options.pop("gradients", True),
               tolerance=tolerance, **options)


def each(f):
    """Applies a SciPy function of one matrix to each matrix of a batch."""
    def batched(x, *rest):
        flat = x.reshape((int(np.prod(x.shape[:-2])), *x.shape[-2:]))
        if not flat.size:
            return np.zeros(x.shape)
        return np.stack([f(a, *rest) for a in flat]).reshape((*x.shape[:-2], *f(flat[0], *rest).shape))
    return batched


def lu(m, x):
    p, lower, upper = m.linalg.lu(x)
    return p @ lower @ upper, upper, lower


def lu_reference(x):
    k = min(x.shape[-2:])
    if not x.size:
        return x, np.zeros((*x.shape[:-2], k, x.shape[-1])), np.zeros((*x.shape[:-1], k))
    parts = [scipy.linalg.lu(a) for a in x.reshape((-1, *x.shape[-2:]))]
    lower, upper = (np.stack([p[i] for p in parts]) for i in (1, 2))
    return x, upper.reshape((*x.shape[:-2], k, -1)), lower.reshape((*x.shape[:-1], k))


def qr(mode):
    def call(m, x):
        q, r = m.linalg.qr(x, mode=mode)
        return q @ r, r * r, q * q
    return call


def qr_reference(mode):
    def reference(x):
        q, r = np.linalg.qr(x, mode)
        return x, r * r, q * q
    return reference


def qr_r(m, x):
    r = m.linalg.qr(x, mode="r")[1]
    return r * r


def svd(full):
    def call(m, x):
        u, s, vh = m.linalg.svd(x, full_matrices=full)
        k = s.shape[-1]
        return (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], s, square_of(u[..., :k]), square_of(vh[..., :k, :])
    return call


def svd_reference(x):
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return x, s, square_of(u), square_of(vh)


def orthogonal(m, x):
    """U^H U and V V^H of the full decomposition."""
    u, _, vh = m.linalg.svd(x)
    return u.mT @ u, vh @ vh.mT


def orthogonal_reference(x):
    return [np.broadcast_to(np.eye(n), (*x.shape[:-2], n, n)) for n in x.shape[-2:]]


def eigh(m, x, UPLO="L"):
    w, v = m.linalg.eigh(x, UPLO=UPLO)
    return w, square_of(v), v @ (w.unsqueeze(-1) * H(m, v))


def eigh_reference(x, UPLO="L"):
    w, v = np.linalg.eigh(x, UPLO)
    return w, square_of(v), x


def eig(m, x):
    """Sums over the eigenvalues, because their order is not defined."""
    w, v = m.linalg.eig(x)
    return (square_of(v) * w.unsqueeze(-2)).sum(-1), (w ** 3).sum(-1)


def eig_reference(x):
    w, v = np.linalg.eig(x)
    return (square_of(v) * w[..., None, :]).sum(-1), (w ** 3).sum(-1)


def to_complex(dtype, sample):
    return "c128" if dtype in ("f64", "c128") else "c64"


def parts(*kinds):
    """The dtypes of results: the dtype itself, or that of its real parts."""
    return lambda dtype, sample: tuple({"c64": "f32", "c128": "f64"}.get(dtype, dtype) if k == "real" else dtype for k in kinds)


def ldl(m, x, b):
    ld, pivots = m.linalg.ldl_factor(x)
    return m.linalg.ldl_solve(ld, pivots, b)


def householder(m, x, tau):
    return m.linalg.householder_product(x, tau)


def householder_reference(a, tau):
    rows, columns = a.shape[-2:]
    q = np.broadcast_to(np.eye(rows), (*a.shape[:-2], rows, rows)).copy()
    for i in range(tau.shape[-1]):
        v = np.tril(a, -1)[..., i] + np.eye(rows)[i]
        q = q - tau[..., i, None, None] * (q @ v[..., :, None]) * v[..., None, :]
    return q[..., :columns]


def geqrf(m, x):
    a, tau = m.geqrf(x)
    k = tau.shape[-1]
    q = m.linalg.householder_product(a[..., :k], tau)
    return q @ m.triu(a)[..., :k, :]


def ormqr(m, x, c, left=True, transpose=False):
    a, tau = m.geqrf(x.detach())
    return m.ormqr(a, tau, c, left, transpose)


def ormqr_reference(x, c, left=True, transpose=False):
    a = each(lambda v: scipy.linalg.qr(v, mode="raw")[0][0])(x)
    tau = np.stack([scipy.linalg.qr(v, mode="raw")[0][1] for v in x.reshape((-1, *x.shape[-2:]))])
    q = householder_reference(np.concatenate([a, np.zeros((*a.shape[:-1], a.shape[-2] - a.shape[-1]))], -1),
                              tau.reshape((*x.shape[:-2], -1)))
    q = T(q) if transpose else q
    return q @ c if left else c @ q


PAIRS = [((4, 4), (4, 2)), ((2, 3, 3), (2, 3, 1)), ((3, 3), (2, 3, 2)), ((2, 1, 3, 3), (2, 3, 2)), ((0, 0), (0, 2)),
         ((3, 3), (3, 0)), ((0, 3, 3), (0, 3, 2)), ((2, 3, 3), (3, 2))]


def systems(vectors=(), **kwargs):
    made = [Sample((In(a, -1, 1), In(b, -1, 1)), kwargs) for a, b in [*PAIRS, *vectors]]
    made += [Sample((In((2, 3, 3), -1, 1, x), In((2, 3, 2), -1, 1, y)), kwargs)
             for x, y in (("transposed", "sliced"), ("expanded", "transposed"))]
    return [*made, Sample((In((65, 65), -1, 1), In((65, 33), -1, 1)), kwargs, None, False)]


def solve_reference(a, b, left=True):
    if not left:
        return T(np.linalg.solve(T(a), T(b)))
    if b.ndim == 1 or (b.shape == a.shape[:-1] and b.ndim == a.ndim - 1):
        return np.linalg.solve(a, b[..., None])[..., 0]
    return np.linalg.solve(a, b)


def right(made):
    """The same systems with X on the left of A."""
    turned = []
    for a, b, s in ((*s.args, s) for s in made):
        shape = (*b.shape[:-2], b.shape[-1], b.shape[-2])
        if shape == a.shape[:-1]:
            continue  # skips vectors
        turned.append(Sample((a, In(shape, -1, 1, b.layout)), {**s.kwargs, "left": False}, s.dtypes, s.gradients))
    return turned


def triangular_reference(a, b, upper, left=True, unitriangular=False):
    a = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        i = np.arange(a.shape[-1])
        a = a.copy()
        a[..., i, i] = 1
    return solve_reference(a, b, left)


def lu_solve(m, a, b, left=True, adjoint=False):
    return m.linalg.lu_solve(*m.linalg.lu_factor(a), b, left=left, adjoint=adjoint)


def ex(name):
    """The _ex form of a function: returns its first result and info."""
    def call(m, x, *rest, **kwargs):
        return list(getattr(m.linalg, name)(x, *rest, **kwargs))
    return call


def linalg(name):
    return lambda m, *args, **kwargs: getattr(m.linalg, name)(*args, **kwargs)


def top(name):
    return lambda m, *args, **kwargs: getattr(m, name)(*args, **kwargs)


def lstsq(driver):
    def call(m, a, b):
        return m.linalg.lstsq(a, b, driver=driver).solution
    return call


def lstsq_reference(a, b):
    vector = b.shape == a.shape[:-1]
    x = np.linalg.pinv(a) @ (b[..., None] if vector else b)
    return x[..., 0] if vector else x


def residuals(m, a, b):
    return m.linalg.lstsq(a, b, driver="gelsd").residuals


def spectrum(m, a, b):
    return list(m.linalg.lstsq(a, b, driver="gelss")[2:])


def residuals_reference(a, b):
    x = np.linalg.pinv(a) @ b
    return ((a @ x - b) ** 2).sum(-2)


def slogdet(x):
    return tuple(np.linalg.slogdet(x)) if x.shape[-1] else (np.ones(x.shape[:-2]), np.zeros(x.shape[:-2]))


def pinv_reference(x, **kwargs):
    return np.linalg.pinv(x)


def low_rank(m, x):
    """A matrix of rank 2 whose nonzero singular values are far above the tolerance."""
    left, right = x[..., :, :2], x[..., :2, :]
    return left @ right


def rank_samples():
    return [s for s in samples(SHAPES) if min(s.args[0].shape[-2:])]


def matrix_norm(ord, dim=(-2, -1), keepdim=False):
    made = [Sample((In(s, -1, 1),)) for s in ((4, 3), (3, 4), (2, 3, 3))]
    return row("linalg.matrix_norm", lambda m, x: m.linalg.matrix_norm(x, ord, dim, keepdim),
               lambda x: np.linalg.norm(x, ord, dim, keepdim), made, spread, second=False)


def vector_norm(ord):
    return row("linalg.vector_norm", lambda m, x: m.linalg.vector_norm(x, ord), lambda x: np.linalg.norm(x.reshape(-1), ord),
               [Sample((In(s, 0.5, 2),)) for s in ((5,), (2, 3), (1,))], gradients=ord not in (0,), second=False, tolerance=8)


def cond(p):
    return row("linalg.cond", lambda m, x: m.linalg.cond(x, p), lambda x: np.linalg.cond(x, p),
               [Sample((In(s, -1, 1),)) for s in ((3, 3), (2, 4, 4))], spread, second=False, torch_gradients=p in (None, 2, -2))


def power(n):
    return row("linalg.matrix_power", lambda m, x: m.linalg.matrix_power(x, n), lambda x: np.linalg.matrix_power(x, n),
               samples(((3, 3), (2, 3, 3), (0, 0), (0, 3, 3)), large=None), regular, gradients=n != 0)


DECOMPOSITIONS = [
    row("linalg.cholesky", linalg("cholesky"), np.linalg.cholesky, samples(SQUARE), definite, dtypes=ALL),
    row("linalg.cholesky", lambda m, x: m.linalg.cholesky(x, upper=True), lambda x: H(np, np.linalg.cholesky(x)),
        samples(SQUARE), definite, dtypes=ALL),
    row("linalg.cholesky_ex", ex("cholesky_ex"), lambda x: (np.linalg.cholesky(x), np.zeros(x.shape[:-2], np.int32)),
        samples(SQUARE), definite, result=lambda d, s: (d, "i32")),
    row("linalg.lu", lu, lu_reference, samples(SHAPES), dtypes=ALL),
    row("linalg.qr", qr("reduced"), qr_reference("reduced"), samples(SHAPES, large=(40, 33)), spread, dtypes=ALL),
    row("linalg.qr", qr("complete"), qr_reference("complete"), samples([s for s in SHAPES if s[-2] <= s[-1]]), spread),
    row("linalg.qr", qr_r, lambda x: np.linalg.qr(x, "r") ** 2, samples(SHAPES), spread, gradients=False),
    row("linalg.qr", lambda m, x: m.linalg.qr(x, mode="complete")[0].mT @ m.linalg.qr(x, mode="complete")[0],
        lambda x: orthogonal_reference(x)[0], samples(SHAPES), gradients=False),
    row("linalg.svd", svd(False), svd_reference, samples(SHAPES), spread, dtypes=ALL, result=parts("same", "real", "real", "real")),
    row("linalg.svd", svd(True), svd_reference, samples(SHAPES), spread),
    row("linalg.svd", orthogonal, orthogonal_reference, samples(SHAPES, large=(70, 40)), gradients=False),
    row("linalg.svdvals", linalg("svdvals"), lambda x: np.linalg.svd(x, compute_uv=False), samples(SHAPES), spread, dtypes=ALL,
        result="real"),
    row("linalg.eigh", eigh, eigh_reference, samples(SQUARE), graded, dtypes=ALL, result=parts("real", "real", "same")),
    row("linalg.eig", eig, eig_reference, samples(((3, 3), (1, 1), (2, 4, 4)), large=None), graded_plainly, dtypes=ALL, result=to_complex,
        tolerance=512),
    row("linalg.eigvals", lambda m, x: (m.linalg.eigvals(x) ** 2).sum(-1), lambda x: (np.linalg.eigvals(x) ** 2).sum(-1),
        samples(SQUARE), dtypes=ALL, result=to_complex, tolerance=512),
    row("linalg.eigh", eigh, eigh_reference, samples(((3, 3),), large=None, UPLO="U"), graded),
    row("linalg.eigvalsh", linalg("eigvalsh"), np.linalg.eigvalsh, samples(SQUARE), graded),
    row("linalg.ldl_factor", ldl, np.linalg.solve, systems()[:4], symmetric, gradients=False, torch=False),
    row("linalg.householder_product", householder, householder_reference, [Sample((In(a, -1, 1), In(b, 0.2, 1.2))) for a, b in (
        ((4, 3), (3,)), ((4, 3), (2,)), ((2, 4, 4), (2, 4)))] + [Sample(
            (In(a, -1, 1), In(b)), {}, None, False) for a, b in (((0, 4, 2), (0, 2)), ((3, 2), (0,)), ((2, 3, 0), (2, 0)))], second=False),
    row("geqrf", geqrf, lambda x: x, samples(SHAPES), gradients=False),
    row("ormqr", ormqr, ormqr_reference, [Sample((In((5, 3), -1, 1), In((5, 2), -1, 1)), {}), Sample(
        (In((5, 3), -1, 1), In((5, 2), -1, 1)), {"transpose": True}), Sample((In((2, 4, 4), -1, 1), In((2, 3, 4), -1, 1)), {
            "left": False})], gradients=False),
]

TALL = [Sample((In((5, 3), -1, 1), In((5, 2), -1, 1))), Sample((In((2, 5, 3), -1, 1), In((2, 5, 2), -1, 1)))]
SOLVERS = [
    row("linalg.inv", linalg("inv"), np.linalg.inv, samples(SQUARE), regular, dtypes=ALL),
    row("linalg.inv_ex", ex("inv_ex"), lambda x: (np.linalg.inv(x), np.zeros(x.shape[:-2], np.int32)), samples(SQUARE),
        regular, result=lambda d, s: (d, "i32")),
    row("linalg.solve", linalg("solve"), solve_reference, systems([((3, 3), (3,)), ((2, 3, 3), (2, 3)), ((2, 3, 3), (3,))]), regular, dtypes=ALL),
    row("linalg.solve", linalg("solve"), solve_reference, right(systems()), regular),
    row("linalg.solve_ex", ex("solve_ex"), lambda a, b: (np.linalg.solve(a, b), np.zeros(a.shape[:-2], np.int32)),
        [s for s in systems() if len(s.args[0].shape) == 3], regular, result=lambda d, s: (d, "i32")),
    *[row("linalg.solve_triangular", linalg("solve_triangular"), triangular_reference, made, regular)
      for upper in (True, False) for unit in (True, False) for made in (
          systems(upper=upper, unitriangular=unit), right(systems(upper=upper, unitriangular=unit))[:3])],
    *[row("linalg.lu_solve", lu_solve, lambda a, b, left=True, adjoint=False: solve_reference(H(np, a) if adjoint else a, b, left),
          made, regular, dtypes=ALL) for adjoint in (True, False) for made in (systems(adjoint=adjoint), right(systems(adjoint=adjoint))[:3])],
    row("linalg.det", linalg("det"), np.linalg.det, samples(SQUARE, large=(9, 9)), tolerance=256, dtypes=ALL),
    row("linalg.slogdet", linalg("slogdet"), slogdet, samples(SQUARE), regular, dtypes=ALL, result=parts("same", "real")),
    row("logdet", top("logdet"), lambda x: slogdet(x)[1], samples(SQUARE), definite),
    *[row("linalg.lstsq", lstsq(d), lstsq_reference, [Sample((In(a, -1, 1), In(b, -1, 1))) for a, b in (
        ((5, 3), (5, 2)), ((3, 5), (3, 2)), ((4, 4), (4, 1)), ((2, 5, 3), (2, 5, 2)), ((5, 3), (5,)), ((2, 5, 3), (5, 2)),
        ((5, 3), (5, 0)), ((3, 0), (3, 2)), ((0, 5, 3), (0, 5, 2)))], spread, torch=False, second=False, dtypes=ALL)
      for d in ("gels", "gelsy", "gelsd", "gelss")],
    row("linalg.lstsq", residuals, residuals_reference, TALL, second=False),
    row("linalg.lstsq", spectrum, lambda a, b: (np.linalg.matrix_rank(a), np.linalg.svd(a, compute_uv=False)), TALL,
        gradients=False, result=lambda d, s: ("i64", d)),
    row("linalg.pinv", linalg("pinv"), pinv_reference, samples(SHAPES), spread, dtypes=ALL),
    row("linalg.pinv", linalg("pinv"), pinv_reference, samples(((4, 4), (5, 3), (3, 5)), large=None), low_rank, gradients=False,
        tolerance=512),
    row("linalg.pinv", lambda m, x: m.linalg.pinv(x, hermitian=True), np.linalg.pinv, samples(SQUARE), invertible),
    row("linalg.matrix_rank", linalg("matrix_rank"), np.linalg.matrix_rank, rank_samples(), low_rank, gradients=False,
        result="i64"),
    row("linalg.matrix_exp", linalg("matrix_exp"), each(scipy.linalg.expm), samples(SQUARE, large=None), dtypes=ALL),
    row("linalg.matrix_exp", linalg("matrix_exp"), each(scipy.linalg.expm), samples(((3, 3),), low=-9.0, large=None), gradients=False,
        tolerance=2048),
    *[power(n) for n in (0, 1, 2, 5, -1, -3)],
    row("cholesky_solve", lambda m, a, b, **k: m.cholesky_solve(b, m.linalg.cholesky(a), **k), np.linalg.solve, systems(), definite, dtypes=ALL),
    row("cholesky_inverse", lambda m, a: m.cholesky_inverse(m.linalg.cholesky(a, upper=True), upper=True), np.linalg.inv,
        samples(SQUARE), definite),
    row("triangular_solve", lambda m, a, b: m.triangular_solve(b, a, transpose=True)[0],
        lambda a, b: np.linalg.solve(T(np.triu(a)), b), systems()[:3], regular),
    row("linalg.tensorinv", lambda m, x: m.linalg.tensorinv(x + m.eye(6, dtype=x.dtype).reshape(2, 3, 6) * 4, 2),
        lambda x: np.linalg.tensorinv(x + np.eye(6).reshape(2, 3, 6) * 4, 2), [Sample((In((2, 3, 6), -1, 1),))]),
    row("linalg.tensorsolve", lambda m, x, b: m.linalg.tensorsolve(x + m.eye(6, dtype=x.dtype).reshape(2, 3, 6) * 4, b),
        lambda x, b: np.linalg.tensorsolve(x + np.eye(6).reshape(2, 3, 6) * 4, b), [Sample((In((2, 3, 6), -1, 1), In((2, 3))))]),
]

VECTORS = [((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (1, 3)), ((0, 3), (0, 3))]
PRODUCTS = [
    *[matrix_norm(ord) for ord in ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf)],
    matrix_norm("nuc", (0, 1), True), matrix_norm(1, (1, 0), True), matrix_norm(-2, (-1, -2)),
    *[vector_norm(ord) for ord in (0, 1, 2, 3, 0.5, -1, np.inf, -np.inf)],
    row("linalg.norm", lambda m, x: m.linalg.norm(x), lambda x: np.linalg.norm(x.reshape(-1)), [Sample((In(s),)) for s in (
        (3,), (2, 3), (2, 3, 4))], tolerance=8),
    row("linalg.norm", lambda m, x: m.linalg.norm(x, 1), lambda x: np.linalg.norm(x, 1), [Sample((In(s, 0.1, 2),)) for s in ((3,), (2, 3))],
        second=False, tolerance=8),
    *[cond(p) for p in (None, 2, -2, 1, np.inf, "fro", "nuc")],
    row("linalg.cross", lambda m, x, y: m.linalg.cross(x, y), np.cross, [Sample((In(a), In(b))) for a, b in VECTORS], tolerance=8),
    row("cross", lambda m, x, y: m.cross(x, y, dim=0), lambda x, y: np.cross(x, y, axis=0), [Sample((In((3, 2)), In((3, 2))))], tolerance=8),
    row("linalg.vecdot", linalg("vecdot"), lambda x, y: (x * y).sum(-1), [Sample((In(a), In(b))) for a, b in VECTORS], tolerance=8),
    row("linalg.vander", linalg("vander"), lambda x, N=None: np.vander(x.reshape(-1), N or x.shape[-1], True).reshape(
        (*x.shape, N or x.shape[-1])), [Sample((In((4,),),)), Sample((In((2, 3)),), {"N": 5})], tolerance=8),
    row("linalg.multi_dot", lambda m, *x: m.linalg.multi_dot(list(x)), lambda *x: np.linalg.multi_dot(x), [
        Sample(tuple(In(s, -1, 1) for s in shapes)) for shapes in (((3, 4), (4, 2)), ((3, 4), (4, 2), (2, 5)), (
            (3,), (3, 4), (4, 2), (2,)), ((2, 7), (7, 1), (1, 6), (6, 3)))]),
    row("linalg.diagonal", linalg("diagonal"), lambda x, offset=0: np.diagonal(x, offset, -2, -1), [
        Sample((In((2, 3, 4)),)), Sample((In((3, 4)),), {"offset": 1})], tolerance=1),
]

ROWS = [*DECOMPOSITIONS, *SOLVERS, *PRODUCTS]
NAMES = {r.op for r in ROWS} - {"geqrf"}
