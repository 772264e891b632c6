"""Calls that must be refused at their line: (op, call, exception, part of the text)."""

import numpy as np


def t(m, *shape, dtype="float32"):
    return m.tensor(np.ones(shape), dtype=getattr(m, dtype))


def i(m, *values):
    return m.tensor(np.array(values, np.int64))


def f(m):
    return m.nn.functional


R, I, V, T = RuntimeError, IndexError, ValueError, TypeError
# The text is a regular expression that both PyTorch's and our message match; mostly sizes.
ERRORS = [
    ("add", lambda m: t(m, 2, 3) + t(m, 4), R, "3.*4|4.*3"),
    ("sub", lambda m: t(m, 2, dtype="bool") - t(m, 2, dtype="bool"), R, "bool"),
    ("add", lambda m: t(m, 2, 3).add_(t(m, 4, 2, 3)), R, "2, 3"),
    ("add", lambda m: t(m, 2, dtype="int32").add_(0.5), R, "can't be cast"),
    ("neg", lambda m: -t(m, 2, dtype="bool"), R, "bool"),
    ("bitwise_and", lambda m: t(m, 2) & t(m, 2), R, ""),
    ("bitwise_not", lambda m: ~t(m, 2), (R, T), ""),
    ("pow", lambda m: t(m, 2, dtype="int64") ** -1, R, "negative"),
    *[(op, lambda m, op=op: getattr(m, op)(m.ones(2, dtype=m.complex64)), (R, T), "")
      for op in ("floor", "round", "trunc", "sign", "max", "argmax", "sort", "median", "erf", "deg2rad", "frac",
                 "relu", "amax", "argsort")],
    *[(op, lambda m, op=op: getattr(m, op)(m.ones(2, dtype=m.complex64), m.ones(2)), (R, T), "")
      for op in ("lt", "ge", "maximum", "floor_divide", "remainder", "atan2", "bitwise_and", "fmod", "hypot")],
    ("add", lambda m: t(m, 2).add_(1j), R, "can't be cast"),
    ("imag", lambda m: m.imag(t(m, 2)), R, ""),
    ("view_as_complex", lambda m: m.view_as_complex(t(m, 3)), R, "2"),
    ("view_as_real", lambda m: m.view_as_real(t(m, 3)), R, "complex"),
    ("complex", lambda m: m.complex(t(m, 2), t(m, 2, dtype="float64")), R, ""),
    ("where", lambda m: m.where(t(m, 2), t(m, 2), t(m, 2)), R, "bool"),
    ("sum", lambda m: t(m, 2, 3).sum(2), I, "2"),
    ("sum", lambda m: t(m, 2, 3).sum((0, 0)), R, "0"),
    ("mean", lambda m: t(m, 2, dtype="int64").mean(), R, ""),
    ("max", lambda m: t(m, 0).max(), R, ""),
    ("max_dim", lambda m: t(m, 2, 0).max(1), I, ""),
    ("argmax", lambda m: t(m, 0).argmax(), (R, I), ""),
    ("argmax", lambda m: t(m, 2, 3).argmax(5), I, "5"),
    ("softmax", lambda m: m.softmax(t(m, 2, 3), 2), I, "2"),
    ("cumsum", lambda m: t(m, 2, 3).cumsum(-3), I, "-3"),
    ("sort", lambda m: t(m, 2, 3).sort(2), I, "2"),
    ("topk", lambda m: t(m, 2, 3).topk(4), R, ""),
    ("matmul", lambda m: t(m, 2, 3) @ t(m, 4, 5), R, "2.*3.*4.*5"),
    ("matmul", lambda m: t(m, 2, 3) @ t(m, 4), R, ""),
    ("matmul", lambda m: t(m) @ t(m, 2), R, ""),
    ("matmul", lambda m: t(m, 2, 2) @ t(m, 2, 2, dtype="float64"), R, ""),
    ("matmul", lambda m: t(m, 2, 3, 4) @ t(m, 3, 4, 5), R, ""),
    ("linear", lambda m: f(m).linear(t(m, 2, 3), t(m, 5, 4)), R, ""),
    ("view", lambda m: t(m, 2, 3).t().view(6), R, "view"),
    ("view", lambda m: t(m, 2, 3).view(4, -1), R, "6|2, 3"),
    ("reshape", lambda m: t(m, 2, 3).reshape(7), R, "7"),
    ("reshape", lambda m: t(m, 2, 3).reshape(-1, -1), R, ""),
    ("expand", lambda m: t(m, 2, 3).expand(4, 3), R, "4"),
    ("permute", lambda m: t(m, 2, 3).permute(0, 0), R, ""),
    ("permute", lambda m: t(m, 2, 3).permute(0), R, ""),
    ("transpose", lambda m: t(m, 2, 3).transpose(0, 2), I, "2"),
    ("select", lambda m: t(m, 2, 3).select(0, 2), I, "2"),
    ("slice", lambda m: t(m, 2, 3).narrow(0, 1, 2), R, ""),
    ("unsqueeze", lambda m: t(m, 2, 3).unsqueeze(4), I, "4"),
    ("split_with_sizes", lambda m: t(m, 5).split([2, 2]), R, "5"),
    ("cat", lambda m: m.cat([t(m, 2, 3), t(m, 2, 4)], 0), R, "3.*4|4.*3"),
    ("cat", lambda m: m.cat([], 0), (R, V), ""),
    ("stack", lambda m: m.stack([t(m, 2), t(m, 3)]), R, ""),
    ("index", lambda m: t(m, 2, 3)[2], I, "2"),
    ("index", lambda m: t(m, 2, 3)[0, 0, 0], I, ""),
    ("index", lambda m: t(m, 2, 3)[t(m, 3, 3, dtype="bool")], I, ""),
    ("index", lambda m: t(m, 2, 3)[t(m, 2)], I, ""),
    ("index", lambda m: t(m, 3, 3)[i(m, 0, 1), i(m, 0, 1, 2)], I, ""),
    ("index_put", lambda m: t(m, 2, 3).__setitem__(0, t(m, 4)), R, "4"),
    ("gather", lambda m: m.gather(t(m, 2, 3), 0, t(m, 2, 3)), R, ""),
    ("gather", lambda m: m.gather(t(m, 2, 3), 0, i(m, 0)), R, ""),
    ("index_select", lambda m: m.index_select(t(m, 2, 3), 0, t(m, 2)), R, ""),
    ("embedding", lambda m: f(m).embedding(t(m, 2), t(m, 3, 4)), R, ""),
    ("cross_entropy", lambda m: f(m).cross_entropy(t(m, 4, 5), i(m, 0, 1)), (R, V), ""),
    ("nll_loss", lambda m: f(m).nll_loss(t(m, 4, 5), t(m, 4)), R, ""),
    ("layer_norm", lambda m: f(m).layer_norm(t(m, 2, 3), (4,)), R, ""),
    ("clamp", lambda m: t(m, 2).clamp(), (R, V), ""),
    ("full", lambda m: m.zeros(-1), R, "negative|-1"),
    ("arange", lambda m: m.arange(5, 0), R, ""),
    ("linspace", lambda m: m.linspace(0, 1, -1), R, ""),
    ("linalg.inv", lambda m: m.linalg.inv(t(m, 2, 3)), R, "square"),
    ("linalg.inv", lambda m: m.linalg.inv(t(m, 3)), R, "2 dim"),
    ("linalg.inv", lambda m: m.linalg.inv(t(m, 2, 2, dtype="int64")), R, "floating"),
    ("linalg.det", lambda m: m.linalg.det(t(m, 2, 2, dtype="float16")), R, "Low precision"),
    ("linalg.solve", lambda m: m.linalg.solve(t(m, 2, 2), t(m, 3, 2)), R, "Incompatible|3"),
    ("linalg.solve", lambda m: m.linalg.solve(t(m, 2, 2, 2), t(m, 3, 2, 2)), R, ""),
    ("linalg.solve", lambda m: m.linalg.solve(t(m, 2, 2), t(m, 2, 2, dtype="float64")), R, "dtype"),
    ("linalg.solve_triangular", lambda m: m.linalg.solve_triangular(t(m, 2, 3), t(m, 2, 2), upper=True), R, "square"),
    ("linalg.cholesky", lambda m: m.linalg.cholesky(t(m, 2, 3)), R, "square"),
    ("linalg.qr", lambda m: m.linalg.qr(t(m, 2, 3), mode="raw"), R, "mode"),
    ("linalg.eigh", lambda m: m.linalg.eigh(t(m, 2, 2), UPLO="X"), R, "UPLO"),
    ("linalg.svd", lambda m: m.linalg.svd(t(m, 2)), R, "2 dim"),
    ("linalg.lstsq", lambda m: m.linalg.lstsq(t(m, 3, 2), t(m, 2, 2)), R, ""),
    ("linalg.lstsq", lambda m: m.linalg.lstsq(t(m, 3, 2), t(m, 3, 2), driver="x"), R, "driver"),
    ("linalg.matrix_norm", lambda m: m.linalg.matrix_norm(t(m, 3, 2), 3), R, "3"),
    ("linalg.norm", lambda m: m.linalg.norm(t(m, 3, 2, 2), 2), R, "3D"),
    ("linalg.cross", lambda m: m.linalg.cross(t(m, 2), t(m, 2)), R, "3"),
    ("linalg.multi_dot", lambda m: m.linalg.multi_dot([t(m, 2, 2)]), R, "2"),
    ("linalg.householder_product", lambda m: m.linalg.householder_product(t(m, 2, 3), t(m, 2)), R, ""),
    ("linalg.matrix_power", lambda m: m.linalg.matrix_power(t(m, 2, 3), 2), R, "square"),
]

