"""ONNX operators for branches, loops, sequences and optionals: the interpreter runs their subgraphs node by
node."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _api as tt
from .._core import Tensor
from ._file import OnnxError
from ._table import Host, Ints, Node, Run, op
from ._values import host, on_daemon

__all__: list[str] = []


@op("If")
def if_(cond: Host, *, then_branch: Any, else_branch: Any, run: Run) -> Any:
    return tuple(run(then_branch if cond.reshape(-1)[0] else else_branch))


@op("Loop")
def loop(M: Any = None, cond: Any = None, *v_initial: Any, body: Any, run: Run) -> Any:
    most = None if M is None else int(host(M).reshape(-1)[0])
    goes_on = True if cond is None else bool(host(cond).reshape(-1)[0])
    state, found, turn = list(v_initial), [], 0
    scans = len(body.outputs) - 1 - len(state)
    while goes_on and (most is None or turn < most):
        again, *results = run(body, np.array(turn, np.int64), np.array(True), *state)
        state, rows = results[: len(state)], results[len(state) :]
        found.append([on_daemon(row) for row in rows])
        turn += 1
        goes_on = bool(host(again).reshape(-1)[0])
    stacks = [tt.stack([rows[i] for rows in found]) if found else tt.zeros(0) for i in range(scans)]
    return (*state, *stacks)


@op("Scan", since=9)
def scan(
    *initial_state_and_scan_inputs: Any,
    body: Any,
    num_scan_inputs: Any,
    scan_input_axes: Ints | None = None,
    scan_input_directions: Ints | None = None,
    scan_output_axes: Ints | None = None,
    scan_output_directions: Ints | None = None,
    run: Run,
) -> Any:
    values = list(initial_state_and_scan_inputs)
    first = len(values) - num_scan_inputs
    state, scanned = values[:first], [on_daemon(v) for v in values[first:]]
    axes = scan_input_axes or [0] * num_scan_inputs
    backwards = scan_input_directions or [0] * num_scan_inputs
    count = scanned[0].shape[axes[0]]
    found: list[list[Tensor]] = []
    for turn in range(count):
        rows = [
            x.select(axis, count - 1 - turn if back else turn)
            for x, axis, back in zip(scanned, axes, backwards)
        ]
        results = run(body, *state, *rows)
        state = results[:first]
        found.append([on_daemon(v) for v in results[first:]])
    if not found:
        raise OnnxError("a Scan over 0 elements has no results")
    scans = len(found[0])
    stacks = []
    for i in range(scans):
        rows = [each[i] for each in found]
        back = bool((scan_output_directions or [0] * scans)[i])
        stacks.append(tt.stack(rows[::-1] if back else rows, (scan_output_axes or [0] * scans)[i]))
    return (*state, *stacks)


@op("Scan", since=8)
def scan_of_batch(
    sequence_lens: Any = None,
    *initial_state_and_scan_inputs: Any,
    body: Any,
    num_scan_inputs: Any,
    directions: Ints | None = None,
    run: Run,
) -> Any:
    values = [on_daemon(v) for v in initial_state_and_scan_inputs]
    if sequence_lens is not None:
        raise OnnxError("a Scan of version 8 with lengths of sequences is not supported")
    batch = [
        scan(
            *(v[i] for v in values),
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
            run=run,
        )
        for i in range(values[0].shape[0])
    ]
    return tuple(tt.stack([on_daemon(each[i]) for each in batch]) for i in range(len(batch[0])))


# ---- sequences, which are Python lists of values


def _place(position: Any, count: int, most: int) -> int:
    place = int(host(position).reshape(-1)[0])
    if not -count <= place < most:
        raise OnnxError(f"position {place} is outside a sequence of {count} elements")
    return place + count if place < 0 else place


@op("SequenceConstruct")
def sequence_construct(*inputs: Any) -> Any:
    return (list(inputs),)


@op("SequenceEmpty")
def sequence_empty(*, dtype: Any = 1) -> Any:
    return ([],)


@op("SequenceLength")
def sequence_length(input_sequence: Any) -> Any:
    return np.array(len(input_sequence), np.int64)


@op("SequenceAt")
def sequence_at(input_sequence: Any, position: Any) -> Any:
    return input_sequence[_place(position, len(input_sequence), len(input_sequence))]


@op("SequenceInsert")
def sequence_insert(input_sequence: Any, tensor: Any, position: Any = None) -> Any:
    count = len(input_sequence)
    place = count if position is None else _place(position, count, count + 1)
    return ([*input_sequence[:place], tensor, *input_sequence[place:]],)


@op("SequenceErase")
def sequence_erase(input_sequence: Any, position: Any = None) -> Any:
    count = len(input_sequence)
    place = _place(np.array(-1) if position is None else position, count, count)
    return ([*input_sequence[:place], *input_sequence[place + 1 :]],)


@op("SequenceMap")
def sequence_map(input_sequence: Any, *additional_inputs: Any, body: Any, run: Run) -> Any:
    rounds = [
        run(body, value, *(v[i] if isinstance(v, list) else v for v in additional_inputs))
        for i, value in enumerate(input_sequence)
    ]
    return tuple([each[i] for each in rounds] for i in range(len(body.outputs)))


@op("ConcatFromSequence")
def concat_from_sequence(input_sequence: Any, *, axis: Any, new_axis: Any = 0) -> Tensor:
    return (tt.stack if new_axis else tt.cat)([on_daemon(v) for v in input_sequence], axis)


@op("SplitToSequence")
def split_to_sequence(input: Tensor, split: Any = None, *, axis: Any = 0, keepdims: Any = 1) -> Any:
    if split is None:
        parts = list(tt.split(input, 1, axis))
        return ([part if keepdims else part.squeeze(axis) for part in parts],)
    sizes = host(split)
    return (list(tt.split(input, int(sizes) if sizes.ndim == 0 else [int(s) for s in sizes], axis)),)


@op("Optional")
def optional(input: Any = None, *, type: Any = None) -> Any:
    return (input,)


@op("OptionalHasElement")
def optional_has_element(input: Any = None) -> Any:
    return np.array(input is not None)


@op("OptionalGetElement")
def optional_get_element(input: Any, *, node: Node) -> Any:
    return (input,)
