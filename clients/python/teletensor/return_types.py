"""The named tuples that functions with several results return, under their functions' names as in
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
    """Prints a field a line."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        fields = ",\n".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{_core.text_prefix()}.return_types.{type(self).__name__}(\n{fields})"


class _ValuesIndices(NamedTuple):
    values: Tensor
    indices: Tensor


class cummax(_Shown, _ValuesIndices):
    """The largest elements so far along a dim, and where they stand."""


class cummin(_Shown, _ValuesIndices):
    """The smallest elements so far along a dim, and where they stand."""


class kthvalue(_Shown, _ValuesIndices):
    """The k-th smallest elements along a dim, and where they stand."""


class max(_Shown, _ValuesIndices):
    """The largest elements along a dim, and where they stand."""


class median(_Shown, _ValuesIndices):
    """The middle elements along a dim, and where they stand."""


class min(_Shown, _ValuesIndices):
    """The smallest elements along a dim, and where they stand."""


class mode(_Shown, _ValuesIndices):
    """The most frequent elements along a dim, and where they stand."""


class nanmedian(_Shown, _ValuesIndices):
    """The middle elements along a dim, NaNs aside, and where they stand."""


class sort(_Shown, _ValuesIndices):
    """Elements in order along a dim, and where they stood."""


class topk(_Shown, _ValuesIndices):
    """The k largest or smallest elements along a dim, and where they stand."""


class _MinMax(NamedTuple):
    min: Tensor
    max: Tensor


class aminmax(_Shown, _MinMax):
    """The smallest and the largest element."""


class _MantissaExponent(NamedTuple):
    mantissa: Tensor
    exponent: Tensor


class frexp(_Shown, _MantissaExponent):
    """input = mantissa * 2 ** exponent."""


class _ATau(NamedTuple):
    a: Tensor
    tau: Tensor


class geqrf(_Shown, _ATau):
    """QR in LAPACK's form, and the scales of its Householder vectors."""


class _HistBinEdges(NamedTuple):
    hist: Tensor
    bin_edges: Any


class histogram(_Shown, _HistBinEdges):
    """Counts, and the edges of the bins."""


class histogramdd(_Shown, _HistBinEdges):
    """Counts, and the edges of the bins of each dimension."""


class _LInfo(NamedTuple):
    L: Tensor
    info: Tensor


class linalg_cholesky_ex(_Shown, _LInfo):
    """The factor, and the order of the first minor that is not positive-definite (0: none)."""


class _EigenvaluesEigenvectors(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_eig(_Shown, _EigenvaluesEigenvectors):
    """A = V diag(w) V^-1."""


class linalg_eigh(_Shown, _EigenvaluesEigenvectors):
    """A = V diag(w) V^H."""


class _InverseInfo(NamedTuple):
    inverse: Tensor
    info: Tensor


class linalg_inv_ex(_Shown, _InverseInfo):
    """The inverse, and the number of the diagonal element of U that is zero (0: none)."""


class _LdPivots(NamedTuple):
    LD: Tensor
    pivots: Tensor


class linalg_ldl_factor(_Shown, _LdPivots):
    """LDL in LAPACK's compact form."""


class _LdPivotsInfo(NamedTuple):
    LD: Tensor
    pivots: Tensor
    info: Tensor


class linalg_ldl_factor_ex(_Shown, _LdPivotsInfo):
    """linalg_ldl_factor and LAPACK's status."""


class _SolutionResidualsRankSingularValues(NamedTuple):
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class linalg_lstsq(_Shown, _SolutionResidualsRankSingularValues):
    """What minimizes the norm of A X - B."""


class _PLU(NamedTuple):
    P: Tensor
    L: Tensor
    U: Tensor


class linalg_lu(_Shown, _PLU):
    """A = P L U."""


class lu_unpack(_Shown, _PLU):
    """A = P L U."""


class _LuPivots(NamedTuple):
    LU: Tensor
    pivots: Tensor


class linalg_lu_factor(_Shown, _LuPivots):
    """LU in LAPACK's compact form."""


class _LuPivotsInfo(NamedTuple):
    LU: Tensor
    pivots: Tensor
    info: Tensor


class linalg_lu_factor_ex(_Shown, _LuPivotsInfo):
    """linalg_lu_factor and LAPACK's status."""


class _QR(NamedTuple):
    Q: Tensor
    R: Tensor


class linalg_qr(_Shown, _QR):
    """A = Q R."""


class qr(_Shown, _QR):
    """A = Q R."""


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
    """A = U diag(S) Vh."""


class _USV(NamedTuple):
    U: Tensor
    S: Tensor
    V: Tensor


class svd(_Shown, _USV):
    """A = U diag(S) V^H."""


class _SolutionClonedCoefficient(NamedTuple):
    solution: Tensor
    cloned_coefficient: Tensor


class triangular_solve(_Shown, _SolutionClonedCoefficient):
    """The solution, and a copy of the coefficients."""
