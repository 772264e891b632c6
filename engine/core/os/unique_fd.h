// UniqueFd owns a file descriptor of the operating system, of a file, a socket or an event.
#pragma once

#include <utility>

namespace teletensor::core {

// Closes the descriptor when it is destroyed, and ignores an error of that. A new object that takes
// another one's descriptor leaves that one empty; an assignment exchanges the two. The number that
// get() returns may be used by any thread while the object keeps the descriptor; the object itself
// is not thread-safe.
class UniqueFd {
 public:
  // Takes ownership of `descriptor`. A negative one, which a failed system call returns, makes an
  // empty object.
  explicit UniqueFd(int descriptor = -1) : descriptor_(descriptor) {}
  UniqueFd(UniqueFd&& other) noexcept : descriptor_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~UniqueFd();

  // Negative if the object is empty.
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  // Passes the descriptor to the caller, who then has to close it.
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

}  // namespace teletensor::core
