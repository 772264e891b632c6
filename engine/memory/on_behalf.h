// OnBehalf: records for which session the current thread works. Devices keep the operations of each
// session in order.
#pragma once

#include "engine/memory/storage.h"

namespace teletensor::memory {

struct Behalf {
  OwnerId owner = 0;    // 0: for no session
  bool beside = false;  // its uploads need not wait for the session's earlier operations
};
inline Behalf& current_behalf() {
  thread_local Behalf behalf;
  return behalf;
}
inline OwnerId on_behalf() { return current_behalf().owner; }
inline bool beside() { return current_behalf().beside; }

// While it exists, the current thread works for session `owner`. May be nested.
class OnBehalf {
 public:
  explicit OnBehalf(OwnerId owner, bool beside = false) : outer_(current_behalf()) {
    current_behalf() = {owner, beside};
  }
  ~OnBehalf() { current_behalf() = outer_; }
  OnBehalf(const OnBehalf&) = delete;
  OnBehalf& operator=(const OnBehalf&) = delete;

 private:
  const Behalf outer_;
};

}  // namespace teletensor::memory
