// The matrices of a batched tensor in the form that LAPACK takes: column-major copies in scratch
// memory.
#pragma once

#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/backends/backend.h"
#include "engine/backends/cpu/linalg/lapack.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {

// The matrices (or vectors, or numbers) in the trailing `rank` (2, 1 or 0) dimensions of an
// argument; the leading dimensions broadcast to `batch`.
class Matrices {
 public:
  Matrices() = default;
  Matrices(const TensorArg& arg, const core::Dims& batch, int rank) : batch_(batch) {
    const core::Geometry& g = *arg.geometry;
    first_ = arg.first<char>();
    const int lead = g.rank() - rank;
    if (rank >= 1) rows_ = g.shape[lead], row_stride_ = g.strides[lead];
    if (rank == 2) columns_ = g.shape[lead + 1], column_stride_ = g.strides[lead + 1];
    for (int d = 0; d < batch.size(); ++d) {
      const int own = d - (batch.size() - lead);
      strides_[d] = own < 0 || g.shape[own] == 1 ? 0 : g.strides[own];
    }
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  Matrices transposed() const {
    Matrices out = *this;
    std::swap(out.rows_, out.columns_);
    std::swap(out.row_stride_, out.column_stride_);
    return out;
  }

  // The offset of matrix i from the first element.
  std::int64_t offset(std::int64_t i) const {
    std::int64_t at = 0;
    for (int d = batch_.size() - 1; d >= 0; --d) {
      at += i % batch_[d] * strides_[d];
      i /= batch_[d];
    }
    return at;
  }

  // Copies matrix i to `to` in column-major order; columns are `ld` elements apart.
  template <class T>
  void load(std::int64_t i, T* to, std::int64_t ld) const {
    const T* from = reinterpret_cast<const T*>(first_) + offset(i);
    copy(from, row_stride_, column_stride_, to, 1, ld);
  }
  template <class T>
  void load(std::int64_t i, T* to) const {
    load(i, to, std::max<std::int64_t>(rows_, 1));
  }
  template <class T>
  void store(std::int64_t i, const T* from, std::int64_t ld) const {
    T* to = reinterpret_cast<T*>(first_) + offset(i);
    copy(from, 1, ld, to, row_stride_, column_stride_);
  }
  template <class T>
  void store(std::int64_t i, const T* from) const {
    store(i, from, std::max<std::int64_t>(rows_, 1));
  }

 private:
  // Copies in tiles, so that both sides of a transposition stay in the cache.
  template <class T>
  void copy(const T* from, std::int64_t from_row, std::int64_t from_column, T* to,
            std::int64_t to_row, std::int64_t to_column) const {
    constexpr std::int64_t kTile = 32;
    if (from_row == 1 && to_row == 1) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        std::memcpy(to + c * to_column, from + c * from_column,
                    static_cast<std::size_t>(rows_) * sizeof(T));
      }
      return;
    }
    for (std::int64_t c0 = 0; c0 < columns_; c0 += kTile) {
      for (std::int64_t r0 = 0; r0 < rows_; r0 += kTile) {
        for (std::int64_t c = c0; c < std::min(columns_, c0 + kTile); ++c) {
          for (std::int64_t r = r0; r < std::min(rows_, r0 + kTile); ++r) {
            to[r * to_row + c * to_column] = from[r * from_row + c * from_column];
          }
        }
      }
    }
  }

  core::Dims batch_;
  char* first_ = nullptr;
  std::int64_t rows_ = 1, columns_ = 1, row_stride_ = 1, column_stride_ = 1;
  std::int64_t strides_[core::kMaxRank] = {};
};

// The leading dimensions of an argument.
inline core::Dims batch_of(const TensorArg& arg, int rank) {
  core::Dims batch = arg.geometry->shape;
  for (int i = 0; i < rank; ++i) batch.erase(batch.size() - 1);
  return batch;
}

// Checks that sizes fit into LAPACK's int32 arithmetic: those of matrices and workspaces, and their
// products.
class Sizes {
 public:
  explicit Sizes(std::string_view op) : op_(op) {}
  // Returns `count` as an int. If it is too large, status() reports it.
  int fit(std::int64_t count) {
    if (count > std::numeric_limits<int>::max() || count < 0) too_large_ = true;
    return too_large_ ? 0 : static_cast<int>(count);
  }
  int product(std::int64_t a, std::int64_t b) {
    std::int64_t all = 0;
    if (__builtin_mul_overflow(a, b, &all)) all = -1;
    return fit(all);
  }
  core::Status status() const {
    if (!too_large_) return {};
    return core::Status(core::Code::kUnimplemented,
                        std::string(op_) + ": a matrix is too large for 32-bit LAPACK");
  }

