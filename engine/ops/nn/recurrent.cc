// The elementwise work of an LSTM or GRU at each time step, between its matrix products: one op
// instead of a dozen. Kernels: backends/cpu/recurrent.cc.
#include <array>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::Status;

// Checks the operands from `first` on: two with gates [..., kGates * size], then states [...,
// size], all of the state's dtype. The operands before `first` are gradients of states.
template <int kGates>
Status check_gates(InferContext& c, std::size_t first) {
  const std::size_t state = first + 2;
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    if (!core::is_floating(c.dtype(i)) || c.dtype(i) != c.dtype(state)) {
      return c.fail("gates and states must be of one floating point dtype, got " +
                    std::string(core::name_of(c.dtype(i))) + " and " +
                    std::string(core::name_of(c.dtype(state))));
    }
    const Dims &shape = c.shape(i), &wanted = c.shape(state);
    const bool gates = i == first || i == first + 1;
    bool fits = shape.size() == wanted.size() && !shape.empty();
    for (int d = 0; fits && d + 1 < shape.size(); ++d) fits = shape[d] == wanted[d];
    if (fits) {
      const std::int64_t last = shape[shape.size() - 1], size = wanted[wanted.size() - 1];
      fits = gates ? last % kGates == 0 && last / kGates == size : last == size;
    }
    if (!fits) {
      return c.fail("shapes do not fit: gates of " + std::to_string(kGates) + " parts " +
                    core::to_string(c.shape(first)) + " and " +
                    core::to_string(c.shape(first + 1)) + ", states " + core::to_string(wanted) +
                    ", got " + core::to_string(shape));
    }
  }
  return {};
}

// Splits gates into their parts along the last dimension.
template <int kGates>
std::array<Var, kGates> parts(const Var& gates) {
  static const OpRef slice("slice");
  std::array<Var, kGates> out;
  if (gates.absent()) return out;
  const int last = gates.rank() - 1;
  const std::int64_t size = gates.shape()[last] / kGates;
  for (int i = 0; i < kGates; ++i) {
    out[static_cast<std::size_t>(i)] =
        apply(slice, {gates},
              {Attribute::of(std::int64_t{last}), Attribute::of(i * size), Attribute::of(size),
               Attribute::of(std::int64_t{1})});
  }
  return out;
}

template <std::size_t kGates>
Var joined(const std::array<Var, kGates>& gates) {
  static const OpRef cat("cat");
  const std::uint32_t count = kGates;
  const Vars out = apply_all(cat, gates, {Attribute::of(std::int64_t{-1})}, {&count, 1});
  return out.empty() ? Var() : out[0];
}

Var sigmoid_slope(const Var& y) { return y * (Var(1) - y); }
Var tanh_slope(const Var& y) { return Var(1) - y * y; }

// ---------------------------------------------------------------- LSTM

Status infer_lstm(InferContext& c) {
  TT_RETURN_IF_ERROR(check_gates<4>(c, 0));
  c.add_result(c.dtype(2), c.shape(2));
  c.add_result(c.dtype(2), c.shape(2));
  return {};
}

Status infer_lstm_backward(InferContext& c) {
  TT_RETURN_IF_ERROR(check_gates<4>(c, 2));
  c.add_result(c.dtype(2), c.shape(2));
  c.add_result(c.dtype(4), c.shape(4));
  return {};
}

void lstm_vjp(VjpContext& c) {
  static const OpRef op("lstm_gates_backward");
  const Var arguments[] = {c.gradient(0), c.gradient(1), c.operand(0), c.operand(1), c.operand(2)};
  const Vars given = apply_all(op, arguments);
  if (given.size() < 2) return;
  c.give(0, given[0]);
  c.give(1, given[0]);
  c.give(2, given[1]);
}

// The derivative of the derivative. With i f g o the gates, t = tanh(f c + i g) and D = grad_c +
// grad_h o (1 - t^2), lstm_gates_backward gives D g i(1 - i), D c f(1 - f), D i (1 - g^2), grad_h t
// o(1 - o) and D f.
void lstm_backward_vjp(VjpContext& c) {
  const Var gh = c.operand(0), gc = c.operand(1), state = c.operand(4);
  const auto raw = parts<4>(c.operand(2) + c.operand(3));
  const Var i = unary("sigmoid", raw[0]), f = unary("sigmoid", raw[1]), g = unary("tanh", raw[2]),
            o = unary("sigmoid", raw[3]);
  const Var t = unary("tanh", f * state + i * g);
  const Var di = sigmoid_slope(i), df = sigmoid_slope(f), dg = tanh_slope(g),
            d_o = sigmoid_slope(o), dt = tanh_slope(t);
  const auto v = parts<4>(c.gradient(0));
  const Var w = c.gradient(1);
  const Var s = v[0] * g * di + v[1] * state * df + v[2] * i * dg + w * f;
  if (c.needs(0)) c.give(0, s * o * dt + t * v[3] * d_o);
  if (c.needs(1)) c.give(1, s);
  const Var inner = (gh * v[3] * d_o - Var(2) * s * gh * o * t) * dt;  // the cotangent of f c + i g
  const Var d = gc + gh * o * dt;
  if (c.needs(2) || c.needs(3)) {
    const Var by_i = d * (v[0] * g * (Var(1) - Var(2) * i) + v[2] * dg) + inner * g;
    const Var by_f = d * (v[1] * state * (Var(1) - Var(2) * f) + w) + inner * state;
    const Var by_g = d * (v[0] * di - Var(2) * v[2] * i * g) + inner * i;
    const Var by_o = s * gh * dt + gh * t * v[3] * (Var(1) - Var(2) * o);
    const Var gates = joined<4>({by_i * di, by_f * df, by_g * dg, by_o * d_o});
    c.give(2, gates);
    c.give(3, gates);
  }
  if (c.needs(4)) c.give(4, d * v[1] * df + inner * f);
}

