// TaskState: whether a session's task runs, is ready, waits or rests, which entries were published
// for it, and how far it has come. Thread-safe.
//
// The task is *scheduled* from the moment in which it must be made ready until its run ends with
// nothing left, also while it waits for other ranks, for locks, or for the spiller. Whoever makes
// it scheduled must make it ready, or give it up again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/runtime/back/open_collectives.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/lock_wait.h"
#include "engine/runtime/queue/backlog.h"
#include "engine/runtime/queue/queue_load.h"

namespace teletensor::runtime {

class TaskState {
 public:
  TaskState(const QueueLoad& load, const OpenCollectives& collectives, LockWait& lock_wait)
      : load_(load), collectives_(collectives), lock_wait_(lock_wait) {}

  // ---- Functions of the frame consumer.

  // Adds a full chunk. Returns true if the caller must make the task ready.
  bool add(Chunk* chunk);
  // Adds `open` unless it is null: the last entries of the commands up to `seq`.
  struct Published {
    bool wake = false;      // the caller must make the task ready
    bool report = false;    // the caller must report the progress, and then call end_report()
    Chunk* only = nullptr;  // with `wake`: the published chunk, if there is only one
  };
  Published publish(Chunk* open, std::uint64_t seq);
  // Returns true if the caller must make the task ready.
  bool end_report();
  // Return false if the condition holds, and otherwise true: then end_run() tells the session task
  // once that it holds.
  bool wait_for_room();
  bool wait_until_drained();
  // Continues after commands of another back end. Must be called before any other function.
  void begin_at(std::uint64_t consumed, std::uint64_t completed);
  // Holds the task back until begin(), so that entries can be restored.
  void hold();
  // Returns true if the task was held back, and the caller must make it ready.
  bool begin() { return held_.exchange(false); }

  // ---- Functions of the session task.

  void enter();
  void leave();
  // Moves the published chunks to the end of the backlog. Returns false if there are none.
  bool take(Backlog& backlog);
  // Tells what must be done after a run of the task.
  struct Next {
    bool more = false;   // it runs again
    bool go_on = false;  // the frame consumer that has waited must be told
  };
  // `drained`: the backlog has nothing to run.
  Next look(bool drained) const;
  // Ends the run. Unless there is more to do, the task rests afterwards. `next` is that of look(),
  // or says that the task must run again.
  Next rest(Next next);
  // The last command before the first entry of the backlog, or, if that is empty, of the published
  // entries.
  std::uint64_t ended_upto(const Backlog& backlog) const;
  // Sets the last command that has completed. Returns false if it is not a later one.
  bool advance(std::uint64_t completed);

  // Announces one call of notified().
  void expect_notification();
  // Takes back an announcement.
  void drop_notification();
  // From now on the task waits for another rank, with an operation of command `seq`. Returns false
  // if notified() was called meanwhile, so that the task must continue.
  bool wait_for_rank(std::shared_ptr<Groups::Member> member, std::uint64_t seq);

  // ---- Functions of the spiller, which uses the task while it is frozen.

  // Returns false if the task has work.
  bool freeze();
  // Returns true if the caller must make the task ready. `backlog` is only read if it is not used.
  bool thaw(const Backlog& backlog);
  // Returns true if a frozen task has received work.
  bool has_work() const;

  // ---- Functions for any thread.

  // Reports that the wait for other ranks is over. Returns true if the caller must make the task
  // ready.
  bool notified();
  // The rank for which the task waits in a command up to `upto`; null if it does not.
  std::shared_ptr<Groups::Member> waits_for(std::uint64_t upto) const;
  std::uint64_t completed_upto() const { return completed_.load(std::memory_order_acquire); }
  // Returns true if no published entry runs now; some may wait for other ranks.
  bool is_quiet() const;
  // Returns true if all published entries have ended.
  bool is_drained() const;
  // Returns true if a frame consumer waits and was not told to continue.
  bool has_waiter() const;
  // The published chunks. Precondition: is_quiet(), and nothing is published meanwhile.
  Chunk* published() const;

  // Ends the session: the task stops as soon as it can.
  void stop() { stopping_ = true; }
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  const std::atomic<bool>& stop_flag() const { return stopping_; }
  // Gives the scheduled task up, which the caller has.
  void give_up();
  // Waits until the task rests, and returns the chunks that are left, which the caller then owns.
  // Precondition: stopping().
  Chunk* end();

 private:
  enum class Waiting : std::uint8_t { kNo, kRoom, kDrained };

  void append(Chunk* chunk) TT_REQUIRES(mu_);
  void rest_locked() TT_REQUIRES(mu_);

  const QueueLoad& load_;
  const OpenCollectives& collectives_;
  LockWait& lock_wait_;
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};  // begin() was not called yet

  mutable core::Mutex mu_;
  core::CondVar idle_;
  Chunk* head_ TT_GUARDED_BY(mu_) = nullptr;  // first of the published chunks
  Chunk* tail_ TT_GUARDED_BY(mu_) = nullptr;
  std::uint64_t published_ TT_GUARDED_BY(mu_) = 0;  // seq of the last published command
  bool scheduled_ TT_GUARDED_BY(mu_) = false;
  int inside_ TT_GUARDED_BY(mu_) = 0;  // number of threads between enter() and leave()
  Waiting waiting_ TT_GUARDED_BY(mu_) = Waiting::kNo;
  // A task that waits for other ranks can be used by the spiller.
  struct RankWait {
    std::shared_ptr<Groups::Member> member;  // the rank that waits; null: the task does not wait
    std::uint64_t seq = 0;
    bool lent = false, met = false;
  };
  RankWait rank_wait_ TT_GUARDED_BY(mu_);
  int notifications_ TT_GUARDED_BY(mu_) = 0;  // number of announced calls of notified()
  bool woken_ TT_GUARDED_BY(mu_) = false;     // notified() was called while the task ran
};

}  // namespace teletensor::runtime