 private:
  std::string_view op_;
  bool too_large_ = false;
};

// The scratch memory of one matrix, from which arrays are allocated.
class Room {
 public:
  explicit Room(char* at = nullptr) : at_(at) {}
  // Without memory it only adds up sizes: afterwards `bytes()` is the memory that the same calls
  // need.
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(count, 1), sizeof(T));
    char* out = at_ ? at_ + bytes_ : nullptr;
    bytes_ = add_scratch_bytes(bytes_, add_scratch_bytes(bytes, 63) / 64 * 64);
    return reinterpret_cast<T*>(out);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  char* at_ = nullptr;
  std::size_t bytes_ = 0;
};

// A call of LAPACK cannot be interrupted. If it takes longer than this, by the estimate, it does
// not run on a lane.
inline constexpr double kLongCall = 50e6;  // nanoseconds

// Calls body(i, room) for every matrix of a batch, in parallel if one takes more than about 50 us
// (`nanoseconds`). The parts depend only on the shapes. Stops at the first body that returns an
// error.
template <class F>
core::Status each_matrix(KernelCall& call, std::int64_t count, double nanoseconds,
                         std::size_t room_bytes, F&& body) {
  std::int64_t parts = 1;
  const double total = static_cast<double>(count) * nanoseconds;
  if (total > 300e3) {
    parts = std::min<std::int64_t>({count, 16, static_cast<std::int64_t>(total / 150e3) + 1});
  }
  char* rooms = nullptr;
  if (room_bytes > 0) {
    std::size_t bytes = scratch_bytes(room_bytes, parts);
    rooms = static_cast<char*>(call.scratch.allocate(bytes));
    if (!rooms && parts > 1) {
      parts = 1;
      bytes = room_bytes;
      rooms = static_cast<char*>(call.scratch.allocate(bytes));
    }
    if (!rooms) return out_of_scratch(call.op.name, bytes);
  }
  core::Status failures[16];
  const auto run = [&](std::int64_t part) {
    const std::int64_t begin = part * (count / parts) + std::min(part, count % parts);
    const std::int64_t end = begin + count / parts + (part < count % parts ? 1 : 0);
    for (std::int64_t i = begin; i < end && !call.parallel.cancelled(); ++i) {
      const auto turn = lapack::turn();
      failures[part] = body(i, Room(rooms + part * static_cast<std::int64_t>(room_bytes)));
      if (!failures[part].ok()) return;
    }
  };
  if (nanoseconds > kLongCall) {
    call.parallel.run_long(parts, run);
  } else if (parts == 1) {
    run(0);
  } else {
    call.parallel.run(parts, run);
  }
  for (core::Status& failure : failures) TT_RETURN_IF_ERROR(std::move(failure));
  return {};
}

// Estimated nanoseconds of m n k multiplications, at about 4 per nanosecond, plus the cost of the
// call.
inline double matrix_cost(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 1000 + 0.25 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

inline bool nothing_to_do(const KernelCall& call) {
  return std::all_of(call.out.begin(), call.out.end(),
                     [](const TensorArg& out) { return out.geometry->numel() == 0; });
}

// The optimal size of the workspace, which a routine returned in work[0].
template <class T>
std::int64_t workspace(T answer) {
  // A float may have lost the last digits of a large size.
  return static_cast<std::int64_t>(static_cast<double>(std::real(answer)) * 1.000001) + 1;
}

template <class T>
bool all_finite(const T* x, std::int64_t n) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto size = std::abs(x[i]);
    finite &= size <= std::numeric_limits<lapack::Real<T>>::max();
  }
  return finite;
}

// The error "name: (Batch element i): text", as PyTorch words it; without the element for a single
// matrix.
inline core::Status linalg_error(std::string_view name, const core::Dims& batch, std::int64_t i,
                                 const std::string& text) {
  std::string message = std::string(name) + ": ";
  if (!batch.empty()) message += "(Batch element " + std::to_string(i) + "): ";
  return core::Status(core::Code::kAborted, message + text);
}

// Calls f(T{}) with the element type of a dtype that linear algebra supports; infer has refused all
// others.
template <class F>
auto with_matrix_type(core::DType dtype, F&& f) {
  if (dtype == core::DType::kF32) return f(float{});
  if (dtype == core::DType::kC64) return f(std::complex<float>{});
  if (dtype == core::DType::kC128) return f(std::complex<double>{});
  return f(double{});
}

}  // namespace teletensor::backends::cpu
