// Kernels of lstm_gates, gru_gates and their derivatives. Parts of rows pass through block buffers,
// so that all dtypes and sums of gates use the same code.
#include <array>
#include <memory>
#include <vector>

#include "engine/backends/cpu/access/rows.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/nn/recurrent_simd.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

// The rows of gates and states: states are [count, size], gates are [count, k * size].
struct GateRows {
  std::int64_t count = 1, size = 1;
  explicit GateRows(const core::Geometry& state) {
    const core::Dims& shape = state.shape;
    for (int i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
    size = shape[shape.size() - 1];
  }
};

// Returns a reader of one part of row i of an operand or result. A row of gates consists of `parts`
// parts, one for each gate, and each part has the size of a row of states.
template <class A>
Row<A> part_of(const TensorArg& arg, const GateRows& rows, std::int64_t i, int part, int parts) {
  return Row<A>(arg, (i * parts + part) * rows.size, 1);
}

template <class A>
void read(const Row<A>& row, std::int64_t start, std::int64_t n, A* to) {
  const A* from = row.read(start, n, to);
  if (from != to) std::copy(from, from + n, to);
  std::fill(to + n, to + kGateBlock, A(0));
}

// Brings the operands into row-major order and calls f(A, row, start, n) for the blocks of all
// rows.
template <std::size_t kOperands, class F>
Status each_gate_block(KernelCall& call, std::size_t state, F&& f) {
  const GateRows rows(*call.in[state].geometry);
  if (rows.count == 0 || rows.size == 0) return {};
  Status status;
  std::array<TensorArg, kOperands> in;
  std::vector<std::unique_ptr<RowMajor>> held;
  for (std::size_t i = 0; i < kOperands; ++i) {
    held.push_back(std::make_unique<RowMajor>(call, call.in[i], status));
    in[i] = held.back()->arg();
  }
  TT_RETURN_IF_ERROR(status);
  with_float_type(call.in[state].dtype, [&](auto a) {
    const Lines lines(core::Dims{rows.count, rows.size}, 1);
    lines.run(call.parallel, 12, [&](std::int64_t row) {
      for (std::int64_t start = 0; start < rows.size; start += kGateBlock) {
        f(a, in, rows, row, start, std::min(kGateBlock, rows.size - start));
      }
    });
  });
  return {};
}

// parts[part] = the sum of that part of both gates.
template <class A>
void add_gates(const TensorArg& x, const TensorArg& y, const GateRows& rows, std::int64_t row,
               int part, int parts, std::int64_t start, std::int64_t n, A* to) {
  A other[kGateBlock];
  read(part_of<A>(x, rows, row, part, parts), start, n, to);
  read(part_of<A>(y, rows, row, part, parts), start, n, other);
  for (std::int64_t k = 0; k < n; ++k) to[k] += other[k];
}

template <class A>
void write(const TensorArg& arg, const GateRows& rows, std::int64_t row, int part, int parts,
           std::int64_t start, std::int64_t n, const A* from) {
  const Row<A> to = part_of<A>(arg, rows, row, part, parts);
  A buffer[kGateBlock];
  A* room = to.room(start, buffer);
  std::copy(from, from + n, room);
  to.write(start, n, room);
}

Status lstm_gates(KernelCall& call) {
  return each_gate_block<3>(call, 2,
                            [&](auto a, const auto& in, const GateRows& rows, std::int64_t row,
                                std::int64_t start, std::int64_t n) {
                              using A = decltype(a);
                              A parts[5][kGateBlock];
                              for (int p = 0; p < 4; ++p)
                                add_gates(in[0], in[1], rows, row, p, 4, start, n, parts[p]);
                              read(part_of<A>(in[2], rows, row, 0, 1), start, n, parts[4]);
                              gate_loops<A>().lstm(parts);
                              write(call.out[0], rows, row, 0, 1, start, n, parts[0]);
                              write(call.out[1], rows, row, 0, 1, start, n, parts[4]);
                            });
}

Status lstm_gates_backward(KernelCall& call) {
  return each_gate_block<5>(call, 4,
                            [&](auto a, const auto& in, const GateRows& rows, std::int64_t row,
                                std::int64_t start, std::int64_t n) {
                              using A = decltype(a);
                              A parts[7][kGateBlock];
                              for (int p = 0; p < 4; ++p)
                                add_gates(in[2], in[3], rows, row, p, 4, start, n, parts[p]);
                              read(part_of<A>(in[4], rows, row, 0, 1), start, n, parts[4]);
                              read(part_of<A>(in[0], rows, row, 0, 1), start, n, parts[5]);
                              read(part_of<A>(in[1], rows, row, 0, 1), start, n, parts[6]);
                              gate_loops<A>().lstm_backward(parts);
                              for (int p = 0; p < 4; ++p)
                                write(call.out[0], rows, row, p, 4, start, n, parts[p]);
                              write(call.out[1], rows, row, 0, 1, start, n, parts[4]);
                            });
}

template <class A>
void read_gru(const TensorArg& x, const TensorArg& y, const TensorArg& h, const GateRows& rows,
              std::int64_t row, std::int64_t start, std::int64_t n, A (*parts)[kGateBlock]) {
  for (int p = 0; p < 2; ++p) add_gates(x, y, rows, row, p, 3, start, n, parts[p]);
  read(part_of<A>(x, rows, row, 2, 3), start, n, parts[2]);
  read(part_of<A>(y, rows, row, 2, 3), start, n, parts[3]);
  read(part_of<A>(h, rows, row, 0, 1), start, n, parts[4]);
}

Status gru_gates(KernelCall& call) {
  return each_gate_block<3>(call, 2,
                            [&](auto a, const auto& in, const GateRows& rows, std::int64_t row,
                                std::int64_t start, std::int64_t n) {
                              using A = decltype(a);
                              A parts[5][kGateBlock];
                              read_gru(in[0], in[1], in[2], rows, row, start, n, parts);
                              gate_loops<A>().gru(parts);
                              write(call.out[0], rows, row, 0, 1, start, n, parts[4]);
                            });
}

Status gru_gates_backward(KernelCall& call) {
  return each_gate_block<4>(call, 3,
                            [&](auto a, const auto& in, const GateRows& rows, std::int64_t row,
                                std::int64_t start, std::int64_t n) {
                              using A = decltype(a);
                              A parts[6][kGateBlock];
                              read_gru(in[1], in[2], in[3], rows, row, start, n, parts);
                              read(part_of<A>(in[0], rows, row, 0, 1), start, n, parts[5]);
                              gate_loops<A>().gru_backward(parts);
                              for (int p = 0; p < 2; ++p) {
                                write(call.out[0], rows, row, p, 3, start, n, parts[p]);
                                write(call.out[1], rows, row, p, 3, start, n, parts[p]);
                              }
                              write(call.out[0], rows, row, 2, 3, start, n, parts[2]);
                              write(call.out[1], rows, row, 2, 3, start, n, parts[3]);
                              write(call.out[2], rows, row, 0, 1, start, n, parts[4]);
                            });
}

}  // namespace

void add_recurrent_kernels(KernelTable& table) {
  table.add("lstm_gates", lstm_gates);
  table.add("lstm_gates_backward", lstm_gates_backward);
  table.add("gru_gates", gru_gates);
  table.add("gru_gates_backward", gru_gates_backward);
}

}  // namespace teletensor::backends::cpu
