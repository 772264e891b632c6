// The gates of recurrent cells, computed as in cpu/recurrent_simd.cc.
namespace tt {

template <class A>
A gate_sigmoid(A x) {
  return A(1) / (A(1) + s::exp(-x));
}

// Access to part `part` of `parts` in row `row`.
template <class T, class A>
struct GateParts {
  const calls::GateCall& p;
  std::int64_t row, k;
  std::int64_t place(int part, int parts) const { return (row * parts + part) * p.size + k; }
  A read(int tensor, int part = 0, int parts = 1) const {
    return s::to_compute<A>(static_cast<const T*>(p.in[tensor])[place(part, parts)]);
  }
  A sum(int a, int b, int part, int parts) const {
    return read(a, part, parts) + read(b, part, parts);
  }
  void write(int tensor, A value, int part = 0, int parts = 1) const {
    static_cast<T*>(p.out[tensor])[place(part, parts)] = s::from_compute<T>(value);
  }
};
template <class T, class A>
GateParts<T, A> gate_parts(const calls::GateCall& p, std::int64_t at) {
  const std::int64_t row = over(at, p.size);
  return {p, row, at - row * p.size};
}

template <class T, class A>
void lstm_gates(const calls::GateCall& p, std::int64_t at) {
  const auto g = gate_parts<T, A>(p, at);
  const A next = gate_sigmoid(g.sum(0, 1, 1, 4)) * g.read(2) +
                 gate_sigmoid(g.sum(0, 1, 0, 4)) * s::tanh(g.sum(0, 1, 2, 4));
  g.write(0, gate_sigmoid(g.sum(0, 1, 3, 4)) * s::tanh(next));
  g.write(1, next);
}

template <class T, class A>
void lstm_gates_backward(const calls::GateCall& p, std::int64_t at) {
  const auto gates = gate_parts<T, A>(p, at);
  const A gh = gates.read(0), gc = gates.read(1), c = gates.read(4);
  const A i = gate_sigmoid(gates.sum(2, 3, 0, 4)), f = gate_sigmoid(gates.sum(2, 3, 1, 4)),
          o = gate_sigmoid(gates.sum(2, 3, 3, 4));
  const A g = s::tanh(gates.sum(2, 3, 2, 4)), t = s::tanh(f * c + i * g);
  const A d = gc + gh * o * (A(1) - t * t);
  gates.write(0, d * g * (i * (A(1) - i)), 0, 4);
  gates.write(0, d * c * (f * (A(1) - f)), 1, 4);
  gates.write(0, d * i * (A(1) - g * g), 2, 4);
  gates.write(0, gh * t * (o * (A(1) - o)), 3, 4);
  gates.write(1, d * f);
}

template <class T, class A>
void gru_gates(const calls::GateCall& p, std::int64_t at) {
  const auto g = gate_parts<T, A>(p, at);
  const A r = g.sum(0, 1, 0, 3), z = g.sum(0, 1, 1, 3), h = g.read(2);
  const A n = s::tanh(g.read(0, 2, 3) + gate_sigmoid(r) * g.read(1, 2, 3));
  g.write(0, (h - n) * gate_sigmoid(z) + n);
}

template <class T, class A>
void gru_gates_backward(const calls::GateCall& p, std::int64_t at) {
  const auto g = gate_parts<T, A>(p, at);
  const A r = gate_sigmoid(g.sum(1, 2, 0, 3)), z = gate_sigmoid(g.sum(1, 2, 1, 3));
  const A x = g.read(1, 2, 3), m = g.read(2, 2, 3), h = g.read(3), grad = g.read(0);
  const A n = s::tanh(x + r * m);
  const A u = grad * (A(1) - z) * (A(1) - n * n);
  const A dr = u * m * (r * (A(1) - r)), dz = grad * (h - n) * (z * (A(1) - z));
  g.write(0, dr, 0, 3);
  g.write(1, dr, 0, 3);
  g.write(0, dz, 1, 3);
  g.write(1, dz, 1, 3);
  g.write(0, u, 2, 3);
  g.write(1, u * r, 2, 3);
  g.write(2, grad * z);
}

}  // namespace tt
