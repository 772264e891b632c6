"""Recurrent networks: RNN, LSTM, GRU and their cells.

Each layer multiplies the inputs of all time steps by its weights in one matrix product. Each time step then
costs two or three instructions: the product with the state, and one op for the gates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from .. import functional as F, init
from ..module import Module
from ..parameter import Parameter
from ..utils.rnn import PackedSequence

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase"]

# The tensors of a state: (h,), or (h, c) for an LSTM.
_State = tuple[Tensor, ...]
# (gates of the input, gates of the state, state) -> state
_Step = Callable[[Tensor, Tensor, _State], _State]


def _lstm_step(x: Tensor, hidden: Tensor, state: _State) -> _State:
    return _ops.lstm_gates(x, hidden, state[1])  # type: ignore[return-value]


def _gru_step(x: Tensor, hidden: Tensor, state: _State) -> _State:
    return (_ops.gru_gates(x, hidden, state[0]),)


def _tanh_step(x: Tensor, hidden: Tensor, state: _State) -> _State:
    return (_ops.tanh(x + hidden),)


def _relu_step(x: Tensor, hidden: Tensor, state: _State) -> _State:
    return (_ops.relu(x + hidden),)


_MODES: dict[str, tuple[int, _Step]] = {
    "LSTM": (4, _lstm_step),
    "GRU": (3, _gru_step),
    "RNN_TANH": (1, _tanh_step),
    "RNN_RELU": (1, _relu_step),
}


def _like(gates: Tensor, state: _State) -> _State:
    """The state in the dtype of the gates, which may differ under autocast."""
    return tuple(tensor.to(gates.dtype) for tensor in state)


def _one_direction(
    step: _Step,
    input: Tensor,
    sizes: Sequence[int] | None,
    state: _State,
    weights: list[Tensor | None],
    reverse: bool,
) -> tuple[Tensor, _State]:
    """Runs one layer in one direction over input [time, batch, features], or with `sizes` (the batch size
    at each time, which never grows) over [sum of sizes, features]. Returns the hidden states in the form of
    the input, and the last state."""
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    gates = _ops.linear(input, w_ih, b_ih)
    state = _like(gates, state)
    steps: list[Tensor]
    if sizes is None:
        steps = list(_ops.unbind(gates, 0))
    else:
        steps = list(_ops.split_with_sizes(gates, list(sizes), 0))
    first = state
    if reverse:
        steps.reverse()
        sizes = None if sizes is None else list(sizes)[::-1]
    if sizes is not None:
        state = tuple(tensor[: sizes[0]] for tensor in state)
    outputs: list[Tensor] = []
    ended: list[_State] = []  # the final states of sequences that have ended, the last ones first
    for t, x in enumerate(steps):
        if sizes is not None and t > 0:
            before, now = sizes[t - 1], sizes[t]
            if now < before:
                ended.append(tuple(tensor[now:] for tensor in state))
                state = tuple(tensor[:now] for tensor in state)
            elif now > before:
                state = tuple(
                    tt.cat([tensor, start[before:now]])
                    for tensor, start in zip(state, first, strict=True)
                )
        state = step(x, _ops.linear(state[0], w_hh, b_hh), state)
        if w_hr is not None:
            state = (_ops.linear(state[0], w_hr, None), *state[1:])
        outputs.append(state[0])
    if ended:
        rows = [state, *reversed(ended)]
        state = tuple(tt.cat(list(parts)) for parts in zip(*rows, strict=True))
    if reverse:
        outputs.reverse()
    return (tt.stack(outputs) if sizes is None else tt.cat(outputs)), state


class RNNBase(Module):
    """Base class of RNN, LSTM and GRU. Layer k has the parameters weight_ih_l[k], weight_hh_l[k],
    bias_ih_l[k], bias_hh_l[k] and, with proj_size, weight_hr_l[k]; those of the reverse direction end in
    "_reverse". All are initialised uniformly in +-1/sqrt(hidden_size)."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an "
                "element being zeroed"
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero "
                f"dropout expects num_layers greater than 1, but got dropout={dropout} and "
                f"num_layers={num_layers}",
                stacklevel=2,
            )
        for name, flag in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not isinstance(size, int):
                raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
            if size <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if num_layers <= 0:
            raise ValueError("num_layers must be greater than zero")
        if proj_size < 0:
            raise ValueError(
                "proj_size should be a positive integer or zero to disable projections"
            )
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if mode not in _MODES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        rows = _MODES[mode][0] * hidden_size
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            width = input_size if layer == 0 else self._output_size * self._directions
            for direction in range(self._directions):
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                shapes: dict[str, tuple[int, ...]] = {
                    f"weight_ih_{suffix}": (rows, width),
                    f"weight_hh_{suffix}": (rows, self._output_size),
                }
                if bias:
                    shapes[f"bias_ih_{suffix}"] = shapes[f"bias_hh_{suffix}"] = (rows,)
                if proj_size:
                    shapes[f"weight_hr_{suffix}"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    setattr(self, name, Parameter(tt.empty(shape, device=device, dtype=dtype)))
                self._all_weights.append(list(shapes))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    def flatten_parameters(self) -> None:
        """Does nothing; it exists for programs that call it."""

    def reset_parameters(self) -> None:
        """Sets new random initial values."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (("proj_size", 0), ("num_layers", 1), ("bias", True),
                              ("batch_first", False), ("dropout", 0), ("bidirectional", False)):
            value = getattr(self, name)
            if value != default:
                text += f", {name}={value}"
        return text

    def _weights(self, layer: int, direction: int) -> list[Tensor | None]:
        suffix = f"l{layer}" + ("_reverse" if direction else "")
        return [
            getattr(self, f"{name}_{suffix}", None)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        ]

    def _state_sizes(self) -> tuple[int, ...]:
        if self.mode == "LSTM":
            return (self._output_size, self.hidden_size)
        return (self._output_size,)

    def _check(self, input: Tensor, packed: bool, state: _State | None, batch: int) -> None:
        weight = self._weights(0, 0)[0]
        assert weight is not None
        if input.dtype != weight.dtype and not tt.is_autocast_enabled():
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({weight.dtype}). "
                f"Convert input: input.to({weight.dtype}), or convert model: "
                f"model.to({input.dtype})"
            )
        if input.dim() != (2 if packed else 3):
            raise RuntimeError(
                f"input must have {2 if packed else 3} dimensions, got {input.dim()}"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )
        if state is None:
            return
        for i, (tensor, size) in enumerate(zip(state, self._state_sizes(), strict=True)):
            expected = (self.num_layers * self._directions, batch, size)
            if tuple(tensor.shape) != expected:
                name = f"hidden[{i}]" if self.mode == "LSTM" else "hidden"
                raise RuntimeError(f"Expected {name} size {expected}, got {list(tensor.shape)}")

    def _run(
        self, input: Tensor, sizes: Sequence[int] | None, state: _State
    ) -> tuple[Tensor, _State]:
        """Runs all layers over input [time, batch, features] (or packed)."""
        step = _MODES[self.mode][1]
        starts = [list(_ops.unbind(tensor, 0)) for tensor in state]
        ends: list[_State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                number = layer * self._directions + direction
                output, end = _one_direction(
                    step,
                    input,
                    sizes,
                    tuple(start[number] for start in starts),
                    self._weights(layer, direction),
                    direction == 1,
                )
                outputs.append(output)
                ends.append(end)
            input = outputs[0] if len(outputs) == 1 else tt.cat(outputs, -1)
            if self.dropout and self.training and layer + 1 < self.num_layers:
                input = F.dropout(input, self.dropout)
        return input, tuple(tt.stack(list(parts)) for parts in zip(*ends, strict=True))

    def _forward(self, input: Any, state: _State | None) -> tuple[Any, _State]:
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, state)
        if input.dim() not in (2, 3):
            raise ValueError(
                f"{self._get_name()}: Expected input to be 2D or 3D, got {input.dim()}D instead"
            )
        batched = input.dim() == 3
        batch_dim = 0 if self.batch_first else 1
        if state is not None and any(tensor.dim() != input.dim() for tensor in state):
            dims = ", ".join(f"{tensor.dim()}-D" for tensor in state)
            kind = "batched 3-D" if batched else "unbatched 2-D"
            raise RuntimeError(
                f"For {kind} input, hx should also be {input.dim()}-D but got ({dims}) tensors"
            )
        if not batched:
            input = input.unsqueeze(batch_dim)
            if state is not None:
                state = tuple(tensor.unsqueeze(1) for tensor in state)
        batch = input.shape[batch_dim]
        self._check(input, False, state, batch)
        if input.shape[1 - batch_dim] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        if self.batch_first:
            input = input.transpose(0, 1)
        output, end = self._run(input, None, self._zeros(input, batch) if state is None else state)
        if self.batch_first:
            output = output.transpose(0, 1)
        if not batched:
            output = output.squeeze(batch_dim)
            end = tuple(tensor.squeeze(1) for tensor in end)
        return output, end

    def _forward_packed(
        self, packed: PackedSequence, state: _State | None
    ) -> tuple[PackedSequence, _State]:
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        sizes = packed.sizes()
        if state is not None and sorted_indices is not None:
            state = tuple(tensor.index_select(1, sorted_indices) for tensor in state)
        self._check(data, True, state, sizes[0])
        if state is None:
            state = self._zeros(data, sizes[0])
        output, end = self._run(data, sizes, state)
        if unsorted_indices is not None:
            end = tuple(tensor.index_select(1, unsorted_indices) for tensor in end)
        whole = PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices)
        whole.known_sizes = sizes
        return whole, end

    def _zeros(self, input: Tensor, batch: int) -> _State:
        count = self.num_layers * self._directions
        return tuple(
            tt.zeros(count, batch, size, dtype=input.dtype, device=input.device)
            for size in self._state_sizes()
        )


class RNN(RNNBase):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu with nonlinearity="relu", over all time steps. input
    is [time, batch, input_size] (batch first with batch_first; or without a batch; or a PackedSequence) and
    hx is [layers * directions, batch, hidden_size] (zeros by default). Returns the states of the last layer
    at all times, and the last states of all layers.

    >>> output, h = tt.nn.RNN(3, 4, num_layers=2)(tt.ones(5, 1, 3))
    >>> output.shape, h.shape
    (teletensor.Size([5, 1, 4]), teletensor.Size([2, 1, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(
            "RNN_" + nonlinearity.upper(),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        output, state = self._forward(input, None if hx is None else (hx,))
        return output, state[0]


class LSTM(RNNBase):
    """Long short-term memory: i, f, o = sigmoid and g = tanh of W_ih x + b_ih + W_hh h + b_hh, c = f c + i
    g, h = o tanh(c), and with proj_size h = W_hr h. States are passed and returned as (h, c); everything
    else is as for RNN. Source: Hochreiter, Schmidhuber 1997; Sak et al. 2014."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )

    def forward(
        self, input: Any, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        output, (h, c) = self._forward(input, None if hx is None else tuple(hx))
        return output, (h, c)


class GRU(RNNBase):
    """Gated recurrent units: r, z = sigmoid, n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h = (1 - z) n + z
    h. Arguments and results are as for RNN. Source: Cho et al. 2014."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
        )

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        output, state = self._forward(input, None if hx is None else (hx,))
        return output, state[0]


class RNNCellBase(Module):
    """Base class of the cells, with the parameters weight_ih, weight_hh, bias_ih and bias_hh, initialised
    uniformly in +-1/sqrt(hidden_size)."""

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(tt.empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(tt.empty(rows, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            made = Parameter(tt.empty(rows, device=device, dtype=dtype)) if bias else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets new random initial values."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        nonlinearity = self.__dict__.get("nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"

    def _step(self, step: _Step, input: Tensor, state: _State | None, states: int) -> _State:
        name = self._get_name()
        for what, tensor in [("input", input), *(("hx", tensor) for tensor in state or ())]:
            if tensor.dim() not in (1, 2):
                raise ValueError(
                    f"{name}: Expected {what} to be 1D or 2D, got {tensor.dim()}D instead"
                )
        batched = input.dim() == 2
        if not batched:
            input = input.unsqueeze(0)
            state = None if state is None else tuple(tensor.unsqueeze(0) for tensor in state)
        if state is None:
            zeros = tt.zeros(
                input.shape[0], self.hidden_size, dtype=input.dtype, device=input.device
            )
            state = (zeros,) * states
        gates = _ops.linear(input, self.weight_ih, self.bias_ih)
        state = _like(gates, state)
        state = step(gates, _ops.linear(state[0], self.weight_hh, self.bias_hh), state)
        return state if batched else tuple(tensor.squeeze(0) for tensor in state)


class RNNCell(RNNCellBase):
    """One time step of RNN: input [batch, input_size] and hx [batch, hidden_size] (zeros by default) give
    the new state; both may have no batch dimension."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        step = _tanh_step if self.nonlinearity == "tanh" else _relu_step
        return self._step(step, input, None if hx is None else (hx,), 1)[0]


class LSTMCell(RNNCellBase):
    """One time step of LSTM; states are passed and returned as (h, c)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        h, c = self._step(_lstm_step, input, None if hx is None else tuple(hx), 2)
        return h, c


class GRUCell(RNNCellBase):
    """One time step of GRU; arguments and results are as for RNNCell."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(_gru_step, input, None if hx is None else (hx,), 1)[0]
