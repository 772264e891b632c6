"""autocast: computes matrix products in 16 bits, and losses and other ops that need the range in
float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core
from .._calls.tree import map_tree

__all__ = ["autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

F = TypeVar("F", bound=Callable[..., Any])

# The ops by what autocast does to their operands, as in PyTorch's lists for CPUs. An op that is in no list
# takes its operands unchanged; functions that are composed of ops (such as attention) call ops that are in
# a list.
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
# Further ops that need the range of float32 on a GPU, as in PyTorch's list for CUDA.
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
    """Returns whether autocast supports this type of device."""
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
    """Within the region, matrix products and convolutions cast their floating-point operands to `dtype` (by
    default bfloat16 on a CPU and float16 on a GPU), losses cast theirs to float32, and `cat` to the widest
    dtype among its operands; float64 operands are not cast. A weight is cast once in a region
    (cache_enabled). A context manager and a decorator that applies to this thread; in-place ops are not
    affected.

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
    """A decorator for the forward of a `Function`: its backward, decorated by custom_bwd, runs with the
    autocast state of the forward.

    With cast_inputs (a dtype), a forward inside an autocast region runs without autocast, and its
    floating-point tensors on that type of device are cast to this dtype, including those in containers (but
    not float64)."""
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
    """A decorator for the backward of a `Function` whose forward has custom_fwd: it runs with the autocast
    state of the forward."""
    _place(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *grads: Any) -> Any:
        with ctx._autocast:
            return bwd(ctx, *grads)

    return backward
