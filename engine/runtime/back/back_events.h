// BackEvents: what the back end of a session reports to the session.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "engine/core/status.h"
#include "engine/program/command.h"
#include "engine/program/value.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

// The result of a Fetch. If it did not fail, `contents` are row-major.
struct FetchResult {
  std::uint64_t seq = 0;
  bool bulk = false;
  core::Status status;
  std::uint64_t root = 0;  // seq of the command whose failure `status` reports
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  core::Device device;
  RowMajor contents;
};

inline constexpr program::OpId kNoOp = 0xffff;

// Called by the session task, in order, without locks held. The functions must not block;
// on_failed() and on_continue() may use the back end.
class BackEvents {
 public:
  virtual ~BackEvents() = default;
  virtual void on_completed(std::uint64_t seq) = 0;  // coalesced; may also be called from publish()
  virtual void on_fetched(FetchResult result) = 0;
  virtual void on_failed(const program::Failure& root) = 0;
  // Reports an instruction (kNoOp: a fetch, a constant or an upload) that took kSlow or more.
  virtual void on_slow(std::uint64_t, program::OpId, std::uint64_t) {}  // seq, op, ns
  // Adds the storages of the session's kept names, for the spiller, while nothing runs. Returns
  // false if they cannot be determined now.
  virtual bool on_moving(std::unordered_set<const void*>&) { return true; }
  // Reports that the condition of wait_for_room() or wait_until_drained() holds. Not called by the
  // session task.
  virtual void on_continue() = 0;
};

}  // namespace teletensor::runtime
