"""AdaptiveLogSoftmaxWithLoss: a softmax over many classes whose rare classes are in clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import _api as tt
from ..._tensors.tensor import Tensor
from .. import functional as F
from ..module import Module
from .containers import ModuleList, Sequential
from .linear import Linear

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _Result(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Returns the log-probability of each sample's class, and the negative mean of these as the loss.
    Classes must be sorted by descending frequency; the classes from cutoffs[i] to cutoffs[i + 1] share a
    cluster whose projection has in_features / div_value ** (i + 1) features. Source: Grave et al. 2017."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        limits = list(cutoffs)
        if not limits:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            limits != sorted(limits)
            or min(limits) <= 0
            or max(limits) > n_classes - 1
            or len(set(limits)) != len(limits)
            or any(int(c) != c for c in limits)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing "
                "order, where each value is between 1 and n_classes-1"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*limits, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            hidden = int(in_features // (div_value ** (i + 1)))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(
                    Linear(in_features, hidden, bias=False, device=device, dtype=dtype),
                    Linear(hidden, size, bias=False, device=device, dtype=dtype),
                )
            )

    def reset_parameters(self) -> None:
        """Sets new random initial values."""
        for layer in self.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> _Result:
        if input.dim() != target.dim() + 1 or target.dim() > 1:
            raise RuntimeError(
                f"Input and target should have the same size in the batch dimension, got "
                f"{list(input.shape)} and {list(target.shape)}"
            )
        if target.dim() == 1 and input.shape[0] != target.shape[0]:
            raise RuntimeError(
                f"Input and target should have the same size in the batch dimension, got "
                f"{list(input.shape)} and {list(target.shape)}"
            )
        single = target.dim() == 0
        x = input.unsqueeze(0) if single else input
        y = target.unsqueeze(0) if single else target
        head = F.log_softmax(self.head(x), 1)
        place, inner = y, None
        for i in range(self.n_clusters):
            low, high = self.cutoffs[i], self.cutoffs[i + 1]
            last = i + 1 == self.n_clusters
            mine = y >= low if last else (y >= low) & (y < high)
            scores = F.log_softmax(self.tail[i](x), 1)
            index = tt.where(mine, y - low, tt.zeros_like(y))
            part = tt.gather(scores, 1, index.unsqueeze(1)).squeeze(1)
            part = tt.where(mine, part, tt.zeros_like(part))
            inner = part if inner is None else inner + part
            place = tt.where(mine, tt.full_like(y, self.shortlist_size + i), place)
        output = tt.gather(head, 1, place.unsqueeze(1)).squeeze(1)
        if inner is not None:
            output = output + inner
        loss = (-output).mean()
        return _Result(output.squeeze(0) if single else output, loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes: [N, n_classes]."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i in range(self.n_clusters):
            column = head[:, self.shortlist_size + i].unsqueeze(1)
            parts.append(F.log_softmax(self.tail[i](input), 1) + column)
        return tt.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class of each sample: [N]."""
        return self.log_prob(input).argmax(1)
