"""Linear algebra: the differentiable functions of torch.linalg for batches of matrices.

Matrices are the last two dims of a tensor, and the leading dims are a batch. Dtypes are float32, float64,
complex64 and complex128. Errors that are known from the shapes are raised at the line of the call. A matrix
that is singular or not positive-definite, or a decomposition that does not converge, raises LinAlgError
when a value that depends on it is read.
"""

from .._calls import checked as _checked, out as _out
from .._sessions.errors import LinAlgError
from ._decompositions import (
    cholesky,
    cholesky_ex,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    householder_product,
    ldl_factor,
    ldl_factor_ex,
    ldl_solve,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    qr,
    svd,
    svdvals,
)
from ._products import (
    cond,
    cross,
    diagonal,
    matmul,
    matrix_norm,
    multi_dot,
    norm,
    vander,
    vecdot,
    vector_norm,
)
from ._solvers import (
    det,
    inv,
    inv_ex,
    lstsq,
    matrix_exp,
    matrix_power,
    matrix_rank,
    pinv,
    slogdet,
    solve,
    solve_ex,
    solve_triangular,
    tensorinv,
    tensorsolve,
)

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh",
    "eigvals", "eigvalsh", "householder_product", "inv", "inv_ex", "ldl_factor", "ldl_factor_ex",
    "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp",
    "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet",
    "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander",
    "vecdot", "vector_norm",
]

_checked.attach(globals(), __all__)
_out.attach(globals(), _out.LINALG)
