// The fake device, and calls of ops that one of its libraries runs.
#pragma once

#ifdef TT_FAKE_CUDA_LIBRARY

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backends/cpu/kernel_test.h"
#include "engine/backends/cuda/device/gpu.h"
#include "engine/backends/cuda/device_table.h"

namespace teletensor::backends::cuda {

class FakeDevice {
 public:
  FakeDevice() {
    EXPECT_EQ(load_driver(TT_FAKE_CUDA_LIBRARY, &driver_).message(), "");
    auto gpu = Gpu::open(driver_, 0, "cuda:0", {});
    EXPECT_EQ(gpu.status().message(), "");
    gpu_ = std::move(*gpu);
  }
  virtual ~FakeDevice() = default;
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  const Driver& driver() const { return driver_; }
  Gpu& gpu() { return *gpu_; }

  // Returns true if the call becomes a single launch that the library accepts; then its result must
  // equal the CPU's.
  bool takes(const std::string& op, const std::vector<cpu::TestOperand>& operands,
             const core::Attributes& attributes = {}, std::size_t scratch = std::size_t{1} << 20) {
    const cpu::TestResult wanted = cpu::call_op(op, operands, attributes);
    EXPECT_EQ(wanted.status.message(), "") << op;
    bool taken = false;
    const cpu::TestResult got = cpu::call_op(
        op, operands, attributes, {}, [&](KernelCall& call) { return run(call, scratch, &taken); });
    EXPECT_EQ(got.status.message(), "") << op;
    EXPECT_TRUE(!taken || got[0].values() == wanted[0].values()) << op;
    return taken;
  }

  // The first number of the result that the library computes.
  double value_of(const std::string& op, const std::vector<cpu::TestOperand>& operands,
                  const core::Attributes& attributes) {
    bool taken = false;
    const cpu::TestResult got = cpu::call_op(op, operands, attributes, {}, [&](KernelCall& call) {
      return run(call, std::size_t{1} << 20, &taken);
    });
    EXPECT_EQ(got.status.message(), "") << op;
    EXPECT_TRUE(taken) << op;
    return got[0].values()[0];
  }

 private:
  virtual void lend(Work& work) = 0;
  virtual bool is_taken(const Launch& launch) = 0;
  virtual core::Status start(const Launch& launch) = 0;

  struct DeviceScratch final : Scratch {
    DeviceScratch(Gpu& gpu, std::size_t bytes) : gpu(gpu), left(bytes) {}
    ~DeviceScratch() override {
      for (void* each : held) gpu.free(each);
    }
    void* allocate(std::size_t bytes) override {
      if (bytes > left) return nullptr;
      left -= bytes;
      return held.emplace_back(gpu.allocate(bytes));
    }
    Gpu& gpu;
    std::size_t left;
    std::vector<void*> held;
  };

  core::Status run(KernelCall& call, std::size_t bytes, bool* taken) {
    static const DeviceTable table = make_device_table(ops::catalog());
    DeviceScratch memory(*gpu_, std::size_t{8} << 20), scratch(*gpu_, bytes);
    std::vector<TensorArg> in(call.in.begin(), call.in.end()),
        out(call.out.begin(), call.out.end());
    const auto size_of = [](const TensorArg& arg) {
      return static_cast<std::size_t>(arg.geometry->storage_end()) * core::size_of(arg.dtype);
    };
    for (TensorArg& arg : in) {
      if (arg.kind != TensorArg::Kind::kTensor) continue;
      const void* host = arg.data;
      arg.data = memory.allocate(size_of(arg));
      TT_RETURN_IF_ERROR(gpu_->host_to_device().copy(arg.data, host, size_of(arg)));
    }
    for (TensorArg& arg : out) arg.data = memory.allocate(size_of(arg));
    KernelCall there{call.op, in, out, call.counts, call.attributes, call.parallel, scratch};
    Work work;
    lend(work);
    TT_RETURN_IF_ERROR(table.find(ops::catalog().id(call.op)).describe(there, work));
    *taken = work.launches.size() == 1 && is_taken(work.launches[0]);
    if (!*taken) return {};
    TT_RETURN_IF_ERROR(start(work.launches[0]));
    return gpu_->device_to_host().copy(call.out[0].data, out[0].data, size_of(out[0]));
  }

  Driver driver_;
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace teletensor::backends::cuda

#endif