# Found by the kernel: they are raised when a value is read, or at the line; PyTorch raises at the line.
LATE_ERRORS = [
    ("index", lambda m: t(m, 2, 3)[i(m, 0, 2)], I, "2"),
    ("index", lambda m: t(m, 2, 3)[i(m, -3)], I, "-3"),
    ("gather", lambda m: m.gather(t(m, 2, 3), 0, m.tensor([[2, 0, 0]])), (R, I), ""),
    ("index_select", lambda m: m.index_select(t(m, 2, 3), 0, i(m, 2)), (R, I), ""),
    ("embedding", lambda m: f(m).embedding(i(m, 3), t(m, 3, 4)), (R, I), ""),
    ("nll_loss", lambda m: f(m).nll_loss(t(m, 2, 3), i(m, 0, 3)), (R, I), "3"),
    ("one_hot", lambda m: f(m).one_hot(i(m, 3), 3), R, ""),
    ("floor_divide", lambda m: i(m, 1, 2) // i(m, 1, 0), R, "[Zz]ero"),
    ("remainder", lambda m: i(m, 1, 2) % i(m, 1, 0), R, "[Zz]ero"),
    ("linalg.cholesky", lambda m: m.linalg.cholesky(-t(m, 2, 2, 2)), R, r"cholesky: \(Batch element 0\).*order 1"),
    ("linalg.cholesky", lambda m: m.linalg.cholesky(t(m, 2, 2)), R, "cholesky: The fact.*order 2 is not positive"),
    ("linalg.inv", lambda m: m.linalg.inv(t(m, 2, 2)), R, "linalg.inv: The diagonal element 2 is zero"),
    ("linalg.inv", lambda m: m.inverse(m.zeros(3, 2, 2)), R, r"inv: \(Batch element 0\): The diagonal element 1"),
    ("linalg.solve", lambda m: m.linalg.solve(t(m, 2, 2), t(m, 2)), R, "torch.linalg.solve: The solver failed"),
    ("linalg.matrix_power", lambda m: m.linalg.matrix_power(t(m, 2, 2), -1), R, "singular"),
    ("linalg.lu_factor", lambda m: m.linalg.lu_factor(t(m, 2, 2)), R, r"lu_factor: U\[2,2\] is zero"),
    ("linalg.svd", lambda m: m.linalg.svd(t(m, 2, 2) * float("nan")), R, "linalg.svd: .*non-finite"),
    ("linalg.lu_solve", lambda m: m.linalg.lu_solve(t(m, 2, 2), m.tensor([3, 1], dtype=m.int32), t(m, 2, 2)), R, ""),
    ("index_put", lambda m: t(m, 2, 3).index_put_((i(m, 2),), t(m, 3)), I, "2"),
]
