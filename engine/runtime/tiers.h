// Tiers: moves storages from devices to the host, on to the disk, and back. A thread of its own,
// the spiller, does this.
//
// A session that lacks memory, or whose operands were moved away, stops before the instruction,
// without side effects, and waits here without a lane. The spiller makes room, brings the operands
// back, and lets the session continue with the room reserved for it. While the spiller works on a
// session it acts as that session's task: nothing of the session runs. No thread waits for the
// spiller while it has a lane or a lock.
//
// The spiller makes room by moving storages away, in this order, until there is enough: storages of
// sessions without work, least recently used first and those kept by name last; of other sessions
// that wait here; of running sessions, which stop for this at the end of a plan; and the waiting
// session's own storages that the instruction does not need. A session whose storages were brought
// back has a turn, of kTurns times the duration of its transfers, before they may be moved away
// again. Storages of a device are moved to the host, or if that has no room, to the disk directly.
// If only pinned storages are left (by an upload, a download or another process), the spiller waits
// for them for a limited time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/memory/disk.h"
#include "engine/memory/pool.h"

namespace teletensor::runtime {

class Tiers {
 public:
  static constexpr int kTurns = 10;
  // The time for which a request waits for pinned storages: longer than it takes to detect that a
  // client is gone (8 s).
  static constexpr std::chrono::milliseconds kPatience{10'000};
  using StorageRef = core::Ref<memory::Storage>;
  using Clock = std::chrono::steady_clock;

  // The memory that an instruction needs before it can run.
  struct Need {
    std::vector<StorageRef> operands;  // must be in their own memory
    std::vector<StorageRef> prefetch;  // are brought back as well if there is room anyway
    std::vector<std::size_t> bytes;    // additional bytes, by device; or empty
  };

  // A session whose storages the spiller may move. Unless stated otherwise, the functions are
  // called by the spiller.
  class Member {
   public:
    virtual ~Member() = default;
    // Stops the session task. Returns false if the session has work.
    virtual bool freeze() = 0;
    // Lets the session task run again.
    virtual void thaw() = 0;
    // Returns true if a frozen session has received work.
    virtual bool has_work() const = 0;
    // Requests that the session calls yielded() at the end of a plan, or cancels the request. Any
    // thread.
    virtual void ask_to_yield(bool yes) = 0;
    // Lets a waiting session continue. `room`: its need is satisfied, with `granted` bytes reserved
    // in its pools, by device. Otherwise the need cannot be satisfied, and instructions that lack
    // memory fail.
    virtual void go_on(bool room, std::vector<std::uint64_t> granted) = 0;
    virtual memory::Pool& pool(std::size_t device) = 0;
    virtual std::size_t device_of(const memory::Storage& storage) const = 0;
    // Adds the storages of the session's kept names. Returns false if they cannot be determined
    // now. Precondition: frozen.
    virtual bool kept(std::unordered_set<const void*>& storages) = 0;

   protected:
    // Records that the session has work now.
    void active(Clock::time_point now) {
      active_at_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    }

   private:
    friend class Tiers;
    std::atomic<Clock::rep> active_at_{0};
    std::shared_ptr<memory::DiskShare> share_;
    Clock::time_point turn_began_{}, turn_ends_{};
    std::chrono::nanoseconds transfers_{0};  // duration of the transfers of the turn
    double part_ = 0;  // the fraction of the session's memory that the turn has moved
    bool yielded_ = false, seen_ = false;  // guarded by Tiers::mu_
    bool asked_ = false;                   // was asked to yield
  };

  // `disk` must outlive this object; null: nothing is moved to a disk.
  explicit Tiers(memory::Disk* disk, std::chrono::milliseconds patience = kPatience);
  // Precondition: every session has left.
  ~Tiers();

  // ---- Functions for any thread
  void join(Member* member, const std::string& user);
  // Removes a session, which the spiller does not access afterwards. Returns true if the spiller
  // had the session task; the caller has it then.
  bool leave(Member* member);
  // wait() and yielded() pass the session task to the spiller until go_on(). They return false if
  // the session was removed.
  bool wait(Member* member, Need need);
  bool yielded(Member* member);
  // Lets a session that waits in wait() continue at once, without the memory that it waits for.
  void hurry(Member* member);
  // Allocates a storage for a thread that does not run the session task. The result is null if
  // there is no room or the session was removed. `done` runs on the spiller's thread.
  void allocate(Member* member, std::size_t device, std::size_t bytes, std::uint64_t seq,
                std::function<void(StorageRef)> done);
  // Like the function above, but waits. Must not be called on a lane or on a thread that the
  // spiller may need.
  StorageRef allocate(Member* member, std::size_t device, std::size_t bytes, std::uint64_t seq);

 private:
  struct Request {
    Member* member = nullptr;
    Need need;
    // Set for a request of allocate(): it needs memory only, and does not hold the session task.
    std::function<void(StorageRef)> done;
    std::uint64_t seq = 0;
    std::chrono::nanoseconds transfers{0};
    double part = 0;  // the fraction of the session's memory that these transfers moved
    // Attempts that found no storage to move away, by session and device.
    struct Tried {
      std::uint64_t used = 0;  // bytes used by the session at that time
      int times = 0;
      std::uint64_t pinned = 0;  // bytes that can be moved once they are no longer pinned
    };
    std::map<std::pair<const Member*, std::size_t>, Tried> tried;
    Clock::time_point patient_until{};  // deadline for waiting for pins; not set until needed
    bool hurry = false;                 // guarded by mu_
  };
  using RequestRef = std::shared_ptr<Request>;
  enum class Found : std::uint8_t { kRoom, kLater, kNever };

  void work();
  // Returns false if the request must be tried again later.
  bool serve(Request& request);
  Found bring_back(Request& request);
  void bring_prefetches(Request& request);
  // Finds the memory that is needed in addition to the operands: reserves it in `granted`, or
  // allocates `storage`.
  Found find_room(Request& request, std::size_t device, std::vector<std::uint64_t>& granted,
                  StorageRef& storage);
  Found make_room(Request& request, std::size_t device, std::size_t bytes);
  static Found out_of_tries(const memory::Pool& pool, std::size_t bytes);
  static std::uint64_t working_set(const Request& request, const memory::Pool& pool,
                                   std::size_t device);
  struct Lack {
    std::size_t device, bytes;
    memory::Pool::Short why;
    memory::Pool& pool;  // the requesting session's pool on the device
    bool met() const { return pool.room_for(bytes) == memory::Pool::Short::kNothing; }
  };
  static bool is_evictable(Member& member, const Lack& lack);
  // Records that the session has nothing to move, unless it has pinned storages and there is time
  // to wait for them.
  void note_nothing(Request& request, Member& member, std::size_t device);
  // Returns true if the session had nothing to move and uses no more memory than at that time.
  static bool has_nothing(const Request& request, Member& member, std::size_t device);
  // Evicts storages of a session without work. Returns false if the turn of the session is not
  // over.
  bool evict_idle(Request& request, Member& member, const Lack& lack, bool kept);
  // Evicts storages of a session whose own request is later in the queue or whose turn is over, or
  // asks a running session to yield. Returns false if the caller must try again later.
  bool evict_busy(Request& request, Member& member, const Lack& lack);
  Found evict_own(Request& request, const Lack& lack);
  // Returns true if the pinned storages that are worth waiting for would be enough.
  static bool pins_suffice(const Request& request, const Lack& lack);
  // Moves storages of a frozen session away until there is enough memory; storages kept by name
  // only if `kept`. Returns true if any was moved.
  bool move_away(Request& request, Member& member, const Lack& lack, bool kept, bool idle);
  bool move_all_away(Request& request, Member& member, const Lack& lack);
  core::Status move_one(Member& member, std::size_t device, memory::Storage& storage,
                        const std::function<bool()>& go_on);
  core::Status move_in(Request& request, memory::Storage& storage);
  // Runs a transfer and adds its duration to the request.
  static core::Status timed(Request& request, const memory::Storage& storage,
                            const std::function<core::Status()>& move);
  enum class Place : std::uint8_t { kNone, kAhead, kBehind };
  // The position of the session's request.
  Place place(const Request& request, const Member& member);
  bool stopped(const Request& request);
  bool claim_victim(Member* member);
  void leave_victim();
  void answer(Request& request, StorageRef storage, bool room,
              std::vector<std::uint64_t> granted = {});
  void thaw_yielded(bool all);
  bool in_turn(const Member& member, bool idle) const;

  memory::Disk* const disk_;  // null if there is no disk
  const std::chrono::milliseconds patience_;
  mutable core::Mutex mu_;
  core::CondVar changed_, released_;
  std::vector<Member*> members_ TT_GUARDED_BY(mu_);
  std::deque<RequestRef> requests_ TT_GUARDED_BY(mu_);
  // The sessions that the spiller works on; no other thread accesses them meanwhile.
  Member* busy_with_ TT_GUARDED_BY(mu_) = nullptr;
  Member* victim_ TT_GUARDED_BY(mu_) = nullptr;
  // The current work must stop, for the request or for the session that loses memory.
  std::atomic<bool> stop_request_{false}, stop_victim_{false};
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::thread spiller_;
};

}  // namespace teletensor::runtime
