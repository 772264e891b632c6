// KernelCache: the compiled kernels of one device, found by key. Their code is also kept on disk,
// found by its text.
//
// A single kernel is compiled by the first thread that needs it, and other threads wait for it.
// Loops are compiled by a thread of the cache, from their third occurrence on, and no thread waits
// for them. A kernel that does not compile is logged once and not tried again. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/device/gpu.h"
#include "engine/backends/cuda/driver/driver.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// A loaded kernel; it is unloaded with its last reference.
class LoadedKernel {
 public:
  LoadedKernel(Gpu& gpu, Module module, Function function)
      : gpu_(gpu), module_(module), function_(function) {}
  ~LoadedKernel() { gpu_.unload(module_); }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;
  Function function() const { return function_; }
  // Returns true if the kernel has been started with blocks of this size and this much shared
  // memory.
  bool known(const LaunchShape& shape) const { return known_.load() == form(shape); }
  void set_known(const LaunchShape& shape) const { known_.store(form(shape)); }

 private:
  static std::uint64_t form(const LaunchShape& shape) {
    const std::uint64_t threads =
        std::uint64_t{1} * shape.block[0] * shape.block[1] * shape.block[2];
    return threads << 32 | shape.shared_bytes;
  }

  Gpu& gpu_;
  const Module module_;
  const Function function_;
  mutable std::atomic<std::uint64_t> known_{0};  // the form of the last successful start
};
using KernelRef = std::shared_ptr<const LoadedKernel>;

class KernelCache {
 public:
  static constexpr int kSightings = 3;  // a loop is compiled when it occurs for this many times
  static constexpr std::size_t kMax = 4096;  // maximum number of kernels that stay loaded
  static constexpr std::size_t kMaxQueued =
      256;  // maximum number of loops that wait to be compiled
  // Maximum size of the code on disk, in bytes.
  static constexpr std::uint64_t kMaxOnDisk = std::uint64_t{512} << 20;

  // `folder` stores the code; "" stores none. Precondition: the arguments outlive the cache.
  KernelCache(Gpu& gpu, const Compiler& compiler, std::string folder, Log log);
  // Waits for the compilation that is running. Kernels that callers still hold stay loaded.
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // Returns the kernel for the launch with this key; kUnimplemented if it does not compile.
  core::Result<KernelRef> find(const std::string& key, unsigned shared_bytes);
  // Like find(), but returns kUnavailable while the kernel is not compiled yet.
  core::Result<KernelRef> find_loop(const std::string& key, unsigned shared_bytes);

  struct Counts {
    std::uint64_t compiled = 0, from_disk = 0, refused = 0;
    std::uint64_t loaded = 0;  // number of kernels that are loaded now
  };
  Counts counts() const;

 private:
  struct Entry {
    int seen = 0;
    bool making = false;
    KernelRef kernel;
    core::Status refused;
    std::list<std::string>::iterator place;  // position in recent_
  };

  Entry& entry(const std::string& key) TT_REQUIRES(mu_);
  core::Result<KernelRef> make(const std::string& key, unsigned shared_bytes);
  core::Result<std::string> code_of(const KernelSource& source);
  void settle(const std::string& key, core::Result<KernelRef> made);
  void work();

  Gpu& gpu_;
  const Compiler& compiler_;
  const std::string flags_;
  const std::string folder_;
  const Log log_;

  mutable core::Mutex mu_;
  core::CondVar changed_;
  std::unordered_map<std::string, Entry> entries_ TT_GUARDED_BY(mu_);
  std::list<std::string> recent_ TT_GUARDED_BY(mu_);  // keys, most recently used first
  std::deque<std::pair<std::string, unsigned>> queue_ TT_GUARDED_BY(mu_);
  Counts counts_ TT_GUARDED_BY(mu_);
  bool ending_ TT_GUARDED_BY(mu_) = false;
  bool told_ TT_GUARDED_BY(mu_) = false;  // a failed compilation has been logged
  std::thread worker_;
};

}  // namespace teletensor::backends::cuda
