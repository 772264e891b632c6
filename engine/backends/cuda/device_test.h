// Support for unit tests of device kernels: calls of ops are described, run together in the
// emulator, and compared with the CPU's results.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/backends/cpu/kernel_test.h"
#include "engine/backends/cuda/codegen/nvrtc_test.h"
#include "engine/backends/cuda/device_table.h"
#include "engine/backends/cuda/emulator_test.h"
#include "engine/backends/cuda/plans/fold_plan.h"
#include "engine/backends/cuda/plans/loop_plan.h"

namespace teletensor::backends::cuda {

using cpu::call_op;
using cpu::TestOperand;
using cpu::TestResult;
using cpu::TestScratch;
using cpu::TestTensor;

// The number of representable values between a and b; 0 if both are NaN.
template <class T, class Bits>
std::int64_t steps_between(T a, T b) {
  if (a != a || b != b) return a != a && b != b ? 0 : INT64_MAX;
  const auto place = [](T x) {
    const auto bits = static_cast<std::int64_t>(std::bit_cast<Bits>(x));
    const std::int64_t top = std::int64_t{1} << (sizeof(T) * 8 - 1);
    if constexpr (sizeof(T) == 8) return bits < 0 ? INT64_MIN - bits : bits;
    return (bits & top) != 0 ? top - bits : bits;
  };
  const std::int64_t p = place(a), q = place(b);
  return p > q ? p - q : q - p;
}

inline std::int64_t distance(core::DType dtype, const void* a, const void* b) {
  using core::DType;
  const std::size_t size = core::size_of(dtype);
  if (std::memcmp(a, b, size) == 0) return 0;
  const auto as = [](auto type, const void* p) {
    std::memcpy(&type, p, sizeof type);
    return type;
  };
  const auto reals = [&](DType real, int at) {
    const char *x = static_cast<const char*>(a) + at, *y = static_cast<const char*>(b) + at;
    if (real == DType::kF32) {
      return steps_between<float, std::int32_t>(as(float{}, x), as(float{}, y));
    }
    return steps_between<double, std::int64_t>(as(double{}, x), as(double{}, y));
  };
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
      return reals(dtype, 0);
    case DType::kC64:
    case DType::kC128:
      return std::max(reals(core::real_of(dtype), 0),
                      reals(core::real_of(dtype), static_cast<int>(size) / 2));
    case DType::kF16:
    case DType::kBF16: {
      const auto x = as(std::uint16_t{}, a), y = as(std::uint16_t{}, b);
      const std::uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      if ((x & 0x7fff) > infinity || (y & 0x7fff) > infinity) {
        return (x & 0x7fff) > infinity && (y & 0x7fff) > infinity ? 0 : INT64_MAX;
      }
      const auto place = [](std::uint16_t v) { return v & 0x8000 ? 0x8000 - v : int{v}; };
      return std::abs(place(x) - place(y));
    }
    default:
      return INT64_MAX;
  }
}

class DeviceCases {
 public:
  // Runs the op on the CPU and describes it for the device. Returns false if the CPU or the device
  // refuses the call.
  bool add(const std::string& op, const std::vector<TestOperand>& operands,
           const core::Attributes& attributes = {}, const std::vector<std::uint32_t>& counts = {},
           const std::string& what = {}) {
    Case c;
    c.op = op;
    c.name = op + what;
    c.operands = operands;
    // The op may write to its operands, so the device gets copies.
    for (TestOperand& operand : c.operands) {
      if (operand.kind != TensorArg::Kind::kTensor) continue;
      operand.tensor = copied(operand.tensor);
    }
    c.expected = call_op(op, operands, attributes, counts);
    refused_ = c.expected.status.message();
    if (!c.expected.status.ok()) return false;
    c.got = describe(c, attributes, counts);
    refused_ = c.got.status.message();
    if (c.got.status.code() == core::Code::kUnimplemented) return false;
    EXPECT_TRUE(c.got.status.ok()) << c.name << ": " << c.got.status.message();
    cases_.push_back(std::move(c));
    return true;
  }

