// Back: the half of a session that computes. The pump (one thread at a time) appends entries whose
// operands are values; a lane takes them in order, as plans, and runs them.
//
// A session runs at most kPlanEntries units or kPlanTime, whichever ends first, before others get
// the lane. A unit is an instruction or a loop of several (window.h). Windows end behind optimizer
// steps, before Fetches, and after kWindowEntries entries, so that a training loop meets the same
// windows and plans again. What comes while the queue is short runs at once, by itself.
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
#include "engine/runtime/queue.h"
#include "engine/runtime/tiers.h"
#include "engine/runtime/window.h"

namespace teletensor::runtime {

// What a Fetch brought. Without failure, `contents` are row-major.
struct FetchResult {
  std::uint64_t seq = 0;
  bool bulk = false;
  core::Status status;
  std::uint64_t root = 0;  // of the failure that `status` tells
  core::DType dtype = core::DType::kF32;
  core::Dims shape;
  core::Device device;
  RowMajor contents;
};

inline constexpr program::OpId kNoOp = 0xffff;

// Called from the strand, in order, without locks. Must not block; on_failed and on_continue may
// use the back.
class BackEvents {
 public:
  virtual ~BackEvents() = default;
  virtual void on_completed(std::uint64_t seq) = 0;  // coalesced; also from publish()
  virtual void on_fetched(FetchResult result) = 0;
  virtual void on_failed(const program::Failure& root) = 0;
  // An instruction (kNoOp: a fetch, a constant or an upload) that took kSlow or more.
  virtual void on_slow(std::uint64_t, program::OpId, std::uint64_t) {}  // seq, op, ns
  // Storages that the session's kept names stand for, for the mover, while nothing runs. False:
  // that cannot be said now.
  virtual bool on_moving(std::unordered_set<const void*>&) { return true; }
  // What wait_for_room() or wait_until_drained() asked for is there. Not on the strand any more.
  virtual void on_continue() = 0;
};

class Back : public Task, private Tiers::Member, private Groups::Waiter {
 public:
  static constexpr std::size_t kMostQueued = 16384;
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMostFetched = std::size_t{1} << 20;  // bytes, without `bulk`
  static constexpr std::size_t kPlanEntries = 64;
  static constexpr std::size_t kWindowEntries = 256;
  static constexpr std::size_t kMostHere = 8;         // entries that publish() may run
  static constexpr std::size_t kMostInterned = 4096;  // then a new interner begins
  static constexpr std::chrono::microseconds kPlanTime{1000};
  static constexpr std::uint64_t kSlow = 50'000'000;  // ns
  static constexpr std::size_t kMostGroups = 64;
  static constexpr std::uint64_t kAllGroups = UINT64_MAX;  // to leave
  static constexpr std::size_t kMostOpen = 256;            // collectives
  static constexpr std::uint64_t kOpenPart = 4;  // open collectives keep a 4th of the host

  Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
       std::uint64_t quota, BackEvents* events, Publications* publications = nullptr,
       Tiers* tiers = nullptr, Groups* groups = nullptr);
  // Calls stop().
  ~Back() override;

  // From now on what it holds may move to the disk, within `user`'s part of that, and the events'
  // on_moving() may come.
  void join_tiers(const std::string& user);

