// Gpu: one device behind the driver, with its context, its queues and its memory.
//
// Work is queued and runs after the call returns; the work of one session (memory::on_behalf) runs
// in its order, and queues.h defines the order between sessions. A device is lost for good if it
// reports an error that ends its context, or if it stops answering: every later call then returns
// that cause. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/driver/driver.h"
#include "engine/backends/cuda/driver/queues.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

using Log = std::function<void(bool bad, const std::string& line)>;

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

  const std::string& name() const { return name_; }
  const std::string& model() const { return model_; }  // for example "NVIDIA H100 80GB HBM3"
  int capability() const { return capability_; }       // 90 means 9.0
  int multiprocessors() const { return multiprocessors_; }
  std::uint64_t memory() const { return memory_; }  // total in bytes
  std::uint64_t free_at_start() const { return free_at_start_; }
  std::array<std::uint64_t, 2> uuid() const { return uuid_; }

  // Returns an error once the device is lost.
  core::Status health() const;

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
  // The host memory may be changed as soon as the call returns.
  core::Status copy_in(void* to, const void* host, std::size_t bytes);
  // Runs after all work queued before; the bytes are in host memory when it returns.
  core::Status copy_out(void* host, const void* from, std::size_t bytes);

  // Page-locks host memory for all devices. Returns false if the driver cannot.
  bool lock(void* host, std::size_t bytes);
  bool unlock(void* host);  // returns false if it stays locked
  // Copy to and from page-locked memory directly, without a staging slot. They stop and return
  // CANCELLED when `go_on` returns false. On return no copy is in progress any more, unless the
  // device is lost.
  core::Status copy_in_locked(void* to, const void* host, std::size_t bytes,
                              const std::function<bool()>& go_on);
  core::Status copy_out_locked(void* host, const void* from, std::size_t bytes,
                               const std::function<bool()>& go_on);

  // Memory that other processes can map (gpu_open.cc; see memory::Source).
  std::size_t open_unit() const { return open_unit_; }
  int open_memory(std::size_t bytes, void** memory);
  void withdraw(int descriptor, void* memory, std::size_t bytes);

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
  // Makes this device's context current for the driver calls of this thread.
  core::Status enter() const;
  core::Status synchronize();  // waits for the work of all sessions

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
  const Queues& queues() const { return queues_; }

 private:
  // Page-locked staging memory for copies between host and device.
  static constexpr std::size_t kSlot = std::size_t{1} << 20;
  static constexpr int kSlots = 8;
  static constexpr int kOuts = 4;
  // Size of one part of a copy without a slot.
  static constexpr std::size_t kPart = std::size_t{32} << 20;
  // Up to this size, copies use the session's own stream.
  static constexpr std::size_t kSmall = std::size_t{64} << 10;
  struct Slot {
    char* data = nullptr;
    Event filled = nullptr;  // recorded when all copies from the slot have been queued
    bool used = false;
  };
  struct Out {
    char* data = nullptr;
    Stream stream = nullptr;
    Event event = nullptr;
  };

  Gpu(const Driver& driver, int ordinal, std::string name, Options options);
  core::Status start();
  core::Status check(int code, const char* what) const;
  void lose(std::string cause) const;
  core::Status wait(Event event);
  core::Status clear(Queues::Queue& queue, void* memory, std::size_t bytes);
  core::Status run_now(const Task& task, const char* what);
  core::Status ask_open();
  int make_physical(std::size_t bytes, Physical* made);
  core::Status map_open(Physical physical, std::size_t bytes, Address* mapped);
  core::Status ask(Queues::Queue& queue, const Task& task, bool gathers, const char* what);
  core::Result<Queues::QueueRef> queue();  // the queue of the calling thread's session
  core::Result<Stream> own_stream();       // the stream of that queue
  core::Status next_slot() TT_REQUIRES(in_mu_);
  Out take_out();
  void give_out(const Out& out);
  core::Status copy_through(const Out& out, Queues::Queue& queue, char* to, Address from,
                            std::size_t bytes);
  // Queues a copy of the given part; returns a CUresult.
  using Part = std::function<int(std::size_t at, std::size_t bytes)>;
  core::Status copy_parts(Stream stream, Event event, std::size_t bytes,
                          const std::function<bool()>& go_on, const Part& ask);
  void watch();

  const Driver& driver_;
  const int ordinal_;
  const std::string name_;
  const Options options_;
  std::string model_;
  int device_ = 0;
  int capability_ = 0;
  int multiprocessors_ = 0;
  bool pools_ = false;  // the device supports stream-ordered memory
  std::size_t open_unit_ = 0;
  std::array<std::uint64_t, 2> uuid_{};
  std::uint64_t memory_ = 0;
  std::uint64_t free_at_start_ = 0;
  Context context_ = nullptr;
  mutable std::atomic<std::uint64_t> asked_{0};  // number of calls that queued work

  core::Mutex in_mu_;
  Slot slots_[kSlots] TT_GUARDED_BY(in_mu_);
  int slot_ TT_GUARDED_BY(in_mu_) = 0;
  std::size_t filled_ TT_GUARDED_BY(in_mu_) = 0;  // used bytes of the current slot
  // Users of the current slot; true: with their uploads' stream.
  std::vector<std::pair<Queues::QueueRef, bool>> in_use_ TT_GUARDED_BY(in_mu_);
  Stream ins_ = nullptr;  // only waits for the users of slots

  core::Mutex out_mu_;
  core::CondVar out_given_;
  std::vector<Out> outs_ TT_GUARDED_BY(out_mu_);  // the free ones

  core::Mutex event_mu_;  // guards event_ and marks_
  Event event_ TT_GUARDED_BY(event_mu_) = nullptr;
  Stream marks_ = nullptr;  // only waits for the queues

  Queues queues_;

  mutable std::atomic<bool> lost_{false};
  mutable core::Mutex lost_mu_;
  mutable core::Status lost_status_ TT_GUARDED_BY(lost_mu_);

  core::Mutex watch_mu_;
  core::CondVar watch_ended_;
  bool ending_ TT_GUARDED_BY(watch_mu_) = false;
  Event probe_ = nullptr;
  std::thread watcher_;
};

}  // namespace teletensor::backends::cuda
