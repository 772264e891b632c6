// The elementwise inner loops of LSTM and GRU steps, compiled per instruction set. Each processes
// one block of kGateBlock elements of every part, in place where a name is both input and output; A
// is float or double. Unused elements at the end of a block are computed too, so that no element's
// bits depend on its position.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

inline constexpr std::int64_t kGateBlock = 128;

template <class A>
struct GateLoops {
  // Parts: i f g o (sums of gates), c. Results: h in the place of i, the new c in the place of c.
  void (*lstm)(A (*parts)[kGateBlock]);
  // Parts: i f g o, c, grad_h, grad_c. Results: the gradients of i f g o in their places, the
  // gradient of c in the place of c.
  void (*lstm_backward)(A (*parts)[kGateBlock]);
  // Parts: r z (sums), n of the input, n of the hidden state, h. Result: the new h in the place of
  // h.
  void (*gru)(A (*parts)[kGateBlock]);
  // Parts: r z, n of the input, n of the hidden state, h, grad. Results: the gradients in their
  // places.
  void (*gru_backward)(A (*parts)[kGateBlock]);
};
template <class A>
const GateLoops<A>& gate_loops();

}  // namespace teletensor::backends::cpu
