// Accelerator: a backend with a processor of its own. Work is queued and runs after the call
// returns. The work of one session (memory::OnBehalf) runs in its order, concurrently with the work
// of other sessions. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/backends/backend.h"
#include "engine/memory/on_behalf.h"
#include "engine/program/activity.h"

namespace teletensor::backends {

class Accelerator : public Backend {
 public:
  struct Facts {
    std::string model;   // for example "NVIDIA H100 80GB HBM3"
    int capability = 0;  // 90 means compute capability 9.0
    int multiprocessors = 0;
    std::uint64_t memory = 0;  // total in bytes, including memory that other processes use
    std::array<std::uint64_t, 2> uuid{};
  };
  virtual Facts facts() const = 0;
  virtual program::Activity activity() const = 0;

  // Clears memory that session `from` has released, for use by session `to`. The clearing runs
  // after all work that `from` has queued.
  virtual void transfer_ownership(void* memory, std::size_t bytes, memory::OwnerId from,
                                  memory::OwnerId to) = 0;
  // Enclose the calling thread's work on memory that other sessions use as well: it runs after
  // everything that all sessions have queued before, and before everything that they queue later.
  virtual core::Status begin_shared() = 0;
  virtual core::Status end_shared() = 0;
  // Lets uploads that run beside the session's own work (memory::beside) start after the work that
  // the session has queued so far.
  virtual core::Status begin_beside(memory::OwnerId owner) = 0;
  // Called when the session task starts or ends a program. Work that is queued in between may be
  // sent to the device in groups. An error is reported by the next use of the device.
  virtual void gather(memory::OwnerId owner, bool on) = 0;
  // Like copy(), but the copy is complete when it returns.
  virtual core::Status copy_now(void* to, const void* from, std::size_t bytes) = 0;
  // Memory that other processes of this machine can map; see memory::Source.
  virtual std::size_t open_unit() const = 0;
  virtual int open_memory(std::size_t bytes, void** memory) = 0;
  virtual void withdraw(int descriptor, void* memory, std::size_t bytes) = 0;
  // Page-locked host memory, which the device can copy directly; see memory::Source.
  virtual bool lock(void* host, std::size_t bytes) = 0;
  virtual bool unlock(void* host) = 0;
  virtual core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                                      const std::function<bool()>& go_on) = 0;
  virtual core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                                       const std::function<bool()>& go_on) = 0;
  // Called when the session queues no more work.
  virtual void end(memory::OwnerId owner) = 0;
  // Times of one session since the last call: time that the device worked for it, and time that the
  // session's thread waited because too much of its work was in flight.
  struct Time {
    std::uint64_t device_ns = 0, waited_ns = 0;
  };
  virtual Time take_time(memory::OwnerId owner) = 0;
};

}  // namespace teletensor::backends
