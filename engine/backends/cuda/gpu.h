// Gpu: one device behind the driver: its context, its queues, its memory.
//
// What is asked of it runs later than the call, what one session asks (memory::on_behalf) in its
// order; see queues.h for what several ask. A device that answers with an error that ends its
// context, or does not answer at all, is lost for good: every later call says so, with the cause.
// Thread-safe.
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

#include "engine/backends/cuda/driver.h"
#include "engine/backends/cuda/kernel_source.h"
#include "engine/backends/cuda/queues.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

using Log = std::function<void(bool bad, const std::string& line)>;

class Gpu {
 public:
  struct Options {
    double patience = 60;  // seconds without progress after which it is lost
    Log log;
  };
  // Device `ordinal` of the driver, named `name` ("cuda:0") to people. `driver` outlives it.
  static core::Result<std::unique_ptr<Gpu>> open(const Driver& driver, int ordinal,
                                                 std::string name, Options options);
  // Waits for what has been asked, but not of a lost device.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const std::string& name() const { return name_; }
  const std::string& model() const { return model_; }  // "NVIDIA H100 80GB HBM3"
  int capability() const { return capability_; }       // 90: 9.0
  int multiprocessors() const { return multiprocessors_; }
  std::uint64_t memory() const { return memory_; }  // bytes, in use or not
  std::uint64_t free_at_start() const { return free_at_start_; }
  std::array<std::uint64_t, 2> uuid() const { return uuid_; }

  // Not ok once it is lost.
  core::Status health() const;

  // Zeroed, for whoever; nullptr when it has none left or is lost.
  void* allocate(std::size_t bytes);
  void free(void* memory);  // once everything that anybody has asked has run
  core::Status zero(void* memory, std::size_t bytes);
  // Zeroed for what session `to` asks from now on, after what session `from` has asked.
  core::Status hand_over(void* memory, std::size_t bytes, memory::OwnerId from, memory::OwnerId to);
  core::Status copy(void* to, const void* from, std::size_t bytes);
  core::Status copy_now(void* to, const void* from, std::size_t bytes);  // waits
  core::Status copy_from(Gpu& other, void* to, const void* from, std::size_t bytes);
  // The host's memory may change as soon as it returns.
  core::Status copy_in(void* to, const void* host, std::size_t bytes);
  // After everything asked before; the bytes are there when it returns.
  core::Status copy_out(void* host, const void* from, std::size_t bytes);

  // Page-locks memory of the host, for all devices. False: the driver does not.
  bool lock(void* host, std::size_t bytes);
  bool unlock(void* host);  // false: it stays so
  // From and to such memory, without a slot between, while `go_on` says so (else CANCELLED).
  // Nothing is under way any more on return, unless it is lost.
  core::Status copy_in_locked(void* to, const void* host, std::size_t bytes,
                              const std::function<bool()>& go_on);
  core::Status copy_out_locked(void* host, const void* from, std::size_t bytes,
                               const std::function<bool()>& go_on);

  // Memory that other processes may map (gpu_open.cc; memory::Source says how).
  std::size_t open_unit() const { return open_unit_; }
  int open_memory(std::size_t bytes, void** memory);
  void withdraw(int descriptor, void* memory, std::size_t bytes);

  core::Status load(const std::string& code, Module* module);
  core::Status function(Module module, const std::string& name, unsigned shared_bytes,
                        Function* function);
  void unload(Module module);  // once nothing asked before can use it
  // `parameters`: the kernel's one parameter, a structure.
  // `known`: it has been started before, in blocks as large and with as much shared memory.
  core::Status launch(Function function, const LaunchShape& shape,
                      std::span<const std::byte> parameters, bool known = false);
  // The same of a library's call; `*code`: what it answers.
  core::Status launch(Library& library, const LibraryCall& call, bool known, int* code);
  // What the session asks is gathered (queues.h).
  core::Status gather(memory::OwnerId owner, bool on);
  // The driver's calls of this thread are this device's from now on.
  core::Status enter() const;
  core::Status synchronize();  // everything that anybody has asked

  // What the calling thread's session asks comes after what all have asked; and the other way
  // round.
  core::Status follow_all();
  core::Status all_follow();
  // Until end_beside() this thread's uploads run beside what their session has asked since; what it
  // asks afterwards waits for them.
  core::Status begin_beside(memory::OwnerId owner);
  void end(memory::OwnerId owner);  // it asks no more
  Queues::Time take_time(memory::OwnerId owner);
  const Queues& queues() const { return queues_; }

 private:
  // Page-locked memory between the host's and the device's.
  static constexpr std::size_t kSlot = std::size_t{1} << 20;
  static constexpr int kSlots = 8;
  static constexpr int kOuts = 4;
  static constexpr std::size_t kPart = std::size_t{32} << 20;   // of a copy without a slot
  static constexpr std::size_t kSmall = std::size_t{64} << 10;  // goes in the session's own stream
  struct Slot {
    char* data = nullptr;
    Event filled = nullptr;  // recorded when all copies from it have been asked
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
  core::Result<Queues::QueueRef> queue();  // of the calling thread's session
  core::Result<Stream> own_stream();       // its stream
  core::Status next_slot() TT_REQUIRES(in_mu_);
  Out take_out();
  void give_out(const Out& out);
  core::Status copy_through(const Out& out, Queues::Queue& queue, char* to, Address from,
                            std::size_t bytes);
  // Asks for a copy of that part; a CUresult.
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
  bool pools_ = false;  // has stream-ordered memory
  std::size_t open_unit_ = 0;
  std::array<std::uint64_t, 2> uuid_{};
  std::uint64_t memory_ = 0;
  std::uint64_t free_at_start_ = 0;
  Context context_ = nullptr;
  mutable std::atomic<std::uint64_t> asked_{0};  // calls that the stream runs

  core::Mutex in_mu_;
  Slot slots_[kSlots] TT_GUARDED_BY(in_mu_);
  int slot_ TT_GUARDED_BY(in_mu_) = 0;
  std::size_t filled_ TT_GUARDED_BY(in_mu_) = 0;  // bytes of the current slot
  std::vector<std::pair<Queues::QueueRef, bool>> in_use_ TT_GUARDED_BY(in_mu_);  // of it; beside
  Stream ins_ = nullptr;  // runs nothing but waits for who used a slot

  core::Mutex out_mu_;
  core::CondVar out_given_;
  std::vector<Out> outs_ TT_GUARDED_BY(out_mu_);  // free ones

  core::Mutex event_mu_;  // of what follows
  Event event_ TT_GUARDED_BY(event_mu_) = nullptr;
  Stream marks_ = nullptr;  // runs nothing but waits for the queues

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
