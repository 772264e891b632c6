"""Sequences of unequal lengths: padded to one tensor, or packed without padding.

A PackedSequence contains, time step by time step, the elements of all sequences that have this time step,
longest sequence first: `data` [sum of lengths, ...], and `batch_sizes`, the number of elements at each time
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import _api as tt
from ..._tensors.tensor import Tensor

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None


class PackedSequence(_Packed):
    """The packed data and batch_sizes and, if the sequences were sorted, the two permutations (into the
    sorted order and back). Created by pack_sequence and pack_padded_sequence."""

    known_sizes: list[int] | None = None

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def sizes(self) -> list[int]:
        """batch_sizes as Python numbers; waits for them only if the caller constructed this object
        directly."""
        if self.known_sizes is None:
            self.known_sizes = [int(size) for size in self.batch_sizes.tolist()]
        return self.known_sizes

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """A PackedSequence with the data on another device or in another dtype."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        indices = [
            None if t is None else t.to(data.device)
            for t in (self.sorted_indices, self.unsorted_indices)
        ]
        packed = type(self)(data, self.batch_sizes, *indices)
        packed.known_sizes = self.known_sizes
        return packed

    def cpu(self) -> PackedSequence:
        """A PackedSequence with the data on the daemon's CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = 0) -> PackedSequence:
        """A PackedSequence with the data on a GPU of the daemon."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device)

    def double(self) -> PackedSequence:
        """A PackedSequence with the data as float64."""
        return self.to(tt.float64)

    def float(self) -> PackedSequence:
        """A PackedSequence with the data as float32."""
        return self.to(tt.float32)

    def half(self) -> PackedSequence:
        """A PackedSequence with the data as float16."""
        return self.to(tt.float16)

    def long(self) -> PackedSequence:
        """A PackedSequence with the data as int64."""
        return self.to(tt.int64)

    def int(self) -> PackedSequence:
        """A PackedSequence with the data as int32."""
        return self.to(tt.int32)

    def short(self) -> PackedSequence:
        """A PackedSequence with the data as int16."""
        return self.to(tt.int16)

    def char(self) -> PackedSequence:
        """A PackedSequence with the data as int8."""
        return self.to(tt.int8)

    def byte(self) -> PackedSequence:
        """A PackedSequence with the data as uint8."""
        return self.to(tt.uint8)

    @property
    def is_cuda(self) -> bool:
        """Returns whether the data is on a GPU."""
        return bool(self.data.is_cuda)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes this one."""
    if permutation is None:
        return None
    return tt.argsort(permutation)


def _numbers(lengths: Tensor | Sequence[int]) -> list[int]:
    values = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [int(length) for length in values]


def _places(sizes: Sequence[int], batch: int) -> np.ndarray[Any, Any]:
    """The rows of [time * batch] that a packed sequence contains, in its order."""
    return np.concatenate([t * batch + np.arange(size) for t, size in enumerate(sizes)])


def pack_padded_sequence(
    input: Tensor,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Packs input [time, batch, ...] (batch first with batch_first) whose sequences have these lengths.
    They must be sorted, longest first, unless enforce_sorted is False. Lengths that are Python numbers
    avoid a round trip to the daemon."""
    numbers = _numbers(lengths)
    batch = input.shape[0 if batch_first else 1]
    if len(numbers) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(numbers)} "
            f"(batch_size={batch})"
        )
    if any(length <= 0 for length in numbers):
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    sorted_indices = unsorted_indices = None
    if not enforce_sorted:
        order = np.argsort(-np.asarray(numbers), kind="stable")
        sorted_indices = tt.tensor(order, dtype=tt.int64, device=input.device)
        unsorted_indices = tt.tensor(np.argsort(order), dtype=tt.int64, device=input.device)
        numbers = [numbers[i] for i in order]
        input = input.index_select(0 if batch_first else 1, sorted_indices)
    elif any(a < b for a, b in zip(numbers, numbers[1:], strict=False)):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
            "You can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )
    if batch_first:
        input = input.transpose(0, 1)
    if not numbers:
        raise RuntimeError("Cannot pack empty tensors.")
    if numbers[0] > input.shape[0]:
        raise RuntimeError(
            f"Expected lengths of at most {input.shape[0]}, the padded length, got {numbers[0]}"
        )
    sizes = [sum(length > t for length in numbers) for t in range(numbers[0])]
    rows = input.reshape(-1, *input.shape[2:])
    places = tt.tensor(_places(sizes, batch), dtype=tt.int64, device=input.device)
    packed = PackedSequence(
        rows.index_select(0, places),
        tt.tensor(sizes, dtype=tt.int64),
        sorted_indices,
        unsorted_indices,
    )
    packed.known_sizes = sizes
    return packed


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The inverse of pack_padded_sequence. Returns the padded tensor, whose length is total_length or that
    of the longest sequence, and the lengths, in the order before packing."""
    sizes = sequence.sizes()
    length = len(sizes)
    if total_length is not None:
        if total_length < length:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in "
                f"input, but got total_length={total_length} and max sequence length being {length}"
            )
        length = total_length
    data, batch = sequence.data, sizes[0]
    places = tt.tensor(_places(sizes, batch), dtype=tt.int64, device=data.device)
    rows = tt.full((length * batch, *data.shape[1:]), padding_value, dtype=data.dtype,
                   device=data.device)
    padded = rows.index_copy(0, places, data).reshape(length, batch, *data.shape[1:])
    lengths = tt.tensor(
        [sum(size > i for size in sizes) for i in range(batch)], dtype=tt.int64
    )
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths.index_select(0, sequence.unsorted_indices.to(lengths.device))
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def pad_sequence(
    sequences: Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Stacks sequences [length, ...] to one tensor [longest, count, ...] (count first with batch_first),
    padded at the "right" or "left" end."""
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            "pad_sequence: Expected iterable for input sequences, but got arg of type: "
            f"{type(sequences)}"
        )
    tensors = list(sequences)
    if not tensors:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side should be 'left' or 'right', not {padding_side!r}")
    longest = max(int(tensor.shape[0]) for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = longest - int(tensor.shape[0])
        if missing:
            shape = (missing, *tensor.shape[1:])
            rest = tt.full(shape, padding_value, dtype=tensor.dtype, device=tensor.device)
            tensor = tt.cat([tensor, rest] if padding_side == "right" else [rest, tensor])
        padded.append(tensor)
    return tt.stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The inverse of pad_sequence."""
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    return [
        sequence[:length]
        for sequence, length in zip(padded_sequences, _numbers(lengths), strict=True)
    ]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences [length, ...], which must be sorted, longest first, unless enforce_sorted is
    False."""
    lengths = [int(sequence.shape[0]) for sequence in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The inverse of pack_sequence."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
