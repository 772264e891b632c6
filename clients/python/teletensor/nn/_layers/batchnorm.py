"""Normalisation layers with running statistics, or over groups of channels."""

from __future__ import annotations

from typing import Any

from ... import _api as tt
from ..._tensors.tensor import Tensor
from .. import functional as F, init
from ..module import Module
from ..parameter import Parameter

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CrossMapLRN2d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LocalResponseNorm",
    "SyncBatchNorm",
]


class _NormBase(Module):
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _ranks: tuple[int, ...]
    _version = 2  # since version 2 of the state there is num_batches_tracked

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            empty = tt.empty(num_features, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if empty is None else Parameter(empty))
        kept = track_running_stats
        zeros = tt.zeros(num_features, device=device, dtype=dtype) if kept else None
        ones = tt.ones(num_features, device=device, dtype=dtype) if kept else None
        count = tt.zeros((), dtype=tt.int64, device=device) if kept else None
        self.register_buffer("running_mean", zeros)
        self.register_buffer("running_var", ones)
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Sets the running mean to 0, the running variance to 1, and the number of batches to 0."""
        if self.track_running_stats:
            assert self.running_mean is not None and self.running_var is not None
            assert self.num_batches_tracked is not None
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Sets weight = 1 and bias = 0, and resets the running statistics."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        version = local_metadata.get("version")
        if self.track_running_stats and (version is None or version < 2):
            count = self.num_batches_tracked
            state_dict.setdefault(f"{prefix}num_batches_tracked", tt.tensor(0) if count is None else count)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self._ranks:
            expected = " or ".join(f"{r}D" for r in self._ranks)
            raise ValueError(f"expected {expected} input (got {input.dim()}D input)")

    def _count_batch(self) -> float:
        """Counts a training batch. Returns the weight of its statistics in the running statistics."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            with tt.no_grad():
                self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the running statistics are the mean over all batches so far
                return 1.0 / float(self.num_batches_tracked.item())
        return 0.0 if self.momentum is None else self.momentum

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        factor = self._count_batch()
        own = self.training or (self.running_mean is None and self.running_var is None)
        kept = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if kept else None,
            self.running_var if kept else None,
            self.weight,
            self.bias,
            own,
            factor,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """(x - mean) / sqrt(variance + eps) * weight + bias for each channel of [N, C] or [N, C, L]. In
    training, mean and variance are those of the batch; in evaluation, the running ones. momentum=None
    averages over all batches. Source: Ioffe, Szegedy 2015."""

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """BatchNorm1d for inputs [N, C, H, W].

    >>> tt.nn.BatchNorm2d(3)(tt.ones(2, 3, 4, 4)).shape
    teletensor.Size([2, 3, 4, 4])
    """

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """BatchNorm1d for inputs [N, C, D, H, W]."""

    _ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of inputs [N, C, ...] whose mean and variance in training are those over the batches of all
    processes of `distributed`'s world (or of process_group). The batches may have different sizes."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        from ... import distributed

        group = self.process_group
        own = self.training or (self.running_mean is None and self.running_var is None)
        if not own or not distributed.is_initialized() or distributed.get_world_size(group) < 2:
            return super().forward(input)
        self._check_input_dim(input)
        axes = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        x = input.float()
        count = tt.full((1,), float(input.numel() // input.shape[1]), device=input.device)
        sums = tt.cat([x.sum(axes), (x * x).sum(axes), count])
        sums = distributed.summed(sums, group)  # this sum is differentiable
        channels = input.shape[1]
        total = sums[2 * channels]
        mean = sums[:channels] / total
        variance = sums[channels : 2 * channels] / total - mean * mean
        if self.training and self.track_running_stats:
            self._follow(mean.detach(), variance.detach(), total.detach())
        result = (x - mean.view(shape)) * (variance.view(shape) + self.eps).rsqrt()
        if self.weight is not None:
            result = result * self.weight.view(shape)
        if self.bias is not None:
            result = result + self.bias.view(shape)
        return result.to(input.dtype)

    def _follow(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        """Updates the running statistics, with the unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None
        factor = self._count_batch()
        with tt.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            unbiased = variance * total / (total - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Returns the module with each BatchNorm in it (or the module itself) replaced by a SyncBatchNorm
        with the same parameters."""
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            made = cls(module.num_features, module.eps, module.momentum, module.affine,
                       module.track_running_stats, process_group)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked",
                         "training"):
                setattr(made, name, getattr(module, name))
            return made
        for name, child in list(module.named_children()):
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module


class _InstanceNorm(_NormBase):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:
        # Version 1 has no running statistics unless track_running_stats is True.
        keys = [prefix + name for name in ("running_mean", "running_var") if prefix + name in state_dict]
        if keys and local_metadata.get("version") is None and not self.track_running_stats:
            kind, names = type(self).__name__, " and ".join(f'"{key}"' for key in keys)
            error_msgs.append(
                f"Unexpected running stats buffer(s) {names} for {kind} with track_running_stats=False. If "
                f"state_dict is a checkpoint saved before 0.4.0, this may be expected because {kind} does "
                "not track running stats by default since 0.4.0. Please remove these keys from state_dict. "
                "If the running stats are actually needed, instead set track_running_stats=True in "
                f"{kind} to enable them. See the documentation of {kind} for details."
            )
            for key in keys:
                del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys,
                                      unexpected_keys, error_msgs)

    def _check_input_dim(self, input: Tensor) -> None:
        rank = self._ranks[0]
        if input.dim() not in (rank, rank - 1):
            raise ValueError(f"expected {rank - 1}D or {rank}D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        rank = self._ranks[0]
        channels = input.shape[1 if input.dim() == rank else 0]
        if channels != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim={1 if input.dim() == rank else 0} to match "
                f"num_features ({self.num_features}), but got: {channels}."
            )
        x = input if input.dim() == rank else input.unsqueeze(0)
        result = F.instance_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )
        return result if input.dim() == rank else result.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """(x - mean) / sqrt(variance + eps) for each sample and channel of [N, C, L] or [C, L].
    Source: Ulyanov et al. 2016."""

    _ranks = (3,)


class InstanceNorm2d(_InstanceNorm):
    """InstanceNorm1d for inputs [N, C, H, W] or [C, H, W]."""

    _ranks = (4,)


class InstanceNorm3d(_InstanceNorm):
    """InstanceNorm1d for inputs [N, C, D, H, W] or [C, D, H, W]."""

    _ranks = (5,)


class GroupNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, where mean and variance are those of a group of
    adjacent channels of one sample; weight and bias have one element for each channel. Source: Wu, He
    2018."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError("num_channels must be divisible by num_groups")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            empty = tt.empty(num_channels, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets weight = 1 and bias = 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """x / (k + alpha * mean of x ** 2 over `size` adjacent channels) ** beta. Source: Krizhevsky et al.
    2012."""

    def __init__(
        self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """LocalResponseNorm of [N, C, H, W] as PyTorch's older module computes it: the square of channel 0 is
    part of every sum."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.dim()}D instead.")
        channels, half = input.shape[1], (self.size - 1) // 2 + 1
        squares = input * input
        sums = tt.cumsum(squares, 1)
        place = tt.arange(channels, device=input.device)
        total = tt.index_select(sums, 1, (place + (half - 1)).clamp(max=channels - 1))
        left = tt.index_select(sums, 1, (place - half).clamp(min=0)) - squares[:, :1]
        gone = (place > half).to(input.dtype).reshape((1, -1, 1, 1))
        return input / (self.k + (total - left * gone) * (self.alpha / self.size)) ** self.beta
