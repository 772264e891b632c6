// The functions of cuBLASLt, on the host: strict about layouts, alignments and memory, and about
// algorithms that were requested for another product.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "engine/backends/cuda/driver/blas.h"
#include "engine/core/half.h"
#include "fake.h"

using namespace fake;
namespace cuda = teletensor::backends::cuda;
namespace core = teletensor::core;

#define EXPORT extern "C" __attribute__((visibility("default"))) int

namespace {

enum Status : int {
  kNotInitialized = 1,
  kBadValue = 7,
  kExecutionFailed = 13,
  kNotSupported = 15,
};

struct Handle {
  Device* device;
};
struct Operation {
  int compute, scale;
  std::int32_t turned[2] = {0, 0};
  std::uint32_t epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int type;
  std::uint64_t rows, columns;
  std::int64_t lead, stride = 0;
  std::int32_t batches = 1;

  std::size_t size() const { return type == cuda::kReal64 ? 8 : type == cuda::kReal32 ? 4 : 2; }
  std::size_t extent() const {
    return ((columns - 1) * static_cast<std::uint64_t>(lead) + rows +
            static_cast<std::uint64_t>(batches - 1) * static_cast<std::uint64_t>(stride)) *
           size();
  }
  std::uint64_t offset(std::uint64_t batch, std::uint64_t row, std::uint64_t column) const {
    return batch * static_cast<std::uint64_t>(stride) + column * static_cast<std::uint64_t>(lead) +
           row;
  }
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = ~0u;
  std::uint32_t aligned[4] = {256, 256, 256, 256};
};
struct Problem {
  const Operation* operation;
  const Layout *a, *b, *c, *d;

