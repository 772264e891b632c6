// The elementwise inner loops of LSTM and GRU steps, compiled per instruction set. Each works on
// one block of kGateBlock elements of every part, in place where a name stands on both sides; A is
// float or double. Elements that mean nothing are computed along, so that no element's bits depend
// on its place.
#pragma once

#include <cstdint>

namespace teletensor::backends::cpu {

inline constexpr std::int64_t kGateBlock = 128;

template <class A>
struct GateLoops {
  // parts: i f g o (sums of gates), c -> h in place of i, new c in place of c.
  void (*lstm)(A (*parts)[kGateBlock]);
  // parts: i f g o, c, grad_h, grad_c -> gradients of i f g o in their places, of c in c's.
  void (*lstm_backward)(A (*parts)[kGateBlock]);
  // parts: r z (sums), n of the input, n of the hidden state, h -> new h in place of h.
  void (*gru)(A (*parts)[kGateBlock]);
  // parts: r z, n of the input, n of the hidden state, h, grad -> gradients in their places.
  void (*gru_backward)(A (*parts)[kGateBlock]);
};
template <class A>
const GateLoops<A>& gate_loops();

}  // namespace teletensor::backends::cpu
