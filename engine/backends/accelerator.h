// Accelerator: a backend with a processor of its own. What is asked of it runs later than the call:
// what one session asks (memory::OnBehalf) in its order, beside what others ask. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/backends/backend.h"
#include "engine/core/activity.h"
#include "engine/memory/on_behalf.h"

namespace teletensor::backends {

class Accelerator : public Backend {
 public:
  struct Facts {
    std::string model;   // "NVIDIA H100 80GB HBM3"
    int capability = 0;  // 90: 9.0
    int multiprocessors = 0;
    std::uint64_t memory = 0;  // bytes, those of others included
    std::array<std::uint64_t, 2> uuid{};
  };
  virtual Facts facts() const = 0;
  virtual core::Activity activity() const = 0;

  // Clears memory that session `from` has left, for session `to`: after what the one has asked.
  virtual void hand_over(void* memory, std::size_t bytes, memory::OwnerId from,
                         memory::OwnerId to) = 0;
  // Around what the calling thread's session asks of memory that others use as well: after all that
  // they have asked, and before all that they ask later.
  virtual core::Status begin_shared() = 0;
  virtual core::Status end_shared() = 0;
  // Uploads beside the session's own work (memory::beside) begin after what it has asked so far.
  virtual core::Status begin_beside(memory::OwnerId owner) = 0;
  // The strand runs a program from now on, or ends doing so: what is asked meanwhile may be handed
  // over together. An error shows where the device is used next.
  virtual void gather(memory::OwnerId owner, bool on) = 0;
  // As copy(); the bytes are there when it returns.
  virtual core::Status copy_now(void* to, const void* from, std::size_t bytes) = 0;
  // Memory that other processes of this machine may map: memory::Source says how.
  virtual std::size_t open_unit() const = 0;
  virtual int open_memory(std::size_t bytes, void** memory) = 0;
  virtual void withdraw(int descriptor, void* memory, std::size_t bytes) = 0;
  // Memory of the host that copies reach without a way between: memory::Source says how.
  virtual bool lock(void* host, std::size_t bytes) = 0;
  virtual bool unlock(void* host) = 0;
  virtual core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                                      const std::function<bool()>& go_on) = 0;
  virtual core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                                       const std::function<bool()>& go_on) = 0;
  // The session asks no more.
  virtual void end(memory::OwnerId owner) = 0;
  // Of the session, since the last call: time of the device, and time that the session's thread has
  // waited because too much of it was in flight.
  struct Time {
    std::uint64_t device_ns = 0, waited_ns = 0;
  };
  virtual Time take_time(memory::OwnerId owner) = 0;
};

}  // namespace teletensor::backends
