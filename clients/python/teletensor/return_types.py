"""The named tuples that functions with several results return, named after the functions as in
torch.return_types."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core
from ._core import Tensor

__all__ = [
    "aminmax", "cummax", "cummin", "frexp", "geqrf", "histogram", "histogramdd", "kthvalue",
    "linalg_cholesky_ex", "linalg_eig", "linalg_eigh", "linalg_inv_ex", "linalg_ldl_factor",
    "linalg_ldl_factor_ex", "linalg_lstsq", "linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex",
    "linalg_qr", "linalg_slogdet", "linalg_solve_ex", "linalg_svd", "lu_unpack", "max", "median",
    "min", "mode", "nanmedian", "qr", "slogdet", "sort", "svd", "topk", "triangular_solve",
]


class _Shown:
    """Base class whose repr prints one line for each field."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        fields = ",\n".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{_core.text_prefix()}.return_types.{type(self).__name__}(\n{fields})"


class _ValuesIndices(NamedTuple):
    values: Tensor
    indices: Tensor


class cummax(_Shown, _ValuesIndices):
    """The cumulative maxima along a dim, and their indices."""


class cummin(_Shown, _ValuesIndices):
    """The cumulative minima along a dim, and their indices."""


class kthvalue(_Shown, _ValuesIndices):
    """The k-th smallest elements along a dim, and their indices."""


class max(_Shown, _ValuesIndices):
    """The largest elements along a dim, and their indices."""


class median(_Shown, _ValuesIndices):
    """The medians along a dim, and their indices."""


class min(_Shown, _ValuesIndices):
    """The smallest elements along a dim, and their indices."""


class mode(_Shown, _ValuesIndices):
    """The most frequent elements along a dim, and their indices."""


class nanmedian(_Shown, _ValuesIndices):
    """The medians along a dim of the elements that are not NaN, and their indices."""


class sort(_Shown, _ValuesIndices):
    """The sorted elements along a dim, and their indices in the input."""


class topk(_Shown, _ValuesIndices):
    """The k largest or smallest elements along a dim, and their indices."""


class _MinMax(NamedTuple):
    min: Tensor
    max: Tensor


class aminmax(_Shown, _MinMax):
    """The smallest and the largest element."""


class _MantissaExponent(NamedTuple):
    mantissa: Tensor
    exponent: Tensor


class frexp(_Shown, _MantissaExponent):
    """The mantissa and the exponent of input = mantissa * 2 ** exponent."""


class _ATau(NamedTuple):
    a: Tensor
    tau: Tensor


class geqrf(_Shown, _ATau):
    """The QR decomposition in LAPACK's form, and the scale factors of its Householder vectors."""


class _HistBinEdges(NamedTuple):
    hist: Tensor
    bin_edges: Any


class histogram(_Shown, _HistBinEdges):
    """The number of elements in each bin, and the edges of the bins."""


class histogramdd(_Shown, _HistBinEdges):
    """The number of points in each cell, and the edges of the bins of each dimension."""


class _LInfo(NamedTuple):
    L: Tensor
    info: Tensor


class linalg_cholesky_ex(_Shown, _LInfo):
    """The Cholesky factor, and the order of the first leading minor that is not positive-definite (0 if
    there is none)."""


class _EigenvaluesEigenvectors(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_eig(_Shown, _EigenvaluesEigenvectors):
    """The eigenvalues w and eigenvectors V of A = V diag(w) V^-1."""


class linalg_eigh(_Shown, _EigenvaluesEigenvectors):
    """The eigenvalues w and eigenvectors V of A = V diag(w) V^H."""


class _InverseInfo(NamedTuple):
    inverse: Tensor
    info: Tensor


class linalg_inv_ex(_Shown, _InverseInfo):
    """The inverse, and the 1-based index of the diagonal element of U that is zero (0 if there is none)."""


class _LdPivots(NamedTuple):
    LD: Tensor
    pivots: Tensor


class linalg_ldl_factor(_Shown, _LdPivots):
    """The LDL decomposition in LAPACK's compact form."""


class _LdPivotsInfo(NamedTuple):
    LD: Tensor
    pivots: Tensor
    info: Tensor


class linalg_ldl_factor_ex(_Shown, _LdPivotsInfo):
    """The result of linalg_ldl_factor, and LAPACK's status."""


class _SolutionResidualsRankSingularValues(NamedTuple):
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class linalg_lstsq(_Shown, _SolutionResidualsRankSingularValues):
    """The X that minimizes the norm of A X - B, and LAPACK's further results."""


class _PLU(NamedTuple):
    P: Tensor
    L: Tensor
    U: Tensor


class linalg_lu(_Shown, _PLU):
    """The factors of A = P L U."""


class lu_unpack(_Shown, _PLU):
    """The factors of A = P L U."""


class _LuPivots(NamedTuple):
    LU: Tensor
    pivots: Tensor


class linalg_lu_factor(_Shown, _LuPivots):
    """The LU decomposition in LAPACK's compact form."""


class _LuPivotsInfo(NamedTuple):
    LU: Tensor
    pivots: Tensor
    info: Tensor


class linalg_lu_factor_ex(_Shown, _LuPivotsInfo):
    """The result of linalg_lu_factor, and LAPACK's status."""


class _QR(NamedTuple):
    Q: Tensor
    R: Tensor


class linalg_qr(_Shown, _QR):
    """The factors of A = Q R."""


class qr(_Shown, _QR):
    """The factors of A = Q R."""


class _SignLogabsdet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


class linalg_slogdet(_Shown, _SignLogabsdet):
    """The determinant is sign * exp(logabsdet)."""


class slogdet(_Shown, _SignLogabsdet):
    """The determinant is sign * exp(logabsdet)."""


class _ResultInfo(NamedTuple):
    result: Tensor
    info: Tensor


class linalg_solve_ex(_Shown, _ResultInfo):
    """The solution, and LAPACK's status."""


class _USVh(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class linalg_svd(_Shown, _USVh):
    """The factors of A = U diag(S) Vh."""


class _USV(NamedTuple):
    U: Tensor
    S: Tensor
    V: Tensor


class svd(_Shown, _USV):
    """The factors of A = U diag(S) V^H."""


class _SolutionClonedCoefficient(NamedTuple):
    solution: Tensor
    cloned_coefficient: Tensor


class triangular_solve(_Shown, _SolutionClonedCoefficient):
    """The solution, and a copy of the coefficient matrix."""
