// Back: the back end of a session, which computes. The frame consumer (one thread at a time)
// appends entries whose operands are values. The session task, on a lane, takes the entries in
// order, plans them, and runs them.
//
// A session runs at most kPlanEntries units or for kPlanTime, whichever ends first, before other
// sessions can get the lane. A unit is one instruction or a loop of several (window.h). A window
// ends after an optimizer step, before a Fetch, and after kWindowEntries entries, so that a
// training loop repeats the same windows and their plans are reused. While the queue is short,
// entries run immediately, one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/program/interner.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/lanes.h"
#include "engine/runtime/lock_wait.h"
#include "engine/runtime/planned_programs.h"
#include "engine/runtime/queue.h"
#include "engine/runtime/tiers.h"
#include "engine/runtime/window.h"

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

class Back : public Task, private Tiers::Member, private Groups::Waiter {
 public:
  static constexpr std::size_t kMaxQueued = 16384;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  // The maximum number of bytes of a Fetch that is not `bulk`.
  static constexpr std::size_t kMaxFetched = std::size_t{1} << 20;
  static constexpr std::size_t kPlanEntries = 64;
  static constexpr std::size_t kWindowEntries = 256;
  static constexpr std::size_t kMaxHere = 8;  // maximum number of entries that publish() runs
  // Number of interned items at which a new interner begins.
  static constexpr std::size_t kMaxInterned = 4096;
  static constexpr std::chrono::microseconds kPlanTime{1000};
  static constexpr std::uint64_t kSlow = 50'000'000;  // in nanoseconds
  static constexpr std::size_t kMaxGroups = 64;
  static constexpr std::uint64_t kAllGroups = UINT64_MAX;  // passed to leave all groups
  static constexpr std::size_t kMaxOpen = 256;             // maximum number of open collectives
  // Open collectives may use 1/4 of the host's memory.
  static constexpr std::uint64_t kOpenPart = 4;

  Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
       std::uint64_t quota, BackEvents* events, Publications* publications = nullptr,
       Tiers* tiers = nullptr, Groups* groups = nullptr);
  // Calls stop().
  ~Back() override;

  // Enables moving the session's storages to the disk, within the disk limit of `user`. The events'
  // on_moving() may be called from now on.
  void join_tiers(const std::string& user);

  // ---- Functions of the frame consumer. The session task sees the entries after publish(), or
  // when a chunk is full.

  // Returns a cleared instruction, to be filled in place before the next call.
  program::Instruction& instruction(std::uint64_t seq) { return append(seq).instruction; }
  // The interner of the instruction that was requested last, or for the operand of a fetch, that of
  // the next entry.
  program::Interner& interner() { return *interner_; }
  void constant(std::uint64_t seq, const core::Dims& shape, std::string bytes,
                program::ValueRef value);
  void uploaded(std::uint64_t seq, core::Ref<memory::Storage> storage, program::ValueRef value);
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand);
  // Result 0 becomes the tensor of operand 0, published as `facts` describe. Without an operand, a
  // name is withdrawn. A failure is a root error that affects no value.
  void publish_tensor(std::uint64_t seq, Publications::Facts facts, program::Operand operand,
                      program::ValueRef value);
  // Joins the group that the session gave this number, or leaves it if there is no `join`. For a
  // group that the session is in, `join` only changes the timeout.
  void change_group(std::uint64_t seq, std::uint64_t number, std::optional<Groups::Join> join);
  // Makes `value` fail with this status, or, while entries are refused, with that refusal. Returns
  // the failure.
  FailureRef failed(std::uint64_t seq, core::Status status, program::ValueRef value);
  // Makes all later entries except fetches fail with this status without running. OK: later entries
  // run again.
  void refuse(core::Status status);
  bool refusing() const { return !refuse_.ok(); }
  // Runs a program as a single command. A program is planned when it is called for the first time;
  // planning counts as lane time.
  void call(std::uint64_t seq, program::Invocation invocation);
  PlannedPrograms& planned() { return planned_; }
  const PlannedPrograms& planned() const { return planned_; }
  // Makes a call fail as a root; values that it would have written are unchanged.
  void failed_call(std::uint64_t seq, core::Status status, program::Invocation invocation);
  // Publishes all entries of the commands up to `seq`, which must have been appended. With `here`,
  // a few small entries run on this thread at once if a lane is idle, because waking the lane would
  // cost more.
  void publish(std::uint64_t seq, bool here = false);
  // Drops the entries of commands after `seq`, for a command that failed half-way by lack of
  // memory.
  void take_back(std::uint64_t seq);
  bool full() const {
    return queued_.load(std::memory_order_relaxed) >= kMaxQueued ||
           bytes_.load(std::memory_order_relaxed) >= kMaxBytes;
  }
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
  std::uint64_t cancelled_below() const { return cancel_below_.load(std::memory_order_relaxed); }
  std::uint64_t completed_upto() const { return completed_.load(std::memory_order_acquire); }
  std::size_t queued() const { return queued_.load(std::memory_order_relaxed); }
  // The commands after `seq` are those of the session's next client. When it joins a group that an
  // earlier client has joined, it replaces that member. Any thread.
  void take_over(std::uint64_t seq) { taken_over_at_.store(seq, std::memory_order_relaxed); }
  // Returns true if the session is in a group. Any thread.
  bool has_groups();
  // Ends the groups of the session, with the reason "rank n `why`". Any thread.
  void leave_groups(const std::string& why);
  // Called before the daemon shuts down: from then on no session waits for another one.
  void end_groups();
  // Returns true if no published entry runs now; some may wait for other ranks. Any thread.
  bool is_quiet() const;
  // Returns true if all published entries have ended. Any thread.
  bool is_drained() const;
  // Returns true if a frame consumer waits, and on_continue() was not called. Any thread.
  bool has_waiter() const;
  // is_wanted() returns true if another rank waits for this session, groups_busy() if an operation
  // of its groups is open. Any thread.
  bool is_wanted();
  bool groups_busy();
  // The groups that continue after a restart. Precondition: drained, and at rest with these groups.
  std::vector<program::Image::Group> group_images() const;
  // The parts of an image that exist only there: the values are alive until the image is complete.
  struct NotRun {
    std::vector<program::ValueRef> values;
    std::vector<std::unique_ptr<ProgramRun::Left>> calls;
  };
  // Returns the index of a value in an image.
  using IndexOf = std::function<program::Image::Index(const program::Value&)>;
  // What has not run because it waits for other ranks. Without `index_of`, only checks whether an
  // image can contain it, and returns UNIMPLEMENTED if not. Precondition: is_quiet(), and the
  // session's groups do not change any more.
  core::Result<std::vector<program::Image::Entry>> entries(const IndexOf& index_of,
                                                           NotRun& parts) const;
  // Appends these entries, which run after begin_restored(). INVALID_ARGUMENT if the image is
  // inconsistent. Must be called after begin_at(), before any other function.
  core::Status restore_entries(const std::vector<program::Image::Entry>& entries,
                               const std::vector<program::ValueRef>& values);
  void begin_restored();
  // Rejoins a group of a restored session. Must be called before any other function.
  void restore_group(const std::string& user, const std::string& who,
                     const program::Image::Group& group);
  // Estimated seconds until the queued entries have run, from the speed since the queue was last
  // empty.
  double wait_seconds() const;
  std::size_t queue_bytes() const {
    return queued() * sizeof(Entry) + bytes_.load(std::memory_order_relaxed);
  }
  const Executor& executor() const { return executor_; }
  Profile& profile() { return executor_.profile(); }
  const PlanStats& plan_stats() const { return plans_.stats(); }

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
  // Number of small instructions between two reads of the clock.
  static constexpr int kEntriesPerClock = 8;

  Entry& append(std::uint64_t seq);
  // Appends an entry that has failed as a root, to which the caller adds its value.
  Entry& append_failed(std::uint64_t seq, core::Status status);
  void publish_open_entries() TT_REQUIRES(mu_);
  void renew_interner();
  bool run_entries();
  void look_ahead();
  bool begin_window();
  WindowPlans::Plan& plan_window(std::size_t size);
  bool run_unit();
  static bool is_small(const program::Instruction& instruction);
  bool yield_to_spiller(bool starved);
  // The reason as leave_groups() reports it.
  static constexpr char kSessionEnds[] = "has ended its session";
  // A collective that has not ended. Its results have neither contents nor failure. An instruction
  // that reads them stops the session task, except for copies over a whole tensor, which run when
  // the collective has ended.
  struct OpenCollective {
    program::Instruction instruction;
    Executor::Open open;
    std::vector<program::Instruction> copies;
    // Geometries of all its results, because the call that owns them may end earlier.
    std::deque<core::Geometry> geometries;
    core::DType operand_dtype = core::DType::kF32;
    core::Dims operand_shape;
    std::unique_ptr<core::Attributes> attributes;  // of a step of a program
    std::string origin;                            // the source line, if it is a step of a program
    const Groups::Member* group = nullptr;         // null for a transfer
    std::unique_ptr<Groups::Kept> kept;
  };
  using Next = ProgramRun::Next;
  class CallOf;
  bool stop_before_next(bool starved, bool yields);
  void keep_open(program::Instruction instruction, bool of_program = false);
  void close_ended();
  void fail_open(OpenCollective& ended, const core::Status& status);
  OpenCollective* find_open(const program::Operand& operand);
  OpenCollective* find_open(std::span<const program::Operand> operands);
  OpenCollective* find_open(const Entry& entry);
  // Returns the open collective that must end before the given collective may run, because the open
  // ones use too much memory; null if there is none.
  OpenCollective* find_memory_blocker(const program::Instruction& instruction);
  // Decides what to do with an entry while collectives are open. After kStop, blocker_ must end
  // first.
  Next next(Entry& entry);
  Next next(program::Instruction& instruction, bool refused);
  bool stop_for(OpenCollective* found);
  static void keep_geometry(OpenCollective& open, program::Instruction& instruction);
  struct SavedEntry;
  void restore_entry(const program::Image::Entry& saved, program::Program& read,
                     const std::vector<program::ValueRef>& values);
  std::vector<SavedEntry> left(NotRun& parts) const;
  bool request_notification(Executor::Open& open);
  bool wait_for(Executor::Open& open, std::uint64_t seq);
  void end_if_stopped(Groups::Member& member, std::uint64_t seq);
  std::vector<std::shared_ptr<Groups::Member>> members();
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
  void pop_front();
  // Returns false if the entry did not run and must be tried again (Executor::stopped).
  bool run_entry(Entry& entry);
  bool run_fetch(Entry& entry);
  bool run_publish(Entry& entry);
  void run_group(Entry& entry);
  void leave_group(std::uint64_t number);
  Groups::Member* known_member(const Entry& entry) const;
  // The error with which an entry must be refused: its program has ended, or it was interrupted.
  core::Status refusal(const Entry& entry) const;
  // Reports the failure of an entry to the client, but not of a value.
  void record_failure(const Entry& entry, core::Status status);
  bool run_call(Entry& entry, core::Clock::time_point until);
  bool cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why);
  FailureRef cancelled_failure(std::uint64_t seq, bool* root);
  // Terminates the process if the error cannot be reported.
  void record(const program::Instruction& instruction, const FailureRef& failure,
              bool root) noexcept;
  void report_progress() TT_EXCLUDES(mu_);
  bool has_room() const;
  bool is_quick(Chunk& chunk) const;
  void release_chunk(Chunk* chunk) TT_REQUIRES(mu_);
  void trim_free(int most) TT_REQUIRES(mu_);

  Lanes& lanes_;
  const memory::OwnerId owner_;
  BackEvents* const events_;
  Publications* const publications_;
  Tiers* const tiers_;              // null if nothing is moved
  Groups* const groups_;            // null if groups are not supported
  std::atomic<bool> yield_{false};  // the spiller wants to use the session task
  bool joined_ = false;
  LockWait lock_wait_;
  Executor executor_;

  std::atomic<bool> waits_to_begin_{false};  // begin_restored() was not called yet

  // Used by the frame consumer only.
  Chunk* open_ = nullptr;
  core::Status refuse_;
  FailureRef refusal_;  // its root is the first entry that was refused and not raised since
  std::unique_ptr<program::Interner> interner_ = std::make_unique<program::Interner>();
  std::unique_ptr<program::Interner> old_interner_;
  std::uint64_t old_interner_until_ =
      0;  // the queue refers to the old interner until the command with this seq has run
  std::uint64_t appended_ = 0;  // seq of the last entry
  PlannedPrograms planned_;

  // Used by the session task only: a list of chunks, none of them empty, and the position up to
  // which they were scanned.
  Chunk* current_ = nullptr;
  Chunk* last_ = nullptr;
  Chunk* scan_ = nullptr;  // null: the scan begins at the front
  std::size_t scan_at_ = 0;
  std::size_t scanned_ = 0;     // entries that were scanned but not taken
  std::size_t boundary_ = 0;    // number of these in the front window; 0: not known yet
  std::size_t since_mark_ = 0;  // entries scanned since the last mark
  bool broken_ = false;         // a part of the window has already run
  // The running window, its plan (null: none) and the index of its next unit.
  std::vector<Entry*> window_;
  std::vector<program::Instruction*> window_instructions_;
  WindowPlans::Plan* plan_ = nullptr;
  std::size_t unit_ = 0;
  bool apart_ = false;  // the unit runs instruction by instruction
  std::vector<program::Instruction*> loop_;
  WindowPlans plans_;
  std::uint64_t interner_ends_seen_ = 0;
  std::deque<OpenCollective> collectives_;  // open collectives, by seq
  // The command that joined each group; absent for a group that was restored from a snapshot.
  std::map<std::uint64_t, std::uint64_t> joined_at_;
  // The open collective for which the session task stopped; null: it stopped for another reason.
  OpenCollective* blocker_ = nullptr;
  FailureRef refused_;  // the failure of the last refused entry
  struct Cancelled {
    FailureRef failure;       // of cancelled entries
    std::uint64_t below = 0;  // the cancel_upto() to which it belongs
  };
  Cancelled cancelled_;
  core::Clock::time_point reported_at_{};

  std::atomic<std::size_t> queued_{0};
  std::atomic<std::uint64_t> ran_{0};  // number of entries that ran since the queue was last empty
  std::atomic<std::uint64_t> busy_since_{0};  // time in nanoseconds
  std::atomic<std::size_t> bytes_{0};         // bytes of constants in the queue
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint64_t> cancel_below_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> groups_end_{false};
  std::atomic<std::uint64_t> taken_over_at_{0};  // the last command of an earlier client
  std::atomic<std::uint64_t> interner_ends_{0};  // number of interners that were destroyed

  mutable core::Mutex mu_;
  core::CondVar idle_;
  Chunk* head_ TT_GUARDED_BY(mu_) = nullptr;  // first of the published chunks
  Chunk* tail_ TT_GUARDED_BY(mu_) = nullptr;
  Chunk* free_ TT_GUARDED_BY(mu_) = nullptr;
  int free_count_ TT_GUARDED_BY(mu_) = 0;
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
  // The groups of the open collectives, by seq.
  std::multimap<std::uint64_t, std::shared_ptr<Groups::Member>> opened_ TT_GUARDED_BY(mu_);
  int pending_notifications_ TT_GUARDED_BY(mu_) = 0;  // number of pending calls of met()
  bool woken_ TT_GUARDED_BY(mu_) = false;             // met() was called while the session task ran
  std::vector<std::weak_ptr<Groups::Member>> members_ TT_GUARDED_BY(mu_);  // some may have expired
};

}  // namespace teletensor::runtime
