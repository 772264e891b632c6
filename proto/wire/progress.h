// Progress: a message with which the daemon reports many events to a client.
// proto/teletensor/v1/session.proto defines the bytes.
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

// The contents that a Fetch requested.
struct FetchedValue {
  std::uint64_t seq = 0;  // of the Fetch
  core::Status status;    // if not ok: the value failed because of the error of command `root`
  std::uint64_t root = 0;
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  std::string data;  // row-major; empty if the status is not ok
  // The layout in place of the data, for a Fetch with `describe`.
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

// A rank without which an elastic group of the session continues.
struct LostRankEvent {
  std::uint64_t group = 0;  // the session's number of the group
  std::uint32_t rank = 0;
  std::string why;
};

struct Progress {
  std::uint64_t completed_upto = 0;
  std::uint64_t received_upto = 0;
  std::uint64_t credit_upto = 0;    // the client may send commands up to this number
  std::uint64_t credit_bytes = 0;   // total bytes of frames that may be sent during the session
  std::uint64_t snapshot_upto = 0;  // last command in the stored snapshot; 0: unchanged
  std::uint64_t number = 0;         // counted from 1; a message that is sent again keeps its number
  std::vector<FetchedValue> fetched;
  std::vector<ErrorEvent> errors;
  std::vector<RaisedEvent> raised;
  std::vector<LostRankEvent> lost_ranks;
};

std::string encode_progress(const Progress& progress);
// Checks all bounds, and skips unknown fields, which a newer server may send. The length of a
// value's data must match its dtype and shape.
core::Status decode_progress(std::string_view bytes, Progress& progress);

}  // namespace teletensor::wire
