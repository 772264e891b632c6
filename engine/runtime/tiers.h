// Tiers: moves storages from devices to the host and from there to the disk, and back, on a thread
// of its own.
//
// A session that lacks room, or operands that are elsewhere, stops before the instruction, with
// nothing done, and waits here without a lane; the mover makes room, brings the operands back and
// lets it go on, with the room reserved for it. While the mover works on a session it is that
// session's strand: nothing of the session runs, and nobody waits for the mover with a lane or a
// lock in hand.
//
// Room is made by moving away, one after the other until it suffices: storages of sessions that
// have nothing to do, least recently used first, kept ones last; of others that wait here; of
// sessions that run, which stop for it at the end of a plan; and the session's own that the
// instruction does not need. Who was brought back has a turn of kTurns times what its transfers
// took before others may move it away again. What a device has no room for goes to the host, and
// where that has none either, straight to the disk. Where nothing is left to move but what is
// pinned for now, by an upload, a download, another process, it is waited for, for a while.
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
  // So long a request waits for what is pinned: longer than it takes to notice that a client is
  // gone (8 s).
  static constexpr std::chrono::milliseconds kPatience{10'000};
  using StorageRef = core::Ref<memory::Storage>;
  using Clock = std::chrono::steady_clock;

  // What an instruction needs before it can run.
  struct Need {
    std::vector<StorageRef> operands;  // all of them in their memory
    std::vector<StorageRef> wished;    // these as well, where there is room anyway
    std::vector<std::size_t> bytes;    // and room for so many bytes more, by device; or empty
  };

  // A session. Called by the mover, but for what stands below.
  class Member {
   public:
    virtual ~Member() = default;
    // Takes the strand. False: the session has something to do.
    virtual bool freeze() = 0;
    // Gives it back.
    virtual void thaw() = 0;
    // While it is frozen: something has come that it could do.
    virtual bool has_work() const = 0;
    // It is to give the strand to the mover, by yielded(), at the end of a plan. Any thread.
    virtual void ask_to_yield(bool yes) = 0;
    // It goes on. `room`: what it needed is there, `granted` of it reserved with its pools, by
    // device; false: it cannot be had, and what still lacks it fails.
    virtual void go_on(bool room, std::vector<std::uint64_t> granted) = 0;
    virtual memory::Pool& pool(std::size_t device) = 0;
    virtual std::size_t device_of(const memory::Storage& storage) const = 0;
    // Storages that its kept names stand for. False: that cannot be said now. Precondition: frozen.
    virtual bool kept(std::unordered_set<const void*>& storages) = 0;

   protected:
    // It does something now.
    void active(Clock::time_point now) {
      active_at_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    }

   private:
    friend class Tiers;
    std::atomic<Clock::rep> active_at_{0};
    std::shared_ptr<memory::DiskShare> share_;
    Clock::time_point turn_began_{}, turn_ends_{};
    std::chrono::nanoseconds transfers_{0};  // of the turn
    double part_ = 0;                        // of its memory, that the turn has moved
    bool yielded_ = false, seen_ = false;    // guarded by Tiers::mu_
    bool asked_ = false;                     // to yield
  };

  // The disk outlives it; null: nothing moves there.
  explicit Tiers(memory::Disk* disk, std::chrono::milliseconds patience = kPatience);
  // Precondition: no members.
  ~Tiers();

  // ---- Any thread
  void join(Member* member, const std::string& user);
  // The mover does not touch it any more. True when it had the strand, which the caller has then.
  bool leave(Member* member);
  // The strand, which it gives to the mover until go_on(). False: not a member (any more).
  bool wait(Member* member, Need need);
  bool yielded(Member* member);
  // A member that waits goes on now, as if it had what it needs.
  void hurry(Member* member);
  // A storage for somebody who is not the strand; null: there is no room, or the member left.
  // `done` runs on the mover's thread.
  void allocate(Member* member, std::size_t device, std::size_t bytes, std::uint64_t seq,
                std::function<void(StorageRef)> done);
  // The same for a thread that may wait. Not a lane, nor one that the mover may need.
  StorageRef allocate(Member* member, std::size_t device, std::size_t bytes, std::uint64_t seq);

 private:
  struct Request {
    Member* member = nullptr;
    Need need;
    std::function<void(StorageRef)> done;  // with it: for room alone, and the strand is not here
    std::uint64_t seq = 0;
    std::chrono::nanoseconds transfers{0};
    double part = 0;  // of the member's memory, that they moved
    // From whom there was nothing to be had on which device.
    struct Tried {
      std::uint64_t used = 0;  // by it, then
      int times = 0;
      std::uint64_t pinned = 0;  // bytes that may be had once they are not pinned any more
    };
    std::map<std::pair<const Member*, std::size_t>, Tried> tried;
    Clock::time_point patient_until{};  // of what is pinned; none: it has not come to that
    bool hurry = false;                 // guarded by mu_
  };
  using RequestRef = std::shared_ptr<Request>;
  enum class Found : std::uint8_t { kRoom, kLater, kNever };

  void work();
  // False: not now.
  bool serve(Request& request);
  Found bring_back(Request& request);
  void bring_wished(Request& request);
  // What it needs there beside its operands, reserved in `granted`, or in `storage`.
  Found find_room(Request& request, std::size_t device, std::vector<std::uint64_t>& granted,
                  StorageRef& storage);
  Found make_room(Request& request, std::size_t device, std::size_t bytes);
  static Found out_of_tries(const memory::Pool& pool, std::size_t bytes);
  static std::uint64_t working_set(const Request& request, const memory::Pool& pool,
                                   std::size_t device);
  struct Lack {
    std::size_t device, bytes;
    memory::Pool::Short why;
    memory::Pool& pool;  // the request's, on the device
    bool met() const { return pool.room_for(bytes) == memory::Pool::Short::kNothing; }
  };
  static bool may_lose(Member& member, const Lack& lack);
  // Unless it has something that is pinned, and there is time to wait for that.
  void note_nothing(Request& request, Member& member, std::size_t device);
  // There is still nothing: it has no more than when it was tried.
  static bool has_nothing(const Request& request, Member& member, std::size_t device);
  // From one that has nothing to do. False: not before its turn is over.
  bool take_idle(Request& request, Member& member, const Lack& lack, bool kept);
  // From one that waits behind the request, or for its turn to end, or runs: that is asked to stop
  // for it. False: not now.
  bool take_busy(Request& request, Member& member, const Lack& lack);
  Found take_own(Request& request, const Lack& lack);
  // What was found pinned, and is worth a wait yet, would be enough.
  static bool pins_suffice(const Request& request, const Lack& lack);
  // Moves storages of a frozen member away until the lack is met; only those that it does not keep
  // by name unless `kept`. Was there anything?
  bool move_away(Request& request, Member& member, const Lack& lack, bool kept, bool idle);
  bool move_all_away(Request& request, Member& member, const Lack& lack);
  core::Status move_one(Member& member, std::size_t device, memory::Storage& storage,
                        const std::function<bool()>& go_on);
  core::Status move_in(Request& request, memory::Storage& storage);
  // Counts a transfer of the request's.
  static core::Status timed(Request& request, const memory::Storage& storage,
                            const std::function<core::Status()>& move);
  enum class Place : std::uint8_t { kNone, kAhead, kBehind };
  Place place(const Request& request, const Member& member);  // of what it waits for
  bool stopped(const Request& request);
  bool take_victim(Member* member);
  void leave_victim();
  void answer(Request& request, StorageRef storage, bool room,
              std::vector<std::uint64_t> granted = {});
  void thaw_yielded(bool all);
  bool in_turn(const Member& member, bool idle) const;

  memory::Disk* const disk_;  // null: none
  const std::chrono::milliseconds patience_;
  mutable core::Mutex mu_;
  core::CondVar changed_, released_;
  std::vector<Member*> members_ TT_GUARDED_BY(mu_);
  std::deque<RequestRef> requests_ TT_GUARDED_BY(mu_);
  // Who the mover is working on: nobody but it touches them meanwhile.
  Member* busy_with_ TT_GUARDED_BY(mu_) = nullptr;
  Member* victim_ TT_GUARDED_BY(mu_) = nullptr;
  // The work under way is not wanted any more: the request, or the one that loses.
  std::atomic<bool> stop_request_{false}, stop_victim_{false};
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::thread mover_;
};

}  // namespace teletensor::runtime