  // ---- The pump. Entries become visible to the strand by publish() or when a chunk is full.
  // A cleared instruction to be filled in place before the next call.
  program::Instruction& instruction(std::uint64_t seq) { return append(seq).instruction; }
  // Of the instruction that was asked for last, or (for the operand of a fetch) of the next entry.
  program::Interner& interner() { return *interner_; }
  void constant(std::uint64_t seq, const core::Dims& shape, std::string bytes,
                program::ValueRef value);
  void uploaded(std::uint64_t seq, core::Ref<memory::Storage> storage, program::ValueRef value);
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand);
  // Result 0 becomes what operand 0 is, published as `facts` say; without operand a name is
  // withdrawn. Fails as root of an error that touches nothing.
  void publish_tensor(std::uint64_t seq, Publications::Facts facts, program::Operand operand,
                      program::ValueRef value);
  // The session's group of this number; without `join` it is left. For a group that the session is
  // in, `join` changes the timeout alone.
  void change_group(std::uint64_t seq, std::uint64_t number, std::optional<Groups::Join> join);
  // `value` fails with this.
  void failed(std::uint64_t seq, core::Status status, program::ValueRef value);
  // Entries from now on do not run and fail with this, all but fetches. OK: they run again.
  void refuse(core::Status status);
  bool refusing() const { return !refuse_.ok(); }
  // Runs a program. Everything in it happens under this one number. A program is planned when it is
  // called for the first time, which counts as lane time.
  void call(std::uint64_t seq, program::Invocation invocation);
  // Would a call of it have to plan it?
  bool is_new(const program::Program& program) const { return !prepared_.contains(&program); }
  // What planning the programs that can still be called has taken.
  std::uint64_t planned_ns();
  // The call fails, as root; what it was to write keeps its value.
  void failed_call(std::uint64_t seq, core::Status status, program::Invocation invocation);
  // Every entry of the commands up to `seq` has been appended. `here`: where they are few and
  // small, and a lane has nothing to do, they run at once on this thread: waking the lane would
  // cost more.
  void publish(std::uint64_t seq, bool here = false);
  // Drops entries of commands behind `seq`: of one that has failed half-way, by a lack of memory.
  void take_back(std::uint64_t seq);
  bool full() const {
    return queued_.load(std::memory_order_relaxed) >= kMostQueued ||
           bytes_.load(std::memory_order_relaxed) >= kMostBytes;
  }
  // False: there is room (or nothing left to run) now. True: on_continue() will be called, once; a
  // drained queue counts as having room. Precondition: everything is published.
  bool wait_for_room();
  bool wait_until_drained();
  // Seqs of in-place commands that failed with this root, ascending; forgets the root.
  // Precondition: drained.
  std::vector<std::uint64_t> take_failed_rebinds(std::uint64_t root);
  // Roots and rebinds that were recorded and not taken.
  std::size_t open_failures() const;
  using Failed = std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>>;
  Failed failed() const;
  // Goes on where another one was, drained. Before anything else.
  void begin_at(std::uint64_t completed, std::uint64_t cancelled_below, Failed failed);

  // ---- Any thread
  // Queued instructions of commands up to `seq` fail with CANCELLED, running ones are asked to
  // stop.
  void cancel_upto(std::uint64_t seq);
  std::uint64_t cancelled_below() const { return cancel_below_.load(std::memory_order_relaxed); }
  std::uint64_t completed_upto() const { return completed_.load(std::memory_order_acquire); }
  std::size_t queued() const { return queued_.load(std::memory_order_relaxed); }
  // Is the session in a group? Any thread.
  bool has_groups();
  // The groups of the session end, because "rank n `why`". Any thread.
  void leave_groups(const std::string& why);
  // Before the daemon shuts down: no session waits for another one, now or later.
  void end_groups();
  // Does nothing of what was published run now? It may wait for other ranks. Any thread.
  bool is_quiet() const;
  // Has all of it ended? Any thread.
  bool is_drained() const;
  // Does another rank wait for the session, or is something open in its groups? Any thread.
  bool is_wanted();
  bool groups_busy();
  // Of the groups that are to go on after a restart. Precondition: drained, and at rest with them.
  std::vector<program::Image::Group> group_images() const;
  // Before anything else.
  void restore_group(const std::string& user, const std::string& who,
                     const program::Image::Group& group);
  // Until what is queued has run, at the pace since the queue was last empty.
  double wait_seconds() const;
  std::size_t queue_bytes() const {
    return queued() * sizeof(Entry) + bytes_.load(std::memory_order_relaxed);
  }
  const Executor& executor() const { return executor_; }
  Profile& profile() { return executor_.profile(); }
  const PlanStats& plan_stats() const { return plans_.stats(); }

  // A storage on a device, the host or another, for somebody who is not the strand, pinned; null:
  // there is no room. Where nothing can move, or there is room, at once; else from another thread,
  // and not before others' have moved away. The second waits: for a thread that may.
  void allocate(std::size_t device, std::size_t bytes, std::uint64_t seq,
                std::function<void(core::Ref<memory::Storage>)> done);
  core::Ref<memory::Storage> allocate_now(std::size_t device, std::size_t bytes, std::uint64_t seq);
  const Tiers* tiers() const { return tiers_; }

  // Ends after the running instruction, then drops the queue. Nothing may be appended meanwhile or
  // afterwards. Must not be called from the events.
  void stop();

  bool run_plan() override;

 private:
  enum class Waiting : std::uint8_t { kNo, kRoom, kDrained };
  static constexpr int kEntriesPerClock = 8;  // small instructions between two looks at the clock

  Entry& append(std::uint64_t seq);
  // One that has failed, as root, with what is to be added to it.
  Entry& append_failed(std::uint64_t seq, core::Status status);
  void hand_over() TT_REQUIRES(mu_);
  void renew_interner();
  bool run_entries();
  void look_ahead();
  bool begin_window();
  WindowPlans::Plan& plan_window(std::size_t size);
  bool run_unit();
  static bool is_small(const program::Instruction& instruction);
  bool give_to_mover(bool starved);
  static constexpr char kSessionEnds[] = "has ended its session";  // as leave_groups() says it
  // A collective that has not ended. Its results have neither contents nor failure, and what reads
  // them stops the strand, but for copies that write a whole tensor: these run when it has ended.
  struct OpenCollective {
    program::Instruction instruction;
    Executor::Open open;
    std::vector<program::Instruction> copies;
    std::deque<core::Geometry> geometries;  // of the results of them all: a call may end before
    std::string origin;                     // of a program's step
    const Groups::Member* group = nullptr;  // null: a transfer
    std::unique_ptr<Groups::Kept> kept;
  };
  using Next = ProgramRun::Next;
  class CallOf;
  bool stop_before_next(bool starved, bool yields);
  void keep_open(program::Instruction instruction);
  void close_ended();
  void fail_open(OpenCollective& ended, const core::Status& status);
  OpenCollective* find_open(const program::Operand& operand);
  OpenCollective* find_open(std::span<const program::Operand> operands);
  OpenCollective* find_open(const Entry& entry);
  // What must end before the instruction, a collective, may run: open collectives keep too much
  // memory.
  OpenCollective* find_crowding(const program::Instruction& instruction);
  // What becomes of an entry while collectives are open. With kStop, blocker_ must end first.
  Next next(Entry& entry);
  Next next(program::Instruction& instruction, bool refused);
  bool stop_for(OpenCollective* found);
  static void keep_geometry(OpenCollective& open, program::Instruction& instruction);
  bool will_tell(Executor::Open& open);
  bool wait_for(Executor::Open& open, std::uint64_t seq);
  void end_if_stopped(Groups::Member& member, std::uint64_t seq);
  std::vector<std::shared_ptr<Groups::Member>> members();
  // The open collectives of commands up to `upto` end, and so do their groups.
  void interrupt_groups(std::uint64_t upto);
  // Groups::Waiter
  void met() override;
  void add_wishes(Tiers::Need& need) const;
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
  // False: it has not run, because there is no room (Executor::starved).
  bool run_entry(Entry& entry);
  bool run_fetch(Entry& entry);
  bool run_publish(Entry& entry);
  void run_group(Entry& entry);
  Groups::Member* known_member(const Entry& entry) const;
  // Why an entry must not run: its program's end or an interrupt.
  core::Status refusal(const Entry& entry) const;
  // Tells the client of an entry that has failed, and no value with it.
  void record_failure(const Entry& entry, core::Status status);
  bool run_call(Entry& entry, core::Clock::time_point until);
  bool cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why);
  FailureRef cancelled_failure(std::uint64_t seq, bool* root);
  // An error that cannot be told ends the process.
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
  Tiers* const tiers_;              // null: nothing moves
  Groups* const groups_;            // null: there are none
  std::atomic<bool> yield_{false};  // the mover wants the strand
  bool joined_ = false;
  Executor executor_;

  // The pump's.
  Chunk* open_ = nullptr;
  core::Status refuse_;
  FailureRef refusal_;  // its root: the first entry that was refused and not raised since
  std::unique_ptr<program::Interner> interner_ = std::make_unique<program::Interner>();
  std::unique_ptr<program::Interner> old_interner_;
  std::uint64_t old_interner_until_ =
      0;                        // seq; until it has run, the queue points into the old one
  std::uint64_t appended_ = 0;  // seq of the last entry
  struct Planned {
    std::shared_ptr<const Prepared> prepared;
    std::uint64_t ns = 0;
  };
  std::unordered_map<const program::Program*, Planned> prepared_;

  // The strand's: a list of chunks, of which none is empty, and how far they were looked through.
  Chunk* current_ = nullptr;
  Chunk* last_ = nullptr;
  Chunk* scan_ = nullptr;  // null: at the front
  std::size_t scan_at_ = 0;
  std::size_t scanned_ = 0;     // entries looked at and not taken
  std::size_t boundary_ = 0;    // how many of them are in the front one's window; 0: not known yet
  std::size_t since_mark_ = 0;  // entries looked at since the last mark
  bool broken_ = false;         // some of the window has run already
  // The window that is running, its plan (null: none) and the next of its units.
  std::vector<Entry*> window_;
  std::vector<program::Instruction*> window_instructions_;
  WindowPlans::Plan* plan_ = nullptr;
  std::size_t unit_ = 0;
  bool apart_ = false;  // it runs instruction by instruction
  std::vector<program::Instruction*> loop_;
  WindowPlans plans_;
  std::uint64_t interner_ends_seen_ = 0;
  std::deque<OpenCollective> collectives_;  // that are open, by seq
  OpenCollective* blocker_ = nullptr;       // why the strand has stopped; null: for another reason
  FailureRef refused_;                      // what the last refused entry failed with
  FailureRef cancelled_;                    // what cancelled entries fail with
  std::uint64_t cancelled_below_ = 0;       // the cancel_upto() that it belongs to
  core::Clock::time_point reported_at_{};

  std::atomic<std::size_t> queued_{0};
  std::atomic<std::uint64_t> ran_{0};         // since the queue was last empty
  std::atomic<std::uint64_t> busy_since_{0};  // ns
  std::atomic<std::size_t> bytes_{0};         // of constants in the queue
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint64_t> cancel_below_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> groups_end_{false};
  std::atomic<std::uint64_t> interner_ends_{0};  // how many interners are gone

  mutable core::Mutex mu_;
  core::CondVar idle_;
  Chunk* head_ TT_GUARDED_BY(mu_) = nullptr;  // published
  Chunk* tail_ TT_GUARDED_BY(mu_) = nullptr;
  Chunk* free_ TT_GUARDED_BY(mu_) = nullptr;
  int free_count_ TT_GUARDED_BY(mu_) = 0;
  std::uint64_t published_ TT_GUARDED_BY(mu_) = 0;  // seq
  bool scheduled_ TT_GUARDED_BY(mu_) = false;       // ready, or somebody is the strand
  int inside_ TT_GUARDED_BY(mu_) = 0;               // threads in run_plan()
  Waiting waiting_ TT_GUARDED_BY(mu_) = Waiting::kNo;
  // A strand that waits for other ranks lends itself to the mover.
  struct GroupWait {
    std::shared_ptr<Groups::Member> member;  // null: it does not wait
    std::uint64_t seq = 0;
    bool lent = false, met = false;
  };
  GroupWait group_wait_ TT_GUARDED_BY(mu_);
  // Of the open collectives, by seq.
  std::multimap<std::uint64_t, std::shared_ptr<Groups::Member>> opened_ TT_GUARDED_BY(mu_);
  int tellers_ TT_GUARDED_BY(mu_) = 0;     // calls of met() that are to come
  bool woken_ TT_GUARDED_BY(mu_) = false;  // met() was called while the strand ran
  std::vector<std::weak_ptr<Groups::Member>> members_ TT_GUARDED_BY(mu_);  // some may be gone
  std::map<std::uint64_t, std::vector<std::uint64_t>> failed_
      TT_GUARDED_BY(mu_);                        // root -> rebinds
  std::size_t failures_ TT_GUARDED_BY(mu_) = 0;  // roots and rebinds in it
};

}  // namespace teletensor::runtime
