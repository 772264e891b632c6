// Back: the back end of a session, which computes. The frame consumer (one thread at a time)
// appends entries whose operands are values. The session task, on a lane, takes the entries in
// order, plans them, and runs them.
//
// A session runs at most kPlanEntries units or for kPlanTime, whichever ends first, before other
// sessions can get the lane. A unit is one instruction or a loop of several (window.h). The plans
// of windows (backlog.h) are reused. While the queue is short, entries run immediately, one at a
// time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "engine/runtime/back/back_events.h"
#include "engine/runtime/back/entry_failures.h"
#include "engine/runtime/back/open_collectives.h"
#include "engine/runtime/back/queue_image.h"
#include "engine/runtime/back/rank_waits.h"
#include "engine/runtime/back/task_state.h"
#include "engine/runtime/back/tier_member.h"
#include "engine/runtime/back/value_outputs.h"
#include "engine/runtime/back/window_run.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/groups/session_groups.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/lock_wait.h"
#include "engine/runtime/queue/backlog.h"
#include "engine/runtime/queue/chunk_pool.h"
#include "engine/runtime/queue/queue_load.h"
#include "engine/runtime/queue/queue_writer.h"

namespace teletensor::runtime {

class Back : public Task, private QueueWriter::Session, private WindowRun::Session {
 public:
  static constexpr std::size_t kPlanEntries = 64;
  static constexpr std::size_t kMaxHere = 8;  // maximum number of entries that publish() runs
  static constexpr std::chrono::microseconds kPlanTime{1000};
  static constexpr std::uint64_t kSlow = 50'000'000;  // in nanoseconds

  Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
       std::uint64_t quota, BackEvents* events, Publications* publications = nullptr,
       Tiers* tiers = nullptr, Groups* groups = nullptr);
  // Calls stop().
  ~Back() override;

  // ---- Functions of the frame consumer.

  QueueWriter& queue() { return queue_; }
  const QueueWriter& queue() const { return queue_; }
  // Publishes all entries of the commands up to `seq`, which must have been appended. With `here`,
  // a few small entries run on this thread at once if a lane is idle, because waking the lane would
  // cost more.
  void publish(std::uint64_t seq, bool here = false);
  // Returns false if there is room (or nothing left to run). Returns true if on_continue() will be
  // called once; a drained queue counts as having room. Precondition: everything is published.
  bool wait_for_room() { return state_.wait_for_room(); }
  bool wait_until_drained() { return state_.wait_until_drained(); }
  // Returns the seqs of the in-place commands that failed because of this root, in ascending order,
  // and forgets the root. Precondition: the queue is drained.
  std::vector<std::uint64_t> take_failed_rebinds(std::uint64_t root);
  const Failures& failures() const { return executor_.failures(); }
  // Continues at the state of another back end, which had consumed the commands up to `consumed`
  // and completed those up to `completed`. Must be called before any other function.
  void begin_at(std::uint64_t consumed, std::uint64_t completed, std::uint64_t cancelled_below,
                Failures::Open failed);

  // ---- Functions for any thread.

  // Makes queued instructions of commands up to `seq` fail with CANCELLED, and asks running ones to
  // stop.
  void cancel_upto(std::uint64_t seq);
  std::uint64_t cancelled_below() const { return executor_.interrupts().below(); }
  std::uint64_t completed_upto() const override { return state_.completed_upto(); }
  const TaskState& state() const { return state_; }
  const QueueLoad& load() const { return load_; }
  SessionGroups& groups() { return session_groups_; }
  // Returns the entries that have not run because they wait for other ranks (QueueImage::entries).
  // Precondition: state().is_quiet(), and the session's groups do not change any more.
  core::Result<std::vector<program::Image::Entry>> entries(const QueueImage::IndexOf& index_of,
                                                           QueueImage::NotRun& parts) const;
  // Appends these entries, which run after begin_restored(). INVALID_ARGUMENT if the image is
  // inconsistent. Must be called after begin_at(), before any other function.
  core::Status restore_entries(const std::vector<program::Image::Entry>& entries,
                               const std::vector<program::ValueRef>& values);
  void begin_restored();
  const Executor& executor() const { return executor_; }
  Profile& profile() { return executor_.profile(); }
  const PlanStats& plan_stats() const { return window_.stats(); }
  // What moves the session's storages.
  TierMember& tiers() { return tiers_; }
  const TierMember& tiers() const { return tiers_; }

  // Stops after the running instruction, then drops the queue. Nothing may be appended during or
  // after the call. Must not be called from the events.
  void stop();

  bool run_plan() override;

 private:
  using Next = ProgramRun::Next;
  class CallOf;
  class Charge;

  // QueueWriter::Session
  void publish_full(Chunk* chunk) override;
  void charge_ns(std::uint64_t ns) override { charge(ns); }
  // WindowRun::Session
  bool is_plain(const Entry& entry) override;
  bool run_alone(Entry& entry) override;

  TaskState::Next run_plans(bool* starved);
  bool run_entries();
  void look_ahead();
  bool run_unit();
  bool stop_before_next(bool starved);
  // Removes the front entry, which has run.
  void pop_front();
  // The same without counting it.
  void drop_front();
  bool run_repetition(Entry& entry);
  // Returns false if the entry did not run and must be tried again (Executor::stopped).
  bool run_entry(Entry& entry);
  bool run_instruction(Entry& entry);
  void run_group(Entry& entry);
  bool run_call(Entry& entry, core::Clock::time_point until);
  bool cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why);
  void report_progress();

  Lanes& lanes_;
  const memory::OwnerId owner_;
  BackEvents& events_;
  LockWait lock_wait_;
  Executor executor_;
  SessionGroups session_groups_;
  EntryFailures failures_;
  QueueLoad load_;
  TaskState state_;
  RankWaits rank_waits_;
  OpenCollectives collectives_;
  ChunkPool chunks_;
  QueueWriter queue_;  // used by the frame consumer only

  // Used by the session task only.
  Backlog backlog_;
  TierMember tiers_;
  ValueOutputs outputs_;
  WindowRun window_;
  core::Clock::time_point reported_at_{};
};

}  // namespace teletensor::runtime