// ---------------------------------------------------------------- GRU

Status infer_gru(InferContext& c) {
  TT_RETURN_IF_ERROR(check_gates<3>(c, 0));
  c.add_result(c.dtype(2), c.shape(2));
  return {};
}

Status infer_gru_backward(InferContext& c) {
  TT_RETURN_IF_ERROR(check_gates<3>(c, 1));
  c.add_result(c.dtype(1), c.shape(1));
  c.add_result(c.dtype(1), c.shape(1));
  c.add_result(c.dtype(3), c.shape(3));
  return {};
}

void gru_vjp(VjpContext& c) {
  static const OpRef op("gru_gates_backward");
  const Var arguments[] = {c.gradient(), c.operand(0), c.operand(1), c.operand(2)};
  const Vars given = apply_all(op, arguments);
  if (given.size() < 3) return;
  for (std::size_t i = 0; i < 3; ++i) c.give(i, given[static_cast<int>(i)]);
}

// The derivative of gru_gates_backward, which has three results. Let r, z and n be the gates, m the
// hidden part of n before it is scaled by r, and u = grad (1 - z)(1 - n^2). The first result is
// [u m r(1 - r), grad (h - n) z(1 - z), u], the second one has u r in place of the last part, and
// the third one is grad z.
void gru_backward_vjp(VjpContext& c) {
  const Var grad = c.operand(0), h = c.operand(3);
  const auto x = parts<3>(c.operand(1)), y = parts<3>(c.operand(2));
  const Var r = unary("sigmoid", x[0] + y[0]), z = unary("sigmoid", x[1] + y[1]), m = y[2];
  const Var n = unary("tanh", x[2] + r * m);
  const Var dr = sigmoid_slope(r), dz = sigmoid_slope(z), dn = tanh_slope(n), rest = Var(1) - z;
  const auto a = parts<3>(c.gradient(0)), b = parts<3>(c.gradient(1));
  const Var w = c.gradient(2), vr = a[0] + b[0], vz = a[1] + b[1];
  const Var p = vr * m * dr + a[2] + b[2] * r;
  if (c.needs(0)) c.give(0, rest * dn * p + vz * (h - n) * dz + w * z);
  const Var u = grad * rest * dn;
  // The cotangent of the argument of tanh.
  const Var inner = (grad * rest * Var(-2) * n * p - grad * vz * dz) * dn;
  if (c.needs(1) || c.needs(2)) {
    const Var by_r = (u * (vr * m * (Var(1) - Var(2) * r) + b[2]) + inner * m) * dr;
    const Var by_z = grad * (vz * (h - n) * (Var(1) - Var(2) * z) + w - dn * p) * dz;
    if (c.needs(1)) c.give(1, joined<3>({by_r, by_z, inner}));
    if (c.needs(2)) c.give(2, joined<3>({by_r, by_z, inner * r + u * vr * dr}));
  }
  if (c.needs(3)) c.give(3, grad * vz * dz);
}

}  // namespace

std::vector<OpDef> recurrent_ops() {
  const auto all = [](int count) {
    std::vector<Save> out;
    for (int i = 0; i < count; ++i) out.push_back({.slot = i});
    return out;
  };
  return {
      {.signature = "lstm_gates(Tensor input_gates, Tensor hidden_gates, Tensor c) -> "
                    "(Tensor h, Tensor c)",
       .doc = "The elementwise part of an LSTM's time step: of the sum of both gates, [..., 4 "
              "size], i, f, o = sigmoid and g = tanh; c = f c + i g, h = o tanh(c).",
       .infer = infer_lstm,
       .vjp = lstm_vjp,
       .saves = all(3),
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "lstm_gates_backward(Tensor grad_h, Tensor grad_c, Tensor input_gates, Tensor "
                    "hidden_gates, Tensor c) -> (Tensor gates, Tensor c)",
       .doc = "The derivative of lstm_gates by the sum of its gates and by c.",
       .infer = infer_lstm_backward,
       .vjp = lstm_backward_vjp,
       .saves = all(5),
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "gru_gates(Tensor input_gates, Tensor hidden_gates, Tensor h) -> Tensor",
       .doc = "The elementwise part of a GRU's time step: of the sums of the first two of three "
              "parts r, z = sigmoid, of the last n = tanh(input + r hidden); h = (1 - z) n + z h.",
       .infer = infer_gru,
       .vjp = gru_vjp,
       .saves = all(3),
       .internal = true,
       .batching = Batching::kFront},
      {.signature = "gru_gates_backward(Tensor grad, Tensor input_gates, Tensor hidden_gates, "
                    "Tensor h) -> (Tensor input_gates, Tensor hidden_gates, Tensor h)",
       .doc = "The derivatives of gru_gates.",
       .infer = infer_gru_backward,
       .vjp = gru_backward_vjp,
       .saves = all(4),
       .internal = true,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
