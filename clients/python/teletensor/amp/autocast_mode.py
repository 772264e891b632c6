"""autocast: matrix products in 16 bits, losses and what needs the range in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core
from .._tree import map_tree

__all__ = ["autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

F = TypeVar("F", bound=Callable[..., Any])

# Ops by what autocast does to their operands, as PyTorch's lists for a CPU say. Ops that are in no
# list take what they get; composed functions (attention, say) reach ops that are in one.
_LOWER = [
    "matmul", "mm", "bmm", "mv", "dot", "addmm", "addmv", "addbmm", "baddbmm", "linear", "vecdot",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "conv", "conv_transpose", "scaled_dot_product_attention", "prelu",
]  # fmt: skip
_F32 = [
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "cross_entropy", "nll_loss", "ctc_loss",
    "poisson_nll_loss", "gaussian_nll_loss", "cosine_embedding_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "triplet_margin_loss", "multi_margin_loss", "multilabel_margin_loss",
    "soft_margin_loss", "prod", "cdist", "grid_sample", "quantile", "nanquantile", "trace",
    "polar", "stft", "istft", "cholesky", "cholesky_solve", "cholesky_inverse", "inv", "inv_ex",
    "solve", "solve_ex", "qr", "svd", "svdvals", "eig", "eigh", "eigvals", "eigvalsh", "lstsq",
    "lu", "lu_factor", "lu_solve", "matrix_exp", "matrix_power", "matrix_rank", "pinv", "slogdet",
    "det", "cond", "tensorinv", "tensorsolve", "fft", "ifft", "fft2", "ifft2", "fftn", "ifftn",
    "rfft", "irfft", "rfft2", "irfft2", "rfftn", "irfftn", "hfft", "ihfft", "avg_pool3d",
    "adaptive_avg_pool3d", "unique_dim", "view_as_complex",
]  # fmt: skip
_WIDEST = ["cat", "stack", "index_copy"]
# On a GPU also these need float32's range, as in PyTorch's list for CUDA.
_F32_CUDA = [
    "exp", "expm1", "log", "log10", "log2", "log1p", "acos", "asin", "cosh", "sinh", "tan", "pow",
    "reciprocal", "rsqrt", "erfinv", "softplus", "softmax", "log_softmax", "layer_norm",
    "group_norm", "rms_norm", "norm", "cumsum", "cumprod", "sum", "renorm", "logsumexp", "dist",
    "pdist", "logcumsumexp", "softmin",
]  # fmt: skip
_WIDEST_CUDA = ["addcdiv", "addcmul", "atan2", "bilinear", "cross", "scatter_add", "index_put"]

_core.set_autocast_policies(0, _LOWER, _F32, _WIDEST)
_core.set_autocast_policies(1, _LOWER, [*_F32, *_F32_CUDA], [*_WIDEST, *_WIDEST_CUDA])

_PLACES = {"cpu": 0, "sim": 0, "cuda": 1}


def is_autocast_available(device_type: str) -> bool:
    """Does autocast know this type of device?"""
    return device_type in _PLACES


def _place(device_type: Any) -> int:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
    if device_type not in _PLACES:
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}': it is one of "
            f"{', '.join(map(repr, _PLACES))}"
        )
    return _PLACES[device_type]


class autocast(_core.AutocastScope):
    """Within the region, matrix products and convolutions take their float operands as `dtype`
    (bfloat16 by default on a CPU, float16 on a GPU), losses theirs as float32, and `cat` the widest
    of its operands'; float64 is left alone. A weight is cast once in a region (cache_enabled). A
    context manager and a decorator, of this thread; in-place ops are not touched.

    >>> w = tt.ones(2, 2)
    >>> with tt.autocast("cpu"):
    ...     y = w @ w
    >>> y.dtype
    teletensor.bfloat16
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self._where = _place(device_type)
        self.device = device_type
        default = _core.float16 if self._where else _core.bfloat16
        self.fast_dtype = default if dtype is None else dtype
        if self.fast_dtype not in (_core.bfloat16, _core.float16, _core.float32):
            raise RuntimeError(
                f"autocast: dtype must be float16 or bfloat16, not {self.fast_dtype}"
            )
        super().__init__(self._where, bool(enabled) and self.fast_dtype != _core.float32,
                         self.fast_dtype, cache_enabled)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return within  # type: ignore[return-value]


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """A decorator of the forward of a `Function`: its backward, under custom_bwd, runs with autocast as it
    was in the forward.

    With cast_inputs (a dtype) the forward runs, inside a region of autocast, without autocast and with its
    floating-point tensors on that type of device as this dtype, those in containers too (not float64)."""
    place = _place(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    def cast(value: Any) -> Any:
        if not isinstance(value, _core.Tensor):
            return value
        wanted = value.is_floating_point() and _PLACES.get(value.device.type) == place
        return value.to(cast_inputs) if wanted and value.dtype != _core.float64 else value

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        on, dtype = _core.autocast_state(bool(place))[:2]
        ctx._autocast = autocast(device_type, dtype, on and cast_inputs is None)
        if cast_inputs is None or not on:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(ctx, *map_tree(cast, args), **map_tree(cast, kwargs))

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """A decorator of the backward of a `Function` whose forward has custom_fwd: it runs with autocast as
    the forward's lines did."""
    _place(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *grads: Any) -> Any:
        with ctx._autocast:
            return bwd(ctx, *grads)

    return backward
