// WindowRun: runs the front window of a backlog as a plan (window.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/runtime/execute/executor.h"
#include "engine/runtime/programs/window.h"
#include "engine/runtime/queue/backlog.h"

namespace teletensor::runtime {

// Used by the session task.
class WindowRun {
 public:
  // Number of small instructions between two reads of the clock.
  static constexpr int kEntriesPerClock = 8;

  // The session whose window runs.
  class Session {
   public:
    virtual ~Session() = default;
    // Returns true if the entry runs as it is: it is not refused, was not interrupted, and does not
    // read the result of an open collective.
    virtual bool is_plain(const Entry& entry) = 0;
    // Runs an entry by itself. Returns false if it did not run and must be tried again.
    virtual bool run_alone(Entry& entry) = 0;
  };

  WindowRun(const ops::Catalog& catalog, Devices& devices, Executor& executor, Session& session)
      : executor_(executor), session_(session), plans_(catalog, devices) {}

  // Returns true if the instruction takes a few microseconds. Judged by the size of what is read,
  // not of what is stored: an expanded scalar is much work.
  static bool is_small(const program::Instruction& instruction);

  // Plans the front window, or its known part. Returns false if it must run entry by entry. A
  // partial window is planned only if its instructions are large, so that planning costs little in
  // comparison. `interner_ends` is QueueWriter::interner_ends(). Precondition: the backlog is not
  // empty.
  bool begin(Backlog& backlog, std::uint64_t interner_ends);
  // Returns true if a plan runs. Its entries must then stay in the backlog.
  bool active() const { return plan_ != nullptr; }
  // The first entry of the next unit. Precondition: active().
  Entry& next() const { return *window_[plan_->units[unit_].steps[0]]; }
  // Runs the next unit. Returns false if it has not ended and must be continued. `small` is set to
  // whether it was little work, and `entries` to the number of its entries. Precondition: active().
  bool run(bool* small, std::size_t* entries);
  // Forgets the plan that runs.
  void stop() { plan_ = nullptr; }
  PlanStats& stats() { return plans_.stats(); }
  const PlanStats& stats() const { return plans_.stats(); }

 private:
  void plan(const Backlog& backlog, std::size_t size, std::uint64_t interner_ends);

  Executor& executor_;
  Session& session_;
  WindowPlans plans_;
  std::uint64_t interner_ends_ = 0;  // the number when a window was planned last
  std::vector<Entry*> window_;
  std::vector<program::Instruction*> instructions_;  // of window_; null for other entries
  WindowPlans::Plan* plan_ = nullptr;                // the running plan; null: none
  std::size_t unit_ = 0;                             // index of the plan's next unit
  bool apart_ = false;                               // the unit runs instruction by instruction
  std::vector<program::Instruction*> loop_;          // of the unit
};

}  // namespace teletensor::runtime
