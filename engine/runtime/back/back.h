// Back: the back end of a session, which computes. The frame consumer (one thread at a time)
// appends entries whose operands are values. The session task, on a lane, takes the entries in
// order, plans them, and runs them.
//
// A session runs at most kPlanEntries units or for kPlanTime, whichever ends first, before other
// sessions can get the lane. A unit is one instruction or a loop of several (window.h). The plans
// of windows (backlog.h) are reused. While the queue is short, entries run immediately, one at a
// time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/runtime/back/backlog.h"
#include "engine/runtime/back/open_collectives.h"
#include "engine/runtime/back/session_groups.h"
#include "engine/runtime/back/window_run.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/lock_wait.h"
#include "engine/runtime/queue/chunk_pool.h"
#include "engine/runtime/queue/queue_load.h"
#include "engine/runtime/queue/queue_writer.h"
#include "engine/runtime/tiers.h"

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

class Back : public Task,
             private Tiers::Member,
             private Groups::Waiter,
             private OpenCollectives::Session,
             private QueueWriter::Session,
             private WindowRun::Session {
 public:
  // The maximum number of bytes of a Fetch that is not `bulk`.
  static constexpr std::size_t kMaxFetched = std::size_t{1} << 20;
  static constexpr std::size_t kPlanEntries = 64;
  static constexpr std::size_t kMaxHere = 8;  // maximum number of entries that publish() runs
  static constexpr std::chrono::microseconds kPlanTime{1000};
  static constexpr std::uint64_t kSlow = 50'000'000;  // in nanoseconds

  Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
       std::uint64_t quota, BackEvents* events, Publications* publications = nullptr,
       Tiers* tiers = nullptr, Groups* groups = nullptr);
  // Calls stop().
  ~Back() override;

  // Enables moving the session's storages to the disk, within the disk limit of `user`. The events'
  // on_moving() may be called from now on.
  void join_tiers(const std::string& user);

  // ---- Functions of the frame consumer.

  QueueWriter& queue() { return queue_; }
  const QueueWriter& queue() const { return queue_; }
  // Publishes all entries of the commands up to `seq`, which must have been appended. With `here`,
  // a few small entries run on this thread at once if a lane is idle, because waking the lane would
  // cost more.
  void publish(std::uint64_t seq, bool here = false);
  // Returns false if there is room (or nothing left to run). Returns true if on_continue() will be
  // called once; a drained queue counts as having room. Precondition: everything is published.
  bool wait_for_room();
  bool wait_until_drained();
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
  std::uint64_t completed_upto() const override {
    return completed_.load(std::memory_order_acquire);
  }
  const QueueLoad& load() const { return load_; }
  SessionGroups& groups() { return session_groups_; }
  // Returns true if no published entry runs now; some may wait for other ranks. Any thread.
  bool is_quiet() const;
  // Returns true if all published entries have ended. Any thread.
  bool is_drained() const;
  // Returns true if a frame consumer waits, and on_continue() was not called. Any thread.
  bool has_waiter() const;
  // The parts of an image that exist only there: the values are alive until the image is complete.
  struct NotRun {
    std::vector<program::ValueRef> values;
    std::vector<std::unique_ptr<ProgramRun::Left>> calls;
  };
  // Returns the index of a value in an image.
  using IndexOf = std::function<program::Image::Index(const program::Value&)>;
  // Returns the entries that have not run because they wait for other ranks. Without `index_of`, it
  // only checks whether an image can contain them, and returns UNIMPLEMENTED if not. Precondition:
  // is_quiet(), and the session's groups do not change any more.
  core::Result<std::vector<program::Image::Entry>> entries(const IndexOf& index_of,
                                                           NotRun& parts) const;
  // Appends these entries, which run after begin_restored(). INVALID_ARGUMENT if the image is
  // inconsistent. Must be called after begin_at(), before any other function.
  core::Status restore_entries(const std::vector<program::Image::Entry>& entries,
                               const std::vector<program::ValueRef>& values);
  void begin_restored();
  const Executor& executor() const { return executor_; }
  Profile& profile() { return executor_.profile(); }
  const PlanStats& plan_stats() const { return window_.stats(); }

  // Allocates a pinned storage on a device for a thread that does not run the session task. The
  // result is null if there is no room. allocate() calls `done` at once if there is room or nothing
  // can be moved; otherwise from another thread, after other storages were moved away.
  // allocate_now() waits.
  void allocate(std::size_t device, std::size_t bytes, std::uint64_t seq,
                std::function<void(core::Ref<memory::Storage>)> done);
  core::Ref<memory::Storage> allocate_now(std::size_t device, std::size_t bytes, std::uint64_t seq);
  const Tiers* tiers() const { return tiers_; }

  // Stops after the running instruction, then drops the queue. Nothing may be appended during or
  // after the call. Must not be called from the events.
  void stop();

  bool run_plan() override;

 private:
  enum class Waiting : std::uint8_t { kNo, kRoom, kDrained };

  void add_published(Chunk* chunk) TT_REQUIRES(mu_);
  // QueueWriter::Session
  void publish_full(Chunk* chunk) override;
  void charge_ns(std::uint64_t ns) override { charge(ns); }
  bool run_entries();
  void look_ahead();
  bool run_unit();
  // WindowRun::Session
  bool is_plain(const Entry& entry) override;
  bool run_alone(Entry& entry) override;
  bool yield_to_spiller(bool starved);
  // The reason that other ranks are told.
  static constexpr char kSessionEnds[] = "has ended its session";
  using Next = ProgramRun::Next;
  class CallOf;
  bool stop_before_next(bool starved, bool yields);
  // OpenCollectives::Session
  FailureRef interrupted(std::uint64_t seq, bool* root) override;
  // Terminates the process if the error cannot be reported.
  void record(const program::Instruction& instruction, const FailureRef& failure,
              bool root) noexcept override;
  void opened(Groups::Member& member, std::uint64_t seq) override;
  struct SavedEntry;
  void restore_entry(const program::Image::Entry& saved, program::Program& read,
                     const std::vector<program::ValueRef>& values);
  std::vector<SavedEntry> left(NotRun& parts) const;
  bool request_notification(CollectiveCalls::Open& open);
  bool wait_for(CollectiveCalls::Open& open, std::uint64_t seq);
  // Ends the open collectives of commands up to `upto` and their groups.
  void interrupt_groups(std::uint64_t upto);
  // Groups::Waiter
  void met() override;
  void add_prefetches(Tiers::Need& need) const;
  // Tiers::Member
  bool freeze() override;
  void thaw() override;
  bool has_work() const override;
  void ask_to_yield(bool yes) override { yield_.store(yes, std::memory_order_relaxed); }
  void go_on(bool room, std::vector<std::uint64_t> granted) override;
  memory::Pool& pool(std::size_t device) override { return executor_.pool(device); }
  std::size_t device_of(const memory::Storage& storage) const override {
    return static_cast<std::size_t>(executor_.devices().find(storage.device()));
  }
  bool kept(std::unordered_set<const void*>& storages) override {
    return events_->on_moving(storages);
  }
  // Removes the front entry. `ran` is 0 if its run was counted already.
  void pop_front(std::size_t ran = 1);
  // Returns false if the entry did not run and must be tried again (Executor::stopped).
  bool run_entry(Entry& entry);
  bool run_fetch(Entry& entry);
  bool run_publish(Entry& entry);
  void run_group(Entry& entry);
  // The error with which an entry must be refused: its program has ended, or it was interrupted.
  core::Status refusal(const Entry& entry) const;
  // Reports the failure of an entry to the client, but not of a value.
  void record_failure(const Entry& entry, core::Status status);
  bool run_call(Entry& entry, core::Clock::time_point until);
  bool cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why);
  void report_progress() TT_EXCLUDES(mu_);
  bool is_quick(Chunk& chunk) const;

  Lanes& lanes_;
  const memory::OwnerId owner_;
  BackEvents* const events_;
  Publications* const publications_;
  Tiers* const tiers_;              // null if nothing is moved
  std::atomic<bool> yield_{false};  // the spiller wants to use the session task
  bool joined_ = false;
  LockWait lock_wait_;
  Executor executor_;
  SessionGroups session_groups_;
  OpenCollectives collectives_;

  std::atomic<bool> waits_to_begin_{false};  // begin_restored() was not called yet

  QueueLoad load_;
  ChunkPool chunks_;
  QueueWriter queue_;  // used by the frame consumer only

  // Used by the session task only.
  Backlog backlog_;
  WindowRun window_;
  FailureRef refused_;  // the failure of the last refused entry
  struct Cancelled {
    FailureRef failure;       // of cancelled entries
    std::uint64_t below = 0;  // the cancel_upto() to which it belongs
  };
  Cancelled cancelled_;
  core::Clock::time_point reported_at_{};

  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> stopping_{false};

  mutable core::Mutex mu_;
  core::CondVar idle_;
  Chunk* head_ TT_GUARDED_BY(mu_) = nullptr;  // first of the published chunks
  Chunk* tail_ TT_GUARDED_BY(mu_) = nullptr;
  std::uint64_t published_ TT_GUARDED_BY(mu_) = 0;  // seq of the last published command
  bool scheduled_ TT_GUARDED_BY(mu_) = false;       // ready, or a thread runs the session task
  int inside_ TT_GUARDED_BY(mu_) = 0;               // number of threads in run_plan()
  Waiting waiting_ TT_GUARDED_BY(mu_) = Waiting::kNo;
  // A session task that waits for other ranks can be used by the spiller.
  struct GroupWait {
    std::shared_ptr<Groups::Member> member;  // the rank that waits; null: the session does not wait
    std::uint64_t seq = 0;
    bool lent = false, met = false;
  };
  GroupWait group_wait_ TT_GUARDED_BY(mu_);
  int pending_notifications_ TT_GUARDED_BY(mu_) = 0;  // number of pending calls of met()
  bool woken_ TT_GUARDED_BY(mu_) = false;             // met() was called while the session task ran
};

}  // namespace teletensor::runtime
