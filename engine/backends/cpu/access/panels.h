// Processes lines along a dimension other than the last in panels of adjacent lines: memory is read
// and written in runs of kPanel elements, and each line is contiguous while it is processed.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/lines.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {

template <class A>
class Panels {
 public:
  static constexpr std::int64_t kPanel = 16;

  // Returns true if lines along `dim` of tensors of this shape should be processed in panels.
  static bool wanted(const core::Dims& shape, std::int64_t dim) {
    const int rank = shape.size();
    const int at = static_cast<int>(dim < 0 ? dim + rank : dim);
    return rank >= 2 && at != rank - 1 && shape[rank - 1] >= 4 && shape[at] >= 2;
  }

  Panels(KernelCall& call, std::int64_t dim)
      : call_(call), lines_(call.out[0].geometry->shape, dim) {
    columns_ = call.out[0].geometry->shape.back();
    across_ = (columns_ + kPanel - 1) / kPanel;
  }

  // Calls work(lines) with one line, of type A, of each of the first `kInputs` operands. The result
  // has to be in the first of them afterwards.
  template <std::size_t kInputs, class F>
  core::Status run(F&& work) {
    const std::int64_t n = lines_.length(), panels = lines_.count() / columns_ * across_;
    if (panels == 0 || n == 0) return {};
    // With a distance of a power of two, lines would share cache sets.
    const std::int64_t pitch = n + 16;
    const std::int64_t parts = std::clamp<std::int64_t>(lines_.count() * n / 100'000, 1,
                                                        std::min<std::int64_t>(panels, 16));
    const std::size_t bytes = scratch_bytes(parts, pitch, kPanel, kInputs, sizeof(A));
    A* rooms = static_cast<A*>(call_.scratch.allocate(bytes));
    if (!rooms) return out_of_scratch(call_.op.name, bytes);
    const std::int64_t room = pitch * kPanel * static_cast<std::int64_t>(kInputs);
    const auto part = [&](std::int64_t p) {
      const std::int64_t end = (p + 1) * panels / parts;
      for (std::int64_t i = p * panels / parts; i < end; ++i) {
        panel<kInputs>(i, rooms + p * room, pitch, work);
      }
    };
    if (parts == 1) {
      part(0);
    } else {
      call_.parallel.run(parts, part);
    }
    return {};
  }

 private:
  template <std::size_t kInputs, class F>
  void panel(std::int64_t i, A* room, std::int64_t pitch, F& work) const {
    const std::int64_t first = i / across_ * columns_ + i % across_ * kPanel;
    const std::int64_t width = std::min(kPanel, columns_ - first % columns_), n = lines_.length();
    A row[kPanel];
    for (std::size_t k = 0; k < kInputs; ++k) {
      const TensorArg& x = call_.in[k];
      const core::Geometry& g = *x.geometry;
      const LoadBlock<A> load = load_block<A>(x.dtype);
      const std::int64_t size = static_cast<std::int64_t>(core::size_of(x.dtype));
      const char* from = x.first<const char>() + lines_.offset(g, first) * size;
      A* to = room + static_cast<std::int64_t>(k) * pitch * kPanel;
      for (std::int64_t r = 0; r < n; ++r, from += lines_.stride(g) * size) {
        load(from, g.strides.back(), width, row);
        for (std::int64_t c = 0; c < width; ++c) to[c * pitch + r] = row[c];
      }
    }
    for (std::int64_t c = 0; c < width; ++c) {
      std::array<A*, kInputs> lines;
      for (std::size_t k = 0; k < kInputs; ++k) {
        lines[k] = room + (static_cast<std::int64_t>(k) * kPanel + c) * pitch;
      }
      work(lines);
    }
    const TensorArg& y = call_.out[0];
    const core::Geometry& g = *y.geometry;
    const StoreBlock<A> store = store_block<A>(y.dtype);
    const std::int64_t size = static_cast<std::int64_t>(core::size_of(y.dtype));
    char* to = y.first<char>() + lines_.offset(g, first) * size;
    for (std::int64_t r = 0; r < n; ++r, to += lines_.stride(g) * size) {
      for (std::int64_t c = 0; c < width; ++c) row[c] = room[c * pitch + r];
      store(row, width, to, g.strides.back());
    }
  }

  KernelCall& call_;
  const Lines lines_;
  std::int64_t columns_ = 1, across_ = 1;
};

}  // namespace teletensor::backends::cpu
