// Progress: what the daemon tells a client, many events in one message. Bytes as
// proto/teletensor/v1/session.proto defines them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"

namespace teletensor::wire {

// The contents that a Fetch asked for.
struct FetchedValue {
  std::uint64_t seq = 0;  // of the Fetch
  core::Status status;    // not ok: the value failed for the reason that command `root` had
  std::uint64_t root = 0;
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  std::string data;  // row-major; empty where not ok
  // Instead of data: the layout, for a Fetch that asked to `describe`.
  struct Description {
    std::string device;
    core::Dims strides;
    bool requires_grad = false;
  };
  std::optional<Description> description;
};

struct ErrorEvent {
  std::uint64_t root = 0;  // the command that failed
  core::Status status;
};

struct RaisedEvent {
  std::uint64_t seq = 0;  // of the Raise
  std::uint64_t root = 0;
  std::vector<std::uint64_t> rebinds;  // in-place commands that did not happen, ascending
};

struct Progress {
  std::uint64_t completed_upto = 0;
  std::uint64_t received_upto = 0;
  std::uint64_t credit_upto = 0;    // the client sends no command above it
  std::uint64_t credit_bytes = 0;   // bytes of frames that may be sent in the session's life
  std::uint64_t snapshot_upto = 0;  // what has been written down reaches so far; 0: nothing new
  std::uint64_t number = 0;         // from 1; one that is sent again has its old number
  std::vector<FetchedValue> fetched;
  std::vector<ErrorEvent> errors;
  std::vector<RaisedEvent> raised;
};

std::string encode_progress(const Progress& progress);
// Bounds-checked; fields that it does not know are skipped (a newer server's). A value's data is as
// long as its dtype and shape say.
core::Status decode_progress(std::string_view bytes, Progress& progress);

}  // namespace teletensor::wire