  // Adds a case like the function above, and fails the test if the device does not accept the call.
  void need(const std::string& op, const std::vector<TestOperand>& operands,
            const core::Attributes& attributes = {},
            const std::vector<std::uint32_t>& counts = {}) {
    EXPECT_TRUE(add(op, operands, attributes, counts)) << op << ": " << refused_;
  }

  // Adds a call that the CPU refuses because of its data: the device has to set the flag and must
  // store nothing.
  bool add_refused(const std::string& op, const std::vector<TestOperand>& operands,
                   const core::Attributes& attributes = {},
                   const std::vector<std::uint32_t>& counts = {}) {
    Case c;
    c.op = c.name = op;
    c.operands = operands;
    c.refused = true;
    if (call_op(op, operands, attributes, counts).status.ok()) return false;
    c.got = describe(c, attributes, counts);
    c.expected.tensors = c.got.tensors;
    for (TestTensor& t : c.expected.tensors) t = copied(t);
    cases_.push_back(std::move(c));
    return cases_.back().got.status.ok() && cases_.back().work.flag != nullptr;
  }

  // Compiles, runs and compares everything. Results of math functions may differ by `ulp` units in
  // the last place; near zero they may differ by `scale` times a small multiple of the precision at
  // 1.
  void run(std::int64_t ulp, double scale = 1) {
    scale_ = scale;
    std::map<std::string, std::size_t> places;
    std::vector<KernelSource> sources;
    for (const Case& c : cases_) {
      for (const Launch& launch : c.work.launches) {
        if (places.emplace(launch.key, sources.size()).second) {
          sources.push_back(print_kernel(launch.key));
        }
      }
    }
    check_with_nvrtc(sources);
    std::vector<EmulatedKernel> kernels;
    Emulator emulator;
    constexpr std::size_t kAtOnce = 150;
    for (std::size_t at = 0; at < sources.size(); at += kAtOnce) {
      const std::string error = emulator.compile(
          std::span(sources).subspan(at, std::min(kAtOnce, sources.size() - at)), kernels);
      ASSERT_EQ(error, "");
    }
    for (Case& c : cases_) {
      if (c.work.flag != nullptr) std::memset(c.work.flag, 0, 4);
      for (const Launch& launch : c.work.launches) {
        ASSERT_LE(launch.params.size(), kMaxParameterBytes);
        emulate(kernels[places.at(launch.key)], launch.shape, launch.params.data());
      }
      if (c.work.flag != nullptr) {
        std::int32_t flag = 0;
        std::memcpy(&flag, c.work.flag, 4);
        EXPECT_EQ(flag != 0, c.refused) << c.name;
      }
      compare(c, ulp);
    }
    std::printf("%zu cases, %zu kernels, most apart: %lld ulp (%s)\n", cases_.size(),
                sources.size(), static_cast<long long>(worst_), worst_name_.c_str());
  }

  std::size_t size() const { return cases_.size(); }
  std::size_t launches() const {
    std::size_t n = 0;
    for (const Case& c : cases_) n += c.work.launches.size();
    return n;
  }
  // Returns true if all cases are to run, and false if only as many as fit into a minute.
  static bool thorough() { return std::getenv("TELETENSOR_CUDA_ALL") != nullptr; }

 private:
  struct Case {
    std::string op, name;
    std::vector<TestOperand> operands;
    TestResult expected, got;
    Work work;
    bool libm = false, refused = false;
  };

  static TestTensor copied(const TestTensor& t) {
    TestTensor own(t.dtype, t.geometry);
    std::memcpy(own.data(), t.data(), t.memory->size() - 64);
    return own;
  }

  TestResult describe(Case& c, const core::Attributes& attributes,
                      const std::vector<std::uint32_t>& counts) {
    static const DeviceTable table = make_device_table(ops::catalog());
    return call_op(c.op, c.operands, attributes, counts, [&](KernelCall& call) -> core::Status {
      const DeviceKernel& kernel = table.find(ops::catalog().id(call.op));
      if (kernel.describe == nullptr) return core::Status(core::Code::kUnimplemented, "host");
      KernelCall lasting{call.op,         call.in,       call.out, call.counts,
                         call.attributes, call.parallel, scratch_};
      TT_RETURN_IF_ERROR(kernel.describe(lasting, c.work));
      for (const Launch& launch : c.work.launches) c.libm = c.libm || calls_libm(launch.key);
      return {};
    });
  }

