"""The parameter out=, which stores the result in a given tensor, for every function that has it in PyTorch.

Ops of the catalog implement `out` natively (`_core/ops.cc` calls `store`); functions written in Python are
wrapped here by name.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, MutableMapping
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .checked import checked, exporting

__all__ = ["FFT", "FUNCTIONS", "LINALG", "SPECIAL", "attach", "store"]

FUNCTIONS = tuple("""
addbmm addmv addr aminmax any arange baddbmm bartlett_window bernoulli blackman_window bucketize cat
chain_matmul cholesky_inverse cholesky_solve column_stack concat concatenate conj_physical cross
cummax cummin diff div divide dstack empty empty_like eye float_power frexp full full_like gather
geqrf ger hamming_window hann_window histc histogram hstack index_select inner inverse isin
isneginf isposinf kaiser_window kron kthvalue ldexp linspace logspace logsumexp lu_solve lu_unpack
masked_select matrix_power max median min mode msort multinomial multiply mvlgamma nan_to_num
nanmean nanmedian nanquantile narrow_copy nonzero norm normal ones ones_like ormqr outer polygamma
prod quantile rand rand_like randint randint_like randn randn_like randperm renorm round row_stack
sgn softmax sort stack std std_mean sum svd take take_along_dim topk triangular_solve tril_indices
triu_indices true_divide var var_mean vdot vstack where zeros zeros_like
""".split())
LINALG = tuple("""
cholesky cholesky_ex cond cross det eig eigh eigvals eigvalsh householder_product inv inv_ex
ldl_factor ldl_factor_ex ldl_solve lu lu_factor lu_factor_ex lu_solve matmul matrix_norm
matrix_power matrix_rank multi_dot norm pinv qr slogdet solve solve_ex solve_triangular svd svdvals
tensorinv tensorsolve vecdot vector_norm
""".split())
FFT = tuple("""
fft fft2 fftfreq fftn hfft hfft2 hfftn ifft ifft2 ifftn ihfft ihfft2 ihfftn irfft irfft2 irfftn rfft
rfft2 rfftfreq rfftn
""".split())
SPECIAL = ("modified_bessel_i0", "modified_bessel_i1", "multigammaln", "round")


def store(name: str, out: Any, result: Any) -> Any:
    """Stores the result in the given tensor (or tuple of tensors), and returns that.

    If the tensor has another shape it is resized to the result's, with PyTorch's warning unless it was
    empty. RuntimeError if gradients would be recorded, if the dtype cannot hold the result, or if the
    tensor is on another device.
    """
    if isinstance(result, tuple):
        if not isinstance(out, (tuple, list)) or len(out) != len(result):
            raise TypeError(f"{name}(): argument 'out' must be a tuple of {len(result)} Tensors")
        stored = [store(name, a, b) for a, b in zip(out, result, strict=True)]
        kind: Any = type(result)
        return kind(*stored) if hasattr(result, "_fields") else tuple(stored)
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {_core.described(out)}")
    if result.requires_grad or (out.requires_grad and _core.grad_mode()):
        raise RuntimeError(f"{name}(): functions with out=... arguments don't support automatic "
                           "differentiation, but one of the arguments requires grad.")
    if out.device != result.device:
        raise RuntimeError(f"{name}(): Expected all tensors to be on the same device, but found at least "
                           f"two devices, {result.device} and {out.device}!")
    if not _core.can_cast(result.dtype, out.dtype):
        raise RuntimeError(f"result type {result.dtype.name} can't be cast to the desired output type "
                           f"{out.dtype.name}")
    if out._shape == result._shape:
        return ops["copy_"](out, result)
    if out.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out._shape)}, which "
            f"does not match the required output shape {list(result._shape)}. This behavior is deprecated, "
            "and in a future release outputs will not be resized unless they have zero elements.",
            UserWarning, stacklevel=3)
    if out._is_view():
        return ops["copy_"](out.resize_(result._shape), result)
    out._set_data(result if result.dtype == out.dtype else ops["cast"](result, out.dtype))
    return out


def _taking_out(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            return function(*args, **kwargs)
        return store(name, out, function(*args, **kwargs))

    return call


def attach(space: MutableMapping[str, Any], names: tuple[str, ...]) -> None:
    """Adds the parameter out= to functions of a module's namespace that `_checked.attach` has wrapped."""
    for name in names:
        function = space.get(name)
        if callable(function) and hasattr(function, "__code__") and "out" not in (
                inspect.signature(function, follow_wrapped=False).parameters):
            space[name] = checked(_taking_out(name, function.__wrapped__), exporting(space))