  std::uint64_t depth() const { return operation->turned[0] ? a->rows : a->columns; }
  bool sound() const {
    const bool wide = a->type == cuda::kReal64;
    const bool rounds = operation->compute == cuda::kComputeTf32 && a->type == cuda::kReal32;
    if (!rounds && operation->compute != (wide ? cuda::kCompute64 : cuda::kCompute32)) return false;
    if (operation->scale != (wide ? cuda::kReal64 : cuda::kReal32)) return false;
    if (wide && operation->epilogue != 1) return false;
    for (const Layout* each : {a, b, c, d}) {
      if (each->type != a->type || each->batches != a->batches || each->batches < 1) return false;
      if (each->rows == 0 || each->columns == 0 || each->stride < 0) return false;
      if (each->lead < static_cast<std::int64_t>(each->rows)) return false;
    }
    const bool ta = operation->turned[0] != 0, tb = operation->turned[1] != 0;
    if ((ta ? a->columns : a->rows) != d->rows || (tb ? b->rows : b->columns) != d->columns ||
        (tb ? b->columns : b->rows) != depth()) {
      return false;
    }
    if (c->rows != d->rows || c->columns != d->columns) return false;
    return d->batches == 1 || d->stride >= d->lead * static_cast<std::int64_t>(d->columns);
  }
  // The kind of product for which an algorithm is valid.
  std::uint64_t name() const {
    std::uint64_t made = 0xcbf29ce484222325u;
    const auto mix = [&](std::uint64_t value) { made = (made ^ value) * 0x100000001b3u; };
    for (const Layout* each : {a, b, c, d}) {
      mix(static_cast<std::uint64_t>(each->type));
      mix(each->rows);
      mix(each->columns);
      mix(static_cast<std::uint64_t>(each->lead));
      mix(static_cast<std::uint64_t>(each->stride));
      mix(static_cast<std::uint64_t>(each->batches));
    }
    mix(operation->epilogue);
    mix(static_cast<std::uint64_t>(operation->compute));
    mix(static_cast<std::uint64_t>(operation->turned[0] | operation->turned[1] << 1));
    return made;
  }
};
constexpr std::uint64_t kWorkspace = 4096;

template <class T, class A, class Factor, class To, class From>
void multiply(const Problem& p, const void* alpha, const T* a, const T* b, const void* beta,
              const T* c, T* d, const T* bias, Factor&& factor, To&& wide, From&& narrow) {
  A scale = 0, keep = 0;
  std::memcpy(&scale, alpha, sizeof scale);
  std::memcpy(&keep, beta, sizeof keep);
  const bool ta = p.operation->turned[0] != 0, tb = p.operation->turned[1] != 0;
  for (std::uint64_t batch = 0; batch < static_cast<std::uint64_t>(p.d->batches); ++batch) {
    for (std::uint64_t j = 0; j < p.d->columns; ++j) {
      for (std::uint64_t i = 0; i < p.d->rows; ++i) {
        A sum = 0;
        for (std::uint64_t k = 0; k < p.depth(); ++k) {
          sum = std::fma(factor(a[p.a->offset(batch, ta ? k : i, ta ? i : k)]),
                         factor(b[p.b->offset(batch, tb ? j : k, tb ? k : j)]), sum);
        }
        A value = scale * sum;
        if (keep != 0) value += keep * wide(c[p.c->offset(batch, i, j)]);
        if (bias != nullptr) value += wide(bias[i]);
        d[p.d->offset(batch, i, j)] = narrow(value);
      }
    }
  }
}

bool aligned(const void* pointer, std::uint64_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) std::size_t cublasLtGetVersion() {
  return config().blas ? 130100 : 0;
}
EXPORT cublasLtCreate(void** handle) {
  std::unique_lock<std::mutex> lock;
  int error = kSuccess;
  Device* device = enter(lock, &error);
  if (device == nullptr) return kNotInitialized;
  *handle = new Handle{device};
  return kSuccess;
}
EXPORT cublasLtDestroy(void* handle) {
  delete static_cast<Handle*>(handle);
  return kSuccess;
}
EXPORT cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  *made = new Operation{compute, scale};
  return kSuccess;
}
EXPORT cublasLtMatmulDescDestroy(void* operation) {
  delete static_cast<Operation*>(operation);
  return kSuccess;
}
EXPORT cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* from,
                                      std::size_t bytes) {
  auto& operation = *static_cast<Operation*>(handle);
  const auto take = [&](auto& to) {
    if (bytes != sizeof to) return static_cast<int>(kBadValue);
    std::memcpy(&to, from, bytes);
    return static_cast<int>(kSuccess);
  };
  switch (attribute) {
    case cuda::kOperationA:
      return take(operation.turned[0]);
    case cuda::kOperationB:
      return take(operation.turned[1]);
    case cuda::kEpilogue:
      return take(operation.epilogue);
    case cuda::kBiasPointer:
      return take(operation.bias);
    default:
      return kBadValue;
  }
}
EXPORT cublasLtMatrixLayoutCreate(void** made, int type, std::uint64_t rows, std::uint64_t columns,
                                  std::int64_t lead) {
  *made = new Layout{type, rows, columns, lead};
  return kSuccess;
}
EXPORT cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return kSuccess;
}
EXPORT cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* from,
                                        std::size_t bytes) {
  auto& layout = *static_cast<Layout*>(handle);
  if (attribute == cuda::kBatchCount && bytes == sizeof layout.batches) {
    std::memcpy(&layout.batches, from, bytes);
  } else if (attribute == cuda::kBatchStride && bytes == sizeof layout.stride) {
    std::memcpy(&layout.stride, from, bytes);
  } else {
    return kBadValue;
  }
  return kSuccess;
}
EXPORT cublasLtMatmulPreferenceCreate(void** made) {
  *made = new Preference;
  return kSuccess;
}
EXPORT cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Preference*>(preference);
  return kSuccess;
}
EXPORT cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* from,
                                            std::size_t bytes) {
  auto& preference = *static_cast<Preference*>(handle);
  const int matrix = attribute - cuda::kAlignmentA;
  if (attribute == cuda::kMaxWorkspace && bytes == 8) {
    std::memcpy(&preference.workspace, from, bytes);
  } else if (attribute == cuda::kReductions && bytes == 4) {
    std::memcpy(&preference.reductions, from, bytes);
  } else if (matrix >= 0 && matrix < 4 && bytes == 4) {
    std::memcpy(&preference.aligned[matrix], from, bytes);
  } else {
    return kBadValue;
  }
  return kSuccess;
}
EXPORT cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c,
                                      void* d, void* preferences, int most,
                                      cuda::BlasAnswer* answers, int* count) {
  std::unique_lock<std::mutex> lock;
  int error = kSuccess;
  Device* device = enter(lock, &error);
  *count = 0;
  if (device == nullptr || static_cast<Handle*>(handle)->device != device) return kNotInitialized;
  const Problem problem{static_cast<Operation*>(operation), static_cast<Layout*>(a),
                        static_cast<Layout*>(b), static_cast<Layout*>(c), static_cast<Layout*>(d)};
  const auto& preference = *static_cast<Preference*>(preferences);
  if (most < 1) return kBadValue;
  if (config().blas_refuses || !problem.sound()) return kNotSupported;
  std::uint64_t promised = 0;
  for (int i = 0; i < 4; ++i) {
    if (preference.aligned[i] < problem.a->size()) return kNotSupported;
    promised |= std::uint64_t{preference.aligned[i]} << (16 * i);
  }
  // Long sums are accumulated in temporary memory.
  const bool split = problem.depth() >= 32 && preference.workspace >= kWorkspace;
  answers[0] = {};
  answers[0].algorithm.data[0] = problem.name();
  answers[0].algorithm.data[1] = promised;
  answers[0].algorithm.data[2] = answers[0].workspace = split ? kWorkspace : 0;
  *count = 1;
  return kSuccess;
}
EXPORT cublasLtMatmul(void* handle, void* operations, const void* alpha, const void* a,
                      void* layout_a, const void* b, void* layout_b, const void* beta,
                      const void* c, void* layout_c, void* d, void* layout_d,
                      const cuda::BlasAlgorithm* algorithm, void* workspace, std::size_t bytes,
                      void* stream_handle) {
  std::unique_lock<std::mutex> lock;
  int error = kSuccess;
  Device* device = enter(lock, &error);
  if (device == nullptr) return kExecutionFailed;
  const auto found = state().streams.find(static_cast<Stream*>(stream_handle));
  if (static_cast<Handle*>(handle)->device != device || found == state().streams.end() ||
      found->first->device != device) {
    return kNotInitialized;
  }
  // Copies of the arguments that the caller may change as soon as the call returns.
  struct Asked {
    Operation operation;
    Layout a, b, c, d;
    double alpha = 0, beta = 0;
  };
  auto asked = std::make_shared<Asked>(
      Asked{*static_cast<Operation*>(operations), *static_cast<Layout*>(layout_a),
            *static_cast<Layout*>(layout_b), *static_cast<Layout*>(layout_c),
            *static_cast<Layout*>(layout_d)});
  const Problem problem{&asked->operation, &asked->a, &asked->b, &asked->c, &asked->d};
  const std::size_t size = asked->operation.scale == cuda::kReal64 ? 8 : 4;
  std::memcpy(&asked->alpha, alpha, size);
  std::memcpy(&asked->beta, beta, size);
  const bool adds = asked->beta != 0;  // beta is zero in either type
  if (!problem.sound() || algorithm->data[0] != problem.name()) return kBadValue;
  if (bytes < algorithm->data[2]) return kBadValue;
  const void* pointers[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (!aligned(pointers[i], algorithm->data[1] >> (16 * i) & 0xffff)) return kBadValue;
  }
  if (c == d && asked->c.lead != asked->d.lead) return kBadValue;
  const void* bias =
      (asked->operation.epilogue & cuda::kEpilogueBias) != 0 ? asked->operation.bias : nullptr;
  if ((asked->operation.epilogue & cuda::kEpilogueBias) != 0 && bias == nullptr) return kBadValue;
  Task task;
  const auto touches = [&](const void* pointer, std::size_t extent) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::uintptr_t start = 0;
    task.touched.push_back(address);
    return block_of(*device, address, extent, &start) != nullptr;
  };
  const bool inside = touches(a, asked->a.extent()) && touches(b, asked->b.extent()) &&
                      touches(d, asked->d.extent()) && (!adds || touches(c, asked->c.extent())) &&
                      (bias == nullptr || touches(bias, asked->d.rows * asked->d.size())) &&
                      (bytes == 0 || (aligned(workspace, 16) && touches(workspace, bytes)));
  if (!inside) {
    device->error = kIllegalAddress;
    return kExecutionFailed;
  }
  task.run = [=] {
    if (config().empty) return static_cast<int>(kSuccess);
    if (bytes > 0) std::memset(workspace, 0xAB, bytes);
    const Problem p{&asked->operation, &asked->a, &asked->b, &asked->c, &asked->d};
    const auto go = [&](auto element, auto computed, auto&& factor, auto&& wide, auto&& narrow) {
      using T = decltype(element);
      multiply<T, decltype(computed)>(p, &asked->alpha, static_cast<const T*>(a),
                                      static_cast<const T*>(b), &asked->beta,
                                      static_cast<const T*>(c), static_cast<T*>(d),
                                      static_cast<const T*>(bias), factor, wide, narrow);
    };
    const auto same = [](auto x) { return x; };
    const auto wide = [](auto x) { return static_cast<float>(x); };
    switch (asked->a.type) {
      case cuda::kReal64:
        go(double{}, double{}, same, same, same);
        break;
      case cuda::kReal32:
        if (asked->operation.compute == cuda::kComputeTf32) {
          go(float{}, float{}, tf32, same, same);
        } else {
          go(float{}, float{}, same, same, same);
        }
        break;
      case cuda::kReal16:
        go(core::Half{}, float{}, wide, wide, [](float x) { return core::Half(x); });
        break;
      default:
        go(core::BFloat16{}, float{}, wide, wide, [](float x) { return core::BFloat16(x); });
    }
    return static_cast<int>(kSuccess);
  };
  const int refused = push(found->first, std::move(task), kLibraryNode);
  return refused == 0 ? 0 : static_cast<int>(kExecutionFailed);
}
