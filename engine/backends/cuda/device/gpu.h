// Gpu: one device behind the driver: its memory and kernels, and the parts that have a state of
// their own.
//
// Work is queued and runs after the call returns; the work of one session (memory::on_behalf) runs
// in its order, and queues.h defines the order between sessions. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/device/context.h"
#include "engine/backends/cuda/device/host_copies.h"
#include "engine/backends/cuda/device/mappable_memory.h"
#include "engine/backends/cuda/device/watcher.h"
#include "engine/backends/cuda/device/work_queues.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

class Gpu {
 public:
  struct Options {
    double patience = 60;  // the device is lost after this many seconds without progress
    Log log;
  };
  // Opens device `ordinal` of the driver. `name` ("cuda:0") is used in messages. Precondition:
  // `driver` outlives the Gpu.
  static core::Result<std::unique_ptr<Gpu>> open(const Driver& driver, int ordinal,
                                                 std::string name, Options options);
  // Waits for all queued work, unless the device is lost.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const DeviceContext& context() const { return context_; }
  const std::string& name() const { return context_.name(); }
  const DeviceContext::Facts& facts() const { return context_.facts(); }
  core::Status health() const { return context_.health(); }
  const Queues& queues() const { return work_.queues(); }
  HostToDevice& host_to_device() { return host_to_device_; }
  DeviceToHost& device_to_host() { return device_to_host_; }
  // Memory that other processes can map.
  MappableMemory& mappable() { return mappable_; }

  // Returns zeroed memory that any session may use, or nullptr if there is none left or the device
  // is lost.
  void* allocate(std::size_t bytes);
  void free(void* memory);  // takes effect when all work queued so far has run
  core::Status zero(void* memory, std::size_t bytes);
  // Clears memory after all work that session `from` has queued, and before all work that session
  // `to` queues from now on.
  core::Status transfer_ownership(void* memory, std::size_t bytes, memory::OwnerId from,
                                  memory::OwnerId to);
  core::Status copy(void* to, const void* from, std::size_t bytes);
  core::Status copy_now(void* to, const void* from, std::size_t bytes);  // waits for the copy
  core::Status copy_from(Gpu& other, void* to, const void* from, std::size_t bytes);
  // Page-locks host memory for all devices. Returns false if the driver cannot.
  bool lock(void* host, std::size_t bytes);
  bool unlock(void* host);  // returns false if it stays locked

  core::Status load(const std::string& code, Module* module);
  core::Status function(Module module, const std::string& name, unsigned shared_bytes,
                        Function* function);
  void unload(Module module);  // precondition: no work queued before uses it
  // `parameters` is the kernel's one parameter, a struct. `known` means that the kernel has been
  // started before with blocks of this size and this much shared memory.
  core::Status launch(Function function, const LaunchShape& shape,
                      std::span<const std::byte> parameters, bool known = false);
  // Launches a call of a library instead of a kernel; `*code` receives the library's error code.
  core::Status launch(Library& library, const LibraryCall& call, bool known, int* code);
  // Turns on or off that the session's work is gathered (queues.h).
  core::Status gather(memory::OwnerId owner, bool on);
  core::Status synchronize() { return work_.synchronize(); }

  // follow_all(): work that the calling thread's session queues from now on waits for all work of
  // all sessions. make_all_follow(): work that the other sessions queue from now on waits for the
  // work of this session.
  core::Status follow_all();
  core::Status make_all_follow();
  // Lets the uploads of this session (memory::beside) start after the work that it has queued so
  // far, and run beside what it queues from now on.
  core::Status begin_beside(memory::OwnerId owner);
  void end(memory::OwnerId owner);  // the session queues no more work
  Queues::Time take_time(memory::OwnerId owner);

 private:
  Gpu(const Driver& driver, std::string name, Options options);
  core::Status start(int ordinal);
  core::Status clear(Queues::Queue& queue, void* memory, std::size_t bytes);

  DeviceContext context_;
  WorkQueues work_;
  HostToDevice host_to_device_;
  DeviceToHost device_to_host_;
  MappableMemory mappable_;
  Watcher watcher_;
};

}  // namespace teletensor::backends::cuda
