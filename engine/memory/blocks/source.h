// Source: the interface through which a pool obtains fresh memory of one device.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>

#include "engine/memory/storage.h"

namespace teletensor::memory {

// Thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  // Returns zeroed memory with at least 64-byte alignment; nullptr if there is none left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) = 0;
  // Copies from and to host memory, in order with the other operations of the calling thread's
  // session (on_behalf.h). The host memory may be changed once the call returns.
  virtual core::Status copy_in(void* memory, const void* host, std::size_t bytes) {
    std::memcpy(memory, host, bytes);
    return {};
  }
  virtual core::Status copy_out(void* host, const void* memory, std::size_t bytes) {
    std::memcpy(host, memory, bytes);
    return {};
  }
  // Page-locks host memory, so that this device and others of its kind can copy from and to it
  // directly. Returns false if that is not possible.
  virtual bool lock(void* /*host*/, std::size_t /*bytes*/) { return false; }
  // Returns false if the memory stays locked.
  virtual bool unlock(void* /*host*/) { return false; }
  // Returns true if the device is lost for good. The memory that it locked stays locked and can be
  // used for other purposes.
  virtual bool lost() const { return false; }
  // Like copy_in() and copy_out(), for memory that lock() has locked, in a single transfer. Returns
  // CANCELLED if `go_on` returns false before the end. No transfer is in progress when the call
  // returns, unless the device is lost: then it may write to the host memory at any time.
  virtual core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                                      const std::function<bool()>& /*go_on*/) {
    return copy_in(memory, host, bytes);
  }
  virtual core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                                       const std::function<bool()>& /*go_on*/) {
    return copy_out(host, memory, bytes);
  }
  // Clears memory that session `from` last used, for session `to`.
  virtual void zero(void* memory, std::size_t bytes, OwnerId from, OwnerId to) = 0;

  // Memory that other processes of this machine may write to, through a descriptor. Its sizes are
  // multiples of open_unit(); 0: not supported.
  virtual std::size_t open_unit() const { return 0; }
  // Returns the descriptor of zeroed memory and sets `memory` to its address in this process; -1 if
  // there is no memory left.
  virtual int open(std::size_t bytes, void** memory);
  // Unmaps the memory in this process and closes the descriptor.
  virtual void withdraw(int descriptor, void* memory, std::size_t bytes);
};

// Maps pages of host memory, for all backends that use it. From 1 MiB on, they are aligned to 2 MiB
// and advised to be huge pages. Lengths are rounded up to whole pages, in both functions.
void* map_pages(std::size_t bytes);
void unmap_pages(void* memory, std::size_t bytes);

}  // namespace teletensor::memory
