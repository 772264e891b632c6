// FrameIntake: decodes the frames of one lease.
#pragma once

#include <string_view>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "proto/wire/frame.h"

namespace teletensor::server {

class FrameIntake {
 public:
  explicit FrameIntake(wire::FrameReader reader) : reader_(std::move(reader)) {}

  // Any thread: two streams may receive frames at the same time while one replaces the other.
  core::Status read(std::string_view bytes, wire::Frame& frame) {
    core::MutexLock lock(mutex_);
    return reader_.read(bytes, frame, &known_);
  }
  // Whether the client is thin.
  bool thin() const { return reader_.thin(); }

 private:
  const wire::FrameReader reader_;
  core::Mutex mutex_;
  wire::KnownApplies known_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
