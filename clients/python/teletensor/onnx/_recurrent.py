"""The ONNX operators RNN, GRU and LSTM: each element of the sequence is a step of a few operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _api as tt, nn
from .._core import Tensor
from ._file import OnnxError
from ._table import op

F = nn.functional

_ACTIVATIONS: dict[str, Callable[[Tensor, float | None, float | None], Tensor]] = {
    "relu": lambda x, a, b: F.relu(x),
    "tanh": lambda x, a, b: tt.tanh(x),
    "sigmoid": lambda x, a, b: tt.sigmoid(x),
    "affine": lambda x, a, b: (1.0 if a is None else a) * x + (b or 0.0),
    "leakyrelu": lambda x, a, b: F.leaky_relu(x, 0.01 if a is None else a),
    "thresholdedrelu": lambda x, a, b: tt.where(x > (1.0 if a is None else a), x, tt.zeros_like(x)),
    "scaledtanh": lambda x, a, b: (1.0 if a is None else a) * tt.tanh((1.0 if b is None else b) * x),
    "hardsigmoid": lambda x, a, b: tt.clamp(
        (0.2 if a is None else a) * x + (0.5 if b is None else b), 0, 1
    ),
    "elu": lambda x, a, b: F.elu(x, 1.0 if a is None else a),
    "softsign": lambda x, a, b: F.softsign(x),
    "softplus": lambda x, a, b: F.softplus(x),
}


def _clipped(
    function: Callable[..., Tensor], clip: float | None, alpha: float | None, beta: float | None, x: Tensor
) -> Tensor:
    return function(x if clip is None else tt.clamp(x, -clip, clip), alpha, beta)


Step = Callable[[Tensor, list[Tensor], int, list[Callable[[Tensor], Tensor]]], list[Tensor]]


def _activations(
    names: list[bytes],
    defaults: list[str],
    directions: int,
    alphas: list[float],
    betas: list[float],
    clip: float | None,
) -> list[list[Callable[[Tensor], Tensor]]]:
    chosen = [name.decode() for name in names] if names else defaults * directions
    made: list[Callable[[Tensor], Tensor]] = []
    for place, name in enumerate(chosen):
        if name.lower() not in _ACTIVATIONS:
            raise OnnxError(f"unknown activation {name!r}")
        function = _ACTIVATIONS[name.lower()]
        alpha = alphas[place] if place < len(alphas) else None
        beta = betas[place] if place < len(betas) else None
        made.append(functools.partial(_clipped, function, clip, alpha, beta))
    each = len(defaults)
    if len(made) != each * directions:
        raise OnnxError(f"expected {each * directions} activations, not {len(made)}")
    return [made[i * each : (i + 1) * each] for i in range(directions)]


def _run(
    x: Tensor,
    lengths: Tensor | None,
    states: list[Tensor | None],
    hidden: int,
    direction: str,
    layout: int,
    step: Step,
    functions: list[list[Callable[[Tensor], Tensor]]],
) -> tuple[Tensor, ...]:
    """Runs all directions of a layer; returns Y and the last states. `states` are the initial states, or
    None."""
    if layout:
        x = x.transpose(0, 1)
        states = [None if s is None else s.transpose(0, 1) for s in states]
    count, batch, _ = x.shape
    outputs, lasts = [], []
    for d, backward in enumerate({"forward": [False], "reverse": [True]}.get(direction, [False, True])):
        now = [tt.zeros(batch, hidden, dtype=x.dtype) if s is None else s[d] for s in states]
        rows: list[Any] = [None] * count
        for turn in range(count):
            place = count - 1 - turn if backward else turn
            new = step(x[place], now, d, functions[d])
            if lengths is not None:  # a sequence that has ended keeps its state and outputs zeros
                on = (place < lengths).unsqueeze(1)
                rows[place] = tt.where(on, new[0], tt.zeros_like(new[0]))
                new = [tt.where(on, a, b) for a, b in zip(new, now)]
            else:
                rows[place] = new[0]
            now = new
        outputs.append(tt.stack(rows))
        lasts.append(now)
    y = tt.stack(outputs, 1)
    ends = [tt.stack([each[i] for each in lasts]) for i in range(len(states))]
    if layout:
        y = y.permute(2, 0, 1, 3)
        ends = [each.transpose(0, 1) for each in ends]
    return (y, *ends)


def _directions(direction: str) -> int:
    if direction not in ("forward", "reverse", "bidirectional"):
        raise OnnxError(f"unknown direction {direction!r}")
    return 2 if direction == "bidirectional" else 1


def _biases(B: Tensor | None, W: Tensor, d: int) -> tuple[Tensor, Tensor]:
    size = W.shape[1]
    if B is None:
        zero = tt.zeros(size, dtype=W.dtype)
        return zero, zero
    return B[d, :size], B[d, size:]


@op("RNN")
def rnn(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Any = (),
    activation_beta: Any = (),
    activations: Any = (),
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    layout: Any = 0,
    output_sequence: Any = 0,
) -> Any:
    def step(x: Tensor, state: list[Tensor], d: int, f: list[Callable[[Tensor], Tensor]]) -> list[Tensor]:
        own, back = _biases(B, W, d)
        return [f[0](x @ W[d].t() + state[0] @ R[d].t() + own + back)]

    functions = _activations(
        activations, ["Tanh"], _directions(direction), activation_alpha, activation_beta, clip
    )
    return _run(X, sequence_lens, [initial_h], R.shape[-1], direction, layout, step, functions)


@op("GRU")
def gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Any = (),
    activation_beta: Any = (),
    activations: Any = (),
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    layout: Any = 0,
    linear_before_reset: Any = 0,
    output_sequence: Any = 0,
) -> Any:
    size = R.shape[-1]

    def step(x: Tensor, state: list[Tensor], d: int, f: list[Callable[[Tensor], Tensor]]) -> list[Tensor]:
        own, back = _biases(B, W, d)
        h, r = state[0], R[d]
        xz, xr, xh = (x @ W[d].t() + own).split(size, -1)
        gates = h @ r[: 2 * size].t() + back[: 2 * size]
        update, reset = f[0](xz + gates[:, :size]), f[0](xr + gates[:, size:])
        if linear_before_reset:
            new = f[1](xh + reset * (h @ r[2 * size :].t() + back[2 * size :]))
        else:
            new = f[1](xh + (reset * h) @ r[2 * size :].t() + back[2 * size :])
        return [(1 - update) * new + update * h]

    functions = _activations(
        activations, ["Sigmoid", "Tanh"], _directions(direction), activation_alpha, activation_beta, clip
    )
    return _run(X, sequence_lens, [initial_h], size, direction, layout, step, functions)


@op("LSTM")
def lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    activation_alpha: Any = (),
    activation_beta: Any = (),
    activations: Any = (),
    clip: Any = None,
    direction: str = "forward",
    hidden_size: Any = None,
    input_forget: Any = 0,
    layout: Any = 0,
    output_sequence: Any = 0,
) -> Any:
    size = R.shape[-1]

    def step(x: Tensor, state: list[Tensor], d: int, f: list[Callable[[Tensor], Tensor]]) -> list[Tensor]:
        own, back = _biases(B, W, d)
        h, c = state
        i, o, forget, new = (x @ W[d].t() + h @ R[d].t() + own + back).split(size, -1)
        if P is not None:
            i, forget = i + P[d, :size] * c, forget + P[d, 2 * size :] * c
        i = f[0](i)
        forget = 1 - i if input_forget else f[0](forget)
        c = forget * c + i * f[1](new)
        o = f[0](o if P is None else o + P[d, size : 2 * size] * c)
        return [o * f[2](c), c]

    functions = _activations(
        activations,
        ["Sigmoid", "Tanh", "Tanh"],
        _directions(direction),
        activation_alpha,
        activation_beta,
        clip,
    )
    return _run(X, sequence_lens, [initial_h, initial_c], size, direction, layout, step, functions)
