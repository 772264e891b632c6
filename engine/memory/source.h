// Source: where a pool gets fresh memory of one device.
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
  // At least 64-byte aligned, contents zero (nobody's bytes). nullptr when there is none left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) = 0;
  // From and to the host's memory, in the order of what the calling thread's session asks
  // (on_behalf.h). The host's is free to change on return.
  virtual core::Status copy_in(void* memory, const void* host, std::size_t bytes) {
    std::memcpy(memory, host, bytes);
    return {};
  }
  virtual core::Status copy_out(void* host, const void* memory, std::size_t bytes) {
    std::memcpy(host, memory, bytes);
    return {};
  }
  // Page-locks memory of the host, so that this device and others of its kind copy from and to it
  // by themselves. False: that is not to be had.
  virtual bool lock(void* /*host*/, std::size_t /*bytes*/) { return false; }
  // False: it stays locked.
  virtual bool unlock(void* /*host*/) { return false; }
  // For good: what it has locked stays so, as memory for anybody else.
  virtual bool lost() const { return false; }
  // As copy_in and copy_out, from and to memory that lock() has locked: all at once, while `go_on`
  // says so (else CANCELLED). Nothing is under way any more on return, unless the device is lost:
  // then it may write to the host's memory at any time.
  virtual core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                                      const std::function<bool()>& /*go_on*/) {
    return copy_in(memory, host, bytes);
  }
  virtual core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                                       const std::function<bool()>& /*go_on*/) {
    return copy_out(host, memory, bytes);
  }
  // What session `from` left, for session `to`.
  virtual void zero(void* memory, std::size_t bytes, OwnerId from, OwnerId to) = 0;

  // Memory that other processes of this machine may write to, by descriptor: its sizes are
  // multiples of the unit; 0: there is none.
  virtual std::size_t open_unit() const { return 0; }
  // Zeroed. The descriptor, and where it is mapped here; -1 when there is none left.
  virtual int open(std::size_t bytes, void** memory);
  // Ends it here, and closes the descriptor.
  virtual void withdraw(int descriptor, void* memory, std::size_t bytes);
};

// Pages of the host: from 1 MiB on aligned to 2 MiB and advised to be huge pages. Lengths are
// multiples of the page size, as allocate() got them. Used by every backend with host memory.
void* map_pages(std::size_t bytes);
void unmap_pages(void* memory, std::size_t bytes);

}  // namespace teletensor::memory
