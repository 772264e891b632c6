#include "engine/backends/cuda/on_host.h"

#include <algorithm>
#include <deque>
#include <vector>

namespace teletensor::backends::cuda {
namespace {

using core::Geometry;
using core::Status;

// The part of one storage that the views of a call cover together: bytes [begin, end).
struct Window {
  void* device = nullptr;
  std::int64_t begin = 0, end = 0;
  char* host = nullptr;
  bool read = false;  // the kernel needs the previous contents
};

class HostScratch final : public Scratch {
 public:
  explicit HostScratch(Scratch& device) : device_(device) {}
  void* allocate(std::size_t bytes) override { return device_.allocate_on_host(bytes); }

 private:
  Scratch& device_;
};

struct Span {
  std::int64_t begin = 0, end = 0;
};
Span span_of(const TensorArg& arg) {
  if (arg.geometry->numel() == 0) return {};
  const auto size = static_cast<std::int64_t>(core::size_of(arg.dtype));
  return {arg.geometry->offset * size, arg.geometry->storage_end() * size};
}

}  // namespace

Status run_through_host(KernelCall& call, Kernel kernel, Gpu& gpu) {
  // Views of one storage stay views of one memory, because a kernel may rely on that.
  std::vector<Window> windows;
  const auto window_of = [&](const TensorArg& arg) -> Window& {
    Span span = span_of(arg);
    // aligned, so that views of different dtypes have aligned elements
    span.begin &= ~std::int64_t{63};
    for (Window& window : windows) {
      if (window.device != arg.data) continue;
      if (window.begin == window.end) {
        window.begin = span.begin, window.end = span.end;
      } else if (span.begin != span.end) {
        window.begin = std::min(window.begin, span.begin);
        window.end = std::max(window.end, span.end);
      }
      return window;
    }
    windows.push_back({arg.data, span.begin, span.end, nullptr, false});
    return windows.back();
  };
  for (const TensorArg& arg : call.in) {
    if (arg.kind == TensorArg::Kind::kTensor) window_of(arg).read = true;
  }
  for (const TensorArg& arg : call.out) {
    Window& window = window_of(arg);
    // The gaps between the elements of a result are written back unchanged, so they have to be
    // read.
    window.read |= call.op.inplace == ops::Inplace::kRegion || !arg.geometry->dense();
  }
  for (Window& window : windows) {
    const auto bytes = static_cast<std::size_t>(window.end - window.begin);
    window.host =
        static_cast<char*>(call.scratch.allocate_on_host(std::max<std::size_t>(bytes, 1)));
    if (window.host == nullptr) return out_of_scratch(call.op.name, bytes);
    if (!window.read) continue;
    TT_RETURN_IF_ERROR(gpu.device_to_host().copy(
        window.host, static_cast<char*>(window.device) + window.begin, bytes));
  }
  // The geometries of the operands' views, with offsets relative to the windows.
  std::deque<Geometry> geometries;
  const auto on_host = [&](const TensorArg& arg) {
    TensorArg moved = arg;
    if (arg.kind != TensorArg::Kind::kTensor) return moved;
    const Window& window = window_of(arg);
    const auto size = static_cast<std::int64_t>(core::size_of(arg.dtype));
    Geometry& geometry = geometries.emplace_back(*arg.geometry);
    moved.data = window.host;
    if (geometry.numel() == 0) {
      geometry.offset = 0;
    } else {
      geometry.offset -= window.begin / size;
    }
    moved.geometry = &geometry;
    return moved;
  };
  std::vector<TensorArg> in, out;
  for (const TensorArg& arg : call.in) in.push_back(on_host(arg));
  for (const TensorArg& arg : call.out) out.push_back(on_host(arg));
  HostScratch scratch(call.scratch);
  KernelCall there{call.op, in, out, call.counts, call.attributes, call.parallel, scratch};
  TT_RETURN_IF_ERROR(kernel(there));
  for (const TensorArg& arg : call.out) {
    const Span span = span_of(arg);
    const Window& window = window_of(arg);
    TT_RETURN_IF_ERROR(gpu.host_to_device().copy(static_cast<char*>(arg.data) + span.begin,
                                                 window.host + (span.begin - window.begin),
                                                 static_cast<std::size_t>(span.end - span.begin)));
  }
  return {};
}

std::vector<std::pair<std::string, std::uint64_t>> HostCalls::counts() const {
  std::vector<std::pair<std::string, std::uint64_t>> found;
  for (ops::OpId op = 0; op < counts_.size(); ++op) {
    const std::uint64_t count = counts_[op].load(std::memory_order_relaxed);
    if (count > 0) found.emplace_back(catalog_.at(op).name, count);
  }
  return found;
}

}  // namespace teletensor::backends::cuda
