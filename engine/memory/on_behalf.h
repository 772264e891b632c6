// For which session does this thread work? Devices keep what one session asks of them in its order.
#pragma once

#include "engine/memory/storage.h"

namespace teletensor::memory {

struct Behalf {
  OwnerId owner = 0;    // nobody's
  bool beside = false;  // what it uploads need not wait for what the session has asked
};
inline Behalf& current_behalf() {
  thread_local Behalf behalf;
  return behalf;
}
inline OwnerId on_behalf() { return current_behalf().owner; }
inline bool beside() { return current_behalf().beside; }

// While it lives, this thread works for session `owner`. Nests.
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
