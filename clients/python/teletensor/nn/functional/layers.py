"""Layers as functions: linear, bilinear, embeddings, dropouts, distances."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from ...sparse._gradients import gives_rows, lookup

__all__ = [
    "alpha_dropout",
    "bilinear",
    "cosine_similarity",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "linear",
    "one_hot",
    "pairwise_distance",
    "pdist",
]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: x [..., in], weight [out, in] and bias [out] give [..., out]. A weight of shape
    [in] with a 0-d bias gives [...]."""
    if weight.dim() == 1 and (bias is None or bias.dim() == 0):
        result: Tensor = tt.matmul(input, weight)
        return result if bias is None else result + bias
    return _ops.linear(input, weight, bias)


def bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """y[..., k] = x1 @ weight[k] @ x2 + bias[k]: x1 [..., in1], x2 [..., in2], weight [out, in1, in2] and
    bias [out] give [..., out]."""
    shapes = (tuple(input1.shape), tuple(input2.shape), tuple(weight.shape))
    if weight.dim() != 3 or shapes[0][:-1] != shapes[1][:-1] or (
        (shapes[0][-1:], shapes[1][-1:]) != (shapes[2][1:2], shapes[2][2:3])
    ):
        raise RuntimeError(
            f"bilinear: sizes do not fit: input1 {list(shapes[0])}, input2 {list(shapes[1])}, "
            f"weight {list(shapes[2])}"
        )
    if bias is not None and tuple(bias.shape) != shapes[2][:1]:
        raise RuntimeError(
            f"bilinear(): bias of shape {list(bias.shape)} does not match weight size: expected "
            f"{list(shapes[2][:1])}"
        )
    left = tt.matmul(input1.unsqueeze(-2).unsqueeze(-3), weight).squeeze(-2)
    result: Tensor = tt.matmul(left, input2.unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias


# ---------------------------------------------------------------- embeddings


def _limit_rows(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> None:
    """Scales rows that are looked up and whose norm exceeds max_norm down to max_norm, in place."""
    with tt.no_grad():
        places = indices.reshape((-1,))
        rows = tt.index_select(weight.detach(), 0, places)
        norms = tt.norm(rows, norm_type, -1, keepdim=True)
        scale = tt.where(norms > max_norm, max_norm / (norms + 1e-7), tt.ones_like(norms))
        weight.data.index_copy_(0, places.to(tt.int64), rows * scale)


def _row(name: str, padding_idx: int | None, rows: int) -> int | None:
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise AssertionError(f"{name}: padding_idx {padding_idx} is outside of {rows} rows")
    return padding_idx % rows


def _by_frequency(taken: Tensor, indices: Tensor, rows: int) -> Tensor:
    """Returns `taken`, with its gradient divided by the number of occurrences of each index."""
    places = indices.reshape((-1,)).to(tt.int64)
    counts = tt.zeros(rows, dtype=taken.dtype, device=taken.device)
    counts = counts.index_add(0, places, tt.ones_like(places).to(taken.dtype))
    share = (1 / tt.index_select(counts, 0, places)).reshape((*indices.shape, 1))
    scaled = taken * share
    return taken.detach() + (scaled - scaled.detach())


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Row weight[i] for every index i: input [...] of int32 or int64 and weight [rows, columns] give [...,
    columns]. The row padding_idx gets no gradient. An index out of range raises IndexError when a result is
    read.

    Rows whose norm_type-norm exceeds max_norm are first scaled down in place. With scale_grad_by_freq the
    gradient of a row is divided by the number of its occurrences. With `sparse` the gradient of a weight
    that is a leaf is a sparse tensor, which has only the rows that were looked up (also the row
    padding_idx, with zeros); NotImplementedError in a captured function.
    """
    rows = weight.shape[0] if weight.dim() else 0
    padding = _row("embedding", padding_idx, rows)
    if max_norm is not None:
        _limit_rows(weight, input, max_norm, norm_type)
    return _rows_of(weight, input, padding, scale_grad_by_freq, sparse)


def _rows_of(
    weight: Tensor, indices: Tensor, padding: int | None, by_frequency: bool, sparse: bool
) -> Tensor:
    if sparse and gives_rows(weight):
        return lookup(weight, indices, padding, by_frequency)
    taken = (
        _ops.embedding(weight, indices) if padding is None else _ops.embedding(weight, indices, padding)
    )
    return _by_frequency(taken, indices, weight.shape[0]) if by_frequency else taken


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of bags of rows of weight [rows, columns]: the result is [bags, columns].

    input is [bags, n], or [n] with offsets, which give the start of each bag (with include_last_offset also
    the end of the last one). per_sample_weights multiply the rows (mode "sum" only). The row padding_idx is
    left out of the bags.
    """
    name = "embedding_bag"
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if weight.dtype in (tt.int64, tt.int32) and input.dtype.is_floating_point:
        warnings.warn(
            "Argument order of nn.functional.embedding_bag was changed. Usage "
            "`embedding_bag(weight, input, ...)` is deprecated, and should now be "
            "`embedding_bag(input, weight, ...)`.",
            stacklevel=2,
        )
        input, weight = weight, input
    if per_sample_weights is not None:
        if per_sample_weights.dtype != weight.dtype:
            raise RuntimeError(f"{name}: expected weight and per_sample_weights to have the same type, got "
                               f"{weight.dtype.name} and {per_sample_weights.dtype.name}")
        if tuple(per_sample_weights.shape) != tuple(input.shape):
            raise ValueError(
                f"{name}: If per_sample_weights ({list(per_sample_weights.shape)}) is not None, "
                f"then it must have the same shape as the input ({list(input.shape)})"
            )
        if mode != "sum":
            raise NotImplementedError(
                f"{name}: per_sample_weights was not None. per_sample_weights is only supported "
                f"for mode='sum' (got mode='{mode}')."
            )
    if weight.dim() != 2:
        raise ValueError(f"{name}: weight has to be a 2D Tensor, got {list(weight.shape)}")
    if sparse and mode == "max":
        raise ValueError("max mode does not support sparse weights")
    if scale_grad_by_freq and mode == "max":
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    padding = _row(name, padding_idx, weight.shape[0])
    if max_norm is not None:
        _limit_rows(weight, input, max_norm, norm_type)
    taken = _rows_of(weight, input, padding, scale_grad_by_freq, sparse)
    kept = None if padding is None else input != padding
    if weight.dtype in (tt.float16, tt.bfloat16) and mode != "max":
        taken = taken.to(tt.float32)  # so that sums are rounded once, at the end
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.to(tt.float32)
    if per_sample_weights is not None:
        taken = taken * per_sample_weights.unsqueeze(-1)
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError("if input is 2D, then offsets has to be None")
        return _bags(taken, kept, mode).to(weight.dtype)
    if input.dim() != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    if offsets.dim() != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    if include_last_offset and offsets.shape[0] == 0:
        raise RuntimeError(f"{name}: include_last_offset: number of offsets should be at least 1")
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    count = input.shape[0]
    starts = offsets[:bags].to(tt.int64)
    marks = tt.zeros(count + 1, dtype=tt.int64, device=input.device)
    marks = marks.index_add(0, starts, tt.ones_like(starts))
    bag = tt.cumsum(marks, 0)[:count] - 1
    if mode == "max":
        return _largest(taken, kept, bag, bags)
    if kept is not None:
        taken = tt.where(kept.unsqueeze(-1), taken, tt.zeros_like(taken))
    total = tt.zeros((bags, weight.shape[1]), dtype=taken.dtype, device=taken.device)
    total = total.index_add(0, bag, taken)
    if mode == "mean":
        ones = tt.ones_like(bag) if kept is None else kept.to(tt.int64)
        sizes = tt.zeros(bags, dtype=tt.int64, device=bag.device).index_add(0, bag, ones)
        total = total / sizes.clamp(min=1).unsqueeze(-1).to(total.dtype)
    return total.to(weight.dtype)


def _bags(taken: Tensor, kept: Tensor | None, mode: str) -> Tensor:
    """Reduces bags of equal length: `taken` is [bags, n, columns]."""
    if mode == "max":
        if taken.shape[1] == 0:
            return taken.sum(1)
        if kept is None:
            largest: Tensor = tt.max(taken, 1)[0]
            return largest
        taken = tt.where(kept.unsqueeze(-1), taken, float("-inf"))
        result: Tensor = tt.max(taken, 1)[0]
        cut: Tensor = tt.where(kept.any(1, keepdim=True), result, 0.0)
        return cut
    if kept is not None:
        taken = tt.where(kept.unsqueeze(-1), taken, tt.zeros_like(taken))
    total = taken.sum(1)
    if mode == "sum":
        return total
    if kept is None:
        return total / max(taken.shape[1], 1)
    return total / kept.sum(1, keepdim=True).clamp(min=1).to(total.dtype)


def _largest(taken: Tensor, kept: Tensor | None, bag: Tensor, bags: int) -> Tensor:
    """The maxima of bags of different lengths; if elements are equal, the gradient goes to the first
    one."""
    count, columns = taken.shape[0], taken.shape[1]
    empty = tt.zeros((bags, columns), dtype=taken.dtype, device=taken.device)
    if count == 0 or bags == 0:
        return empty
    with tt.no_grad():
        seen = taken.detach()
        if kept is not None:
            seen = tt.where(kept.unsqueeze(-1), seen, float("-inf"))
        bag = bag.unsqueeze(-1).expand(count, columns)
        largest = empty.scatter_reduce(0, bag, seen, "amax", include_self=False)
        found = (seen == largest.gather(0, bag)) | tt.isnan(seen)
        if kept is not None:
            found = found & kept.unsqueeze(-1)
        place = tt.arange(count, device=bag.device).unsqueeze(-1).expand(count, columns)
        place = tt.where(found, place, count)
        none = tt.full((bags, columns), count, dtype=tt.int64, device=bag.device)
        first = none.scatter_reduce(0, bag, place, "amin")
    picked = taken.gather(0, first.clamp(max=count - 1))
    result: Tensor = tt.where(first < count, picked, empty)
    return result


# ---------------------------------------------------------------- dropouts


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Each element is set to zero with probability p, and the remaining ones are divided by 1 - p. With
    training=False the input itself is returned. ValueError for p outside of [0, 1]."""
    _check_probability(p)
    if not training:
        return input
    result = tt.dropout(input, p, True)
    return input.copy_(result) if inplace else result


def _noise(input: Tensor, p: float, lead: int) -> Tensor:
    """1 with probability 1 - p, and 0 otherwise; one number for each index of the first `lead`
    dimensions."""
    shape = (*input.shape[:lead], *([1] * (input.dim() - lead)))
    return (tt.rand(shape, device=input.device) >= p).to(input.dtype)


def _feature_dropout(
    name: str, input: Tensor, p: float, training: bool, inplace: bool, ranks: tuple[int, ...]
) -> Tensor:
    _check_probability(p)
    if input.dim() not in ranks and name != "dropout1d":
        warnings.warn(
            f"{name}: Received a {input.dim()}-D input to {name}, which is deprecated and will "
            f"result in an error in a future release.",
            stacklevel=3,
        )
    if input.dim() not in ranks and name == "dropout1d":
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input. Note that "
            f"dropout1d exists to provide channel-wise dropout on inputs with 1 spatial dimension, "
            f"a channel dimension, and an optional batch dimension (i.e. 2D or 3D inputs)."
        )
    if not training or p == 0:
        return input
    unbatched = name != "dropout2d" and input.dim() == ranks[0] and len(ranks) > 1
    lead = 1 if unbatched else 2
    if p == 1:
        result = input * 0
    else:
        result = input * (_noise(input, p, lead) / (1 - p))
    return input.copy_(result) if inplace else result


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of [N, C, L] (or [C, L]) are set to zero with probability p, and the remaining ones
    are divided by 1 - p."""
    return _feature_dropout("dropout1d", input, p, training, inplace, (2, 3))


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of [N, C, H, W] are set to zero with probability p, and the remaining ones are divided
    by 1 - p."""
    return _feature_dropout("dropout2d", input, p, training, inplace, (3, 4))


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of [N, C, D, H, W] (or [C, D, H, W]) are set to zero with probability p, and the
    remaining ones are divided by 1 - p."""
    return _feature_dropout("dropout3d", input, p, training, inplace, (4, 5))


def _alpha(input: Tensor, p: float, training: bool, inplace: bool, lead: int) -> Tensor:
    _check_probability(p)
    if not training or p == 0:
        return input
    if p == 1:
        result = input * 0
    else:
        # The negative limit of SELU, and the affine map that keeps the mean and the variance.
        alpha = 1.7580993408473766
        a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
        noise = _noise(input, p, lead)
        result = input * (noise * a) + ((noise - 1) * (alpha * a) + alpha * a * p)
    return input.copy_(result) if inplace else result


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Elements are set to SELU's negative limit with probability p, and then all elements are transformed
    so that the mean stays 0 and the variance 1. Source: Klambauer et al. 2017."""
    return _alpha(input, p, training, inplace, input.dim())


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """alpha_dropout of whole channels (dimension 1)."""
    if training and p > 0 and input.dim() < 2:
        raise RuntimeError(
            f"Feature dropout requires at least 2 dimensions in the input, got shape "
            f"{list(input.shape)}"
        )
    return _alpha(input, p, training, inplace, 2)


# ---------------------------------------------------------------- encodings and distances


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 zeros of shape [..., num_classes] with a one at each index. num_classes=-1 first waits for the
    largest index. RuntimeError for indices of another dtype than int64."""
    if tensor.dtype != tt.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    return tt.one_hot(tensor, num_classes)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """sum(x1 * x2) / (max(|x1|, eps) * max(|x2|, eps)) along dim; the shapes broadcast."""
    dtype = tt.result_type(x1, x2)
    if not dtype.is_floating_point:
        raise RuntimeError(f"expected common dtype to be floating point, yet common dtype is {dtype}")
    x1, x2 = x1.to(dtype), x2.to(dtype)
    if tuple(x1.shape) != tuple(x2.shape):
        x1, x2 = tt.broadcast_tensors(x1, x2)
    first = tt.norm(x1, 2, dim, keepdim=True).clamp(min=eps)
    second = tt.norm(x2, 2, dim, keepdim=True).clamp(min=eps)
    return ((x1 / first) * (x2 / second)).sum(dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last dimension."""
    return tt.norm(x1 - x2 + eps, p, -1, keepdim=keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances between the rows of input [N, M]: a vector of N (N - 1) / 2 distances, first
    those from row 0 to rows 1, 2, ..."""
    if input.dim() != 2:
        raise RuntimeError(
            f"pdist only supports 2D tensors, got: {input.dim()}D of shape {list(input.shape)}"
        )
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"pdist only supports floating-point dtypes, got {input.dtype}")
    if p < 0:
        raise RuntimeError(f"pdist only supports non-negative p values, got {p}")
    rows = input.shape[0]
    if rows < 2:
        return tt.norm(input[1:], p, -1)  # no distances, with the history of input
    pieces = [
        tt.norm(input[i + 1 :] - input[i], p, -1) for i in range(rows - 1)
    ] if rows <= 32 else [_pairs(input, p)]
    return tt.cat(pieces)


def _pairs(input: Tensor, p: float) -> Tensor:
    """The distances of all pairs i < j, in order."""
    rows = input.shape[0]
    k = tt.arange(rows * (rows - 1) // 2, device=input.device)
    wide = 2 * rows - 1
    i = tt.floor((wide - tt.sqrt((wide * wide - 8 * k).to(tt.float64))) / 2).to(tt.int64)
    begin: Callable[[Tensor], Tensor] = lambda n: n * (wide - n) // 2  # noqa: E731
    i = i - (begin(i) > k).to(tt.int64)  # corrects the rounding of the square root
    i = i + (begin(i + 1) <= k).to(tt.int64)
    j = k - begin(i) + i + 1
    return tt.norm(tt.index_select(input, 0, i) - tt.index_select(input, 0, j), p, -1)
