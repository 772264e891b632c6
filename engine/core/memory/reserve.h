// The reserve is memory for what may not fail: the end of a request, of a stream or of a session,
// and its report. When operator new finds no memory, it uses the reserve, except inside
// with_memory(), where the allocation throws and its request fails. So a request without memory
// ends alone, and what ends it needs no memory of its own. Thread-safe.
#pragma once

#include <cstddef>

namespace teletensor::core {

// Allocates the reserve and installs the handler of operator new. Until it is called, every failed
// allocation throws. Called once, at the start of the process.
void keep_reserve();
// Allocates again what was used, as far as the system has memory. Called from time to time.
void refill_reserve();
// Number of bytes that are left.
std::size_t reserve_left();

// Permits or forbids this thread the use of the reserve while the object exists. The default of a
// thread is to use it. A noexcept function that may be called inside with_memory() permits it
// first.
class UsesReserve {
 public:
  explicit UsesReserve(bool uses = true);
  ~UsesReserve();
  UsesReserve(const UsesReserve&) = delete;
  UsesReserve& operator=(const UsesReserve&) = delete;

 private:
  const bool before_;
};

}  // namespace teletensor::core
