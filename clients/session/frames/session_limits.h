// SessionLimits: what a client knows about its session when the session starts. The client fills it
// in from HelloReply; it does not change during the session.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/program/amounts.h"
#include "proto/wire/frame.h"

namespace teletensor::client {

struct SessionLimits {
  // The initial credits: the last command, and the total number of bytes of frames, that the client
  // may send. Progress messages raise both.
  std::uint64_t credit_upto = 65536;
  std::uint64_t credit_bytes = 64ull << 20;
  wire::FrameLimits frame;
  std::uint32_t protocol = wire::kProtocol;  // The number that HelloReply has chosen.
  // Minimum interval between two frames that no thread waits for. A frame of a loop of small
  // operators has 200 commands with it and 35 without it, and each frame wakes three threads.
  std::chrono::microseconds pace{150};
  std::uint64_t quota = 0;  // Memory quota on each device, in bytes. 0 if unknown.
  program::Amounts most;    // Limits of handles, programs and kept names. 0 if unknown.
  // Whether the session outlives its stream. Frames are then kept until they have run.
  bool keeps = false;
  // Maximum size of the frames that are retained after they have run since the daemon's last
  // snapshot, in bytes. They are replayed to a daemon that restores the snapshot. Used from
  // retain() on. 0 means none.
  std::size_t retained_bytes = 0;
  // Whether the session has the tensors of the device meta, which have no data. It has no daemon:
  // its commands count as having run when they are issued, and its values cannot be read.
  bool meta = false;
};

}  // namespace teletensor::client