  static bool calls_libm(const std::string& key) {
    const KernelKind kind = KeyReader(key).get<KernelKind>();
    if (kind != KernelKind::kFold && kind != KernelKind::kLoop) return true;
    if (kind == KernelKind::kFold) {
      const FoldGraph graph = FoldGraph::of_key(key);
      return graph.map == FoldMap::kExpDifference || graph.map == FoldMap::kAbsPower ||
             graph.finish == FoldFinish::kPower || graph.finish == FoldFinish::kLogAdd;
    }
    for (const LoopNode& node : LoopGraph::of_key(key).nodes) {
      const core::DType dtype = node.compute;
      if (node.loops != nullptr && (node.loops->libm || core::is_complex(dtype))) return true;
    }
    return false;
  }

  // Compiles with NVRTC at most 10 kernels per test, spread over those that the test prints, for
  // sm_90; with TELETENSOR_CUDA_ALL all of them, for three architectures.
  static void check_with_nvrtc(const std::vector<KernelSource>& sources) {
    static Nvrtc nvrtc;
    if (!nvrtc.found()) {
      std::printf("no NVRTC: %zu kernels are not compiled for a device\n", sources.size());
      return;
    }
    const bool all = thorough();
    const std::size_t count = all ? sources.size() : std::min(sources.size(), std::size_t{10});
    constexpr std::size_t kAtOnce = 50;
    for (const char* architecture : {"sm_90", "sm_80", "sm_100"}) {
      for (std::size_t at = 0; at < count; at += kAtOnce) {
        const std::size_t end = std::min(count, at + kAtOnce);
        // If only some are compiled, picks them evenly from all.
        std::vector<KernelSource> some;
        for (std::size_t i = at; i < end; ++i) some.push_back(sources[i * sources.size() / count]);
        EXPECT_EQ(nvrtc.check(some, architecture), "") << architecture;
      }
      if (!all) break;
    }
    std::printf("NVRTC compiled %zu of %zu kernels\n", count, sources.size());
  }

  static double shown(const TestTensor& t, std::size_t byte) {
    double value;
    cpu::load_block<double>(t.dtype)(t.data() + byte, 1, 1, &value);
    return value;
  }

  // Near a zero of a function the absolute difference counts, not the difference in digits.
  bool close(core::DType dtype, const void* a, const void* b) const {
    const core::DType part = core::real_of(dtype);
    const double most = part == core::DType::kF64   ? 0x1p-48
                        : part == core::DType::kF32 ? 0x1p-19
                                                    : 0x1p-7;
    const double allowed = most * scale_;
    for (std::size_t at = 0; at < core::size_of(dtype); at += core::size_of(part)) {
      double x, y;
      cpu::load_block<double>(part)(static_cast<const char*>(a) + at, 1, 1, &x);
      cpu::load_block<double>(part)(static_cast<const char*>(b) + at, 1, 1, &y);
      if (!(std::abs(x - y) <= allowed) && !(x != x && y != y) && x != y) return false;
    }
    return true;
  }

  void compare(const Case& c, std::int64_t ulp) {
    for (std::size_t r = 0; r < c.expected.tensors.size(); ++r) {
      const TestTensor &a = c.expected.tensors[r], &b = c.got.tensors[r];
      const std::size_t size = core::size_of(a.dtype);
      for (std::size_t i = 0; i + size <= a.memory->size() - 64; i += size) {
        const std::int64_t apart = distance(a.dtype, a.data() + i, b.data() + i);
        if (c.libm && apart > ulp && close(a.dtype, a.data() + i, b.data() + i)) continue;
        if (apart > worst_ && apart != INT64_MAX) worst_ = apart, worst_name_ = c.name;
        if (apart <= (c.libm ? ulp : 0)) continue;
        ADD_FAILURE() << c.name << ": byte " << i << " of result " << r << " is " << apart
                      << " ulp from the CPU's: " << shown(b, i) << ", not " << shown(a, i);
        break;
      }
    }
  }

  TestScratch scratch_;
  std::vector<Case> cases_;
  std::int64_t worst_ = 0;
  double scale_ = 1;
  std::string worst_name_, refused_;
};

}  // namespace teletensor::backends::cuda
