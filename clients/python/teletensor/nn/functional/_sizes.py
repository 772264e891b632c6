"""Arguments that are one number or one number for each spatial dimension, and inputs without a batch
dimension."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from ..._tensors.tensor import Tensor

Size = int | Sequence[int]


def sizes(name: str, argument: str, value: Any, count: int) -> tuple[int, ...]:
    """Returns `count` integers; a single one (also in a list) is repeated."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,) * count
    try:
        numbers = tuple(map(operator.index, value))
    except TypeError:
        raise TypeError(
            f"{name}(): argument '{argument}' must be an int or a sequence of ints, "
            f"not {type(value).__name__}"
        ) from None
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count:
        raise RuntimeError(
            f"{name}: expected {argument} to be a single integer value or a list of {count} "
            f"values, but got {list(numbers)}"
        )
    return numbers


def batched(
    name: str, input: Tensor, spatial: int, run: Callable[[Tensor], Any], lead: int = 1
) -> Any:
    """Calls run on an input with a batch dimension, `lead` channel dimensions and `spatial` dimensions. If
    input has no batch dimension, one is added, and removed again from every result."""
    rank = input.dim()
    if rank == spatial + lead + 1:
        return run(input)
    if rank != spatial + lead:
        raise RuntimeError(
            f"{name}: expected {spatial + lead}D (unbatched) or {spatial + lead + 1}D (batched) "
            f"input, but got input of shape {list(input.shape)}"
        )
    result = run(input.unsqueeze(0))
    if isinstance(result, tuple):
        return tuple(r.squeeze(0) for r in result)
    return result.squeeze(0)
