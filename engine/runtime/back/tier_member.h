// TierMember: a session as the spiller sees it, which moves the session's storages (tiers.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/memory/pool.h"
#include "engine/runtime/back/back_events.h"
#include "engine/runtime/back/task_state.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/queue/backlog.h"
#include "engine/runtime/tiers.h"

namespace teletensor::runtime {

class TierMember final : private Tiers::Member {
 public:
  // `tiers` is null if nothing is moved. `task` is the session task.
  TierMember(Tiers* tiers, Executor& executor, TaskState& state, const Backlog& backlog,
             BackEvents& events, Lanes& lanes, Task* task)
      : tiers_(tiers),
        executor_(executor),
        state_(state),
        backlog_(backlog),
        events_(events),
        lanes_(lanes),
        task_(task) {}

  // Returns true if the storages of any session are moved.
  bool enabled() const { return tiers_ != nullptr; }
  const Tiers* tiers() const { return tiers_; }
  // Enables moving the session's storages to the disk, within the disk limit of `user`. The events'
  // on_moving() may be called from now on.
  void join(const std::string& user);
  // Ends it. Returns true if the spiller had the session task; the caller has it then.
  bool leave();

  // ---- Functions of the session task.

  // Marks the beginning of a run.
  void begin_run(Tiers::Clock::time_point now);
  // Returns true if the spiller wants to use the session task.
  bool must_yield() const { return yield_.load(std::memory_order_relaxed); }
  // Passes the session task to the spiller, before an instruction that lacks memory (`starved`) or
  // at the end of a plan. Returns false if the spiller does not take it.
  bool yield(bool starved);

  // ---- Functions for any thread.

  // Lets a session that waits for memory continue without it.
  void hurry();
  // Allocates a pinned storage on a device for a thread that does not run the session task. The
  // result is null if there is no room. allocate() calls `done` at once if there is room or nothing
  // can be moved; otherwise from another thread, after other storages were moved away.
  // allocate_now() waits.
  void allocate(std::size_t device, std::size_t bytes, std::uint64_t seq,
                std::function<void(core::Ref<memory::Storage>)> done);
  core::Ref<memory::Storage> allocate_now(std::size_t device, std::size_t bytes, std::uint64_t seq);

 private:
  void add_prefetches(Tiers::Need& need) const;
  // Tiers::Member
  bool freeze() override { return state_.freeze(); }
  void thaw() override;
  bool has_work() const override { return state_.has_work(); }
  void ask_to_yield(bool yes) override { yield_.store(yes, std::memory_order_relaxed); }
  void go_on(bool room, std::vector<std::uint64_t> granted) override;
  memory::Pool& pool(std::size_t device) override { return executor_.pool(device); }
  std::size_t device_of(const memory::Storage& storage) const override {
    return static_cast<std::size_t>(executor_.devices().find(storage.device()));
  }
  bool kept(std::unordered_set<const void*>& storages) override {
    return events_.on_moving(storages);
  }

  Tiers* const tiers_;
  Executor& executor_;
  TaskState& state_;
  const Backlog& backlog_;
  BackEvents& events_;
  Lanes& lanes_;
  Task* const task_;
  std::atomic<bool> yield_{false};
  bool joined_ = false;
};

}  // namespace teletensor::runtime
