#include "engine/runtime/tiers.h"

#include <algorithm>
#include <utility>

#include "engine/core/threads.h"
#include "engine/runtime/device.h"

namespace teletensor::runtime {

using core::Code;
using core::Status;
using memory::Pool;

namespace {

// Interval of retries while a request waits for other sessions.
constexpr std::chrono::milliseconds kLook{10};
constexpr std::chrono::seconds kTidy{1};  // interval of deletions while files exist on the disk
constexpr std::chrono::milliseconds kMinIdle{50};  // a turn ends after this time without work
// The minimum that is moved away at a time, because the next request needs memory as well.
constexpr std::size_t kBatch = std::size_t{16} << 20;
constexpr int kRoomTries = 8;
constexpr int kMaxAttempts = 64;  // maximum number of attempts to take memory from one session

}  // namespace

Tiers::Tiers(memory::Disk* disk, std::chrono::milliseconds patience)
    : disk_(disk), patience_(patience) {
  spiller_ = core::start_thread([this] { work(); });
}

Tiers::~Tiers() {
  {
    core::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  spiller_.join();
}

// ---------------------------------------------------------------- functions for any thread

void Tiers::join(Member* member, const std::string& user) {
  if (disk_ != nullptr) {
    member->share_ = disk_->share(user);
    member->pool(kHostIndex).moved_storages().set_disk(disk_, member->share_);
  }
  core::MutexLock lock(mu_);
  members_.push_back(member);
}

bool Tiers::leave(Member* member) {
  std::vector<RequestRef> over;
  bool strand = false;
  {
    core::MutexLock lock(mu_);
    std::erase(members_, member);
    const bool mover = std::this_thread::get_id() == spiller_.get_id();  // called inside an answer
    while (!mover && (busy_with_ == member || victim_ == member)) {
      (victim_ == member ? stop_victim_ : stop_request_) = true;
      released_.wait(mu_);
    }
    strand = std::exchange(member->yielded_, false);
    for (const RequestRef& request : requests_) {
      if (request->member != member) continue;
      over.push_back(request);
      strand = strand || !request->done;
    }
    std::erase_if(requests_, [&](const RequestRef& request) { return request->member == member; });
  }
  for (const RequestRef& request : over) {
    if (request->done) request->done(nullptr);
  }
  return strand;
}

bool Tiers::wait(Member* member, Need need) {
  std::unordered_set<const void*> known;
  std::erase_if(need.operands,
                [&](const StorageRef& each) { return !known.insert(each.get()).second; });
  auto request = std::make_shared<Request>();
  request->member = member;
  request->need = std::move(need);
  {
    core::MutexLock lock(mu_);
    if (std::find(members_.begin(), members_.end(), member) == members_.end()) return false;
    requests_.push_back(std::move(request));
  }
  changed_.notify_all();
  return true;
}

bool Tiers::yielded(Member* member) {
  {
    core::MutexLock lock(mu_);
    if (std::find(members_.begin(), members_.end(), member) == members_.end()) return false;
    member->yielded_ = true;
    member->seen_ = false;
  }
  changed_.notify_all();
  return true;
}

void Tiers::hurry(Member* member) {
  {
    core::MutexLock lock(mu_);
    for (const RequestRef& request : requests_) {
      if (request->member != member || request->done) continue;
      request->hurry = true;
      if (busy_with_ == member) stop_request_ = true;
    }
  }
  changed_.notify_all();
}

void Tiers::allocate(Member* member, std::size_t device, std::size_t bytes, std::uint64_t seq,
                     std::function<void(StorageRef)> done) {
  auto request = std::make_shared<Request>();
  request->member = member;
  request->need.bytes.resize(device + 1);
  request->need.bytes[device] = bytes;
  request->seq = seq;
  {
    core::MutexLock lock(mu_);
    if (std::find(members_.begin(), members_.end(), member) != members_.end()) {
      request->done = std::exchange(done, nullptr);
      requests_.push_back(std::move(request));
    }
  }
  if (done) return done(nullptr);
  changed_.notify_all();
}

Tiers::StorageRef Tiers::allocate(Member* member, std::size_t device, std::size_t bytes,
                                  std::uint64_t seq) {
  core::Mutex mu;
  core::CondVar answered;
  bool done = false;
  StorageRef result;
  allocate(member, device, bytes, seq, [&](StorageRef storage) {
    core::MutexLock lock(mu);
    result = std::move(storage);
    done = true;
    answered.notify_all();
  });
  core::MutexLock lock(mu);
  while (!done) answered.wait(mu);
  return result;
}

// ---------------------------------------------------------------- the spiller's thread

void Tiers::work() {
  while (true) {
    if (disk_ != nullptr) disk_->delete_discarded();
    std::vector<RequestRef> round;
    {
      core::MutexLock lock(mu_);
      if (stopping_) return;
      if (requests_.empty()) {
        bool frozen = false;
        for (const Member* member : members_) frozen = frozen || member->yielded_;
        if (!frozen) {
          if (disk_ != nullptr && disk_->in_use()) {
            changed_.wait_for(mu_, kTidy);
          } else {
            changed_.wait(mu_);
          }
        }
      }
      for (Member* member : members_) member->seen_ = member->yielded_;
      round.assign(requests_.begin(), requests_.end());
    }
    bool served = false;
    for (const RequestRef& request : round) {
      {
        core::MutexLock lock(mu_);
        if (std::find(requests_.begin(), requests_.end(), request) == requests_.end()) continue;
        busy_with_ = request->member;
        stop_request_ = request->hurry;
      }
      served = serve(*request) || served;
      {
        core::MutexLock lock(mu_);
        busy_with_ = nullptr;
      }
      released_.notify_all();
    }
    thaw_yielded(false);
    if (served || round.empty()) continue;
    core::MutexLock lock(mu_);
    if (!stopping_) changed_.wait_for(mu_, kLook);
  }
}

bool Tiers::serve(Request& request) {
  Found found = Found::kRoom;
  {
    core::MutexLock lock(mu_);
    if (request.hurry) found = Found::kNever;
  }
  if (found == Found::kNever) {
    answer(request, nullptr, true);
    return true;
  }
  found = bring_back(request);
  StorageRef storage;
  // Keep the memory reserved until the session continues. Otherwise the next request would take it,
  // this session would take that one's memory in turn, and so on forever.
  std::vector<std::uint64_t> granted(request.need.bytes.size());
  for (std::size_t i = 0; i < granted.size() && found == Found::kRoom; ++i) {
    if (request.need.bytes[i] > 0) found = find_room(request, i, granted, storage);
  }
  if (found != Found::kRoom) {
    for (std::size_t i = 0; i < granted.size(); ++i) request.member->pool(i).release(granted[i]);
    granted.clear();
  }
  if (found == Found::kLater) return false;
  if (found == Found::kRoom) bring_prefetches(request);
  answer(request, std::move(storage), found == Found::kRoom, std::move(granted));
  return true;
}

// Room was made several times, but other sessions took it each time: try again later. If there is
// still room, the device's memory is fragmented: give up.
Tiers::Found Tiers::out_of_tries(const Pool& pool, std::size_t bytes) {
  return pool.room_for(bytes) == Pool::Short::kNothing ? Found::kNever : Found::kLater;
}

Tiers::Found Tiers::find_room(Request& request, std::size_t device,
                              std::vector<std::uint64_t>& granted, StorageRef& storage) {
  Pool& pool = request.member->pool(device);
  const std::size_t bytes = request.need.bytes[device];
  for (int tries = 0;; ++tries) {
    if (request.done) {
      if ((storage = pool.allocate_shared(bytes, request.seq))) return Found::kRoom;
    } else if (pool.reserve(memory::charged_bytes(bytes))) {
      granted[device] = memory::charged_bytes(bytes);
      return Found::kRoom;
    }
    const Found found =
        tries < kRoomTries ? make_room(request, device, bytes) : out_of_tries(pool, bytes);
    if (found != Found::kRoom) return found;
  }
}

Status Tiers::timed(Request& request, const memory::Storage& storage,
                    const std::function<Status()>& move) {
  const auto began = Clock::now();
  Status status = move();
  request.transfers += Clock::now() - began;
  if (status.ok()) {
    request.part += static_cast<double>(storage.bytes()) /
                    static_cast<double>(storage.pool().account().quota());
  }
  return status;
}

Status Tiers::move_in(Request& request, memory::Storage& storage) {
  return timed(request, storage, [&] {
    return storage.pool().moved_storages().move_in(storage, [this] { return !stop_request_; });
  });
}

Tiers::Found Tiers::bring_back(Request& request) {
  for (const StorageRef& storage : request.need.operands) {
    // Storages of other sessions are published, and those are never moved.
    for (int tries = 0; storage->data() == nullptr; ++tries) {
      const Status status = move_in(request, *storage);
      if (status.code() == Code::kCancelled) return Found::kLater;
      // If the contents are lost (damaged file or lost device), the instruction that uses them
      // fails.
      if (status.code() != Code::kResourceExhausted) break;
      const std::size_t device = request.member->device_of(*storage);
      const Found found = tries < kRoomTries ? make_room(request, device, storage->bytes())
                                             : out_of_tries(storage->pool(), storage->bytes());
      if (found != Found::kRoom) return found;
    }
  }
  return Found::kRoom;
}

void Tiers::bring_prefetches(Request& request) {
  for (const StorageRef& prefetch : request.need.prefetch) {
    if (prefetch->data() != nullptr || stop_request_) continue;
    if (prefetch->pool().room_for(prefetch->bytes() + prefetch->bytes() / 8) !=
        Pool::Short::kNothing) {
      break;
    }
    (void)move_in(request, *prefetch);
  }
}

bool Tiers::in_turn(const Member& member, bool idle) const {
  const auto now = Clock::now();
  if (now >= member.turn_ends_) return false;
  if (!idle) return true;
  const Clock::time_point active{Clock::duration(member.active_at_.load())};
  return now - active < std::max<std::chrono::nanoseconds>(member.transfers_, kMinIdle);
}

// Memory within another user's guarantee must not be taken.
bool Tiers::is_evictable(Member& member, const Lack& lack) {
  const memory::UserBudget* const whose = member.pool(lack.device).account().user();
  const bool own = whose == lack.pool.account().user() && whose != nullptr;
  if (lack.why == Pool::Short::kUser) return own;
  return own || whose == nullptr || whose->used() > whose->guaranteed();
}

Tiers::Place Tiers::place(const Request& request, const Member& member) {
  core::MutexLock lock(mu_);
  Place here = Place::kAhead;
  for (const RequestRef& each : requests_) {
    if (each.get() == &request) here = Place::kBehind;
    if (each->member == &member && !each->done) return here;
  }
  return Place::kNone;
}

// The memory of a device that the request needs at the same time.
std::uint64_t Tiers::working_set(const Request& request, const Pool& pool, std::size_t device) {
  std::uint64_t bytes = 0;
  for (const StorageRef& each : request.need.operands) {
    if (&each->pool() == &pool) bytes += memory::charged_bytes(each->bytes());
  }
  const std::size_t more = device < request.need.bytes.size() ? request.need.bytes[device] : 0;
  return bytes + memory::charged_bytes(more);
}

bool Tiers::stopped(const Request& request) {
  core::MutexLock lock(mu_);
  return request.hurry || stopping_ || stop_request_;
}

bool Tiers::claim_victim(Member* member) {
  core::MutexLock lock(mu_);
  if (std::find(members_.begin(), members_.end(), member) == members_.end()) return false;
  victim_ = member;
  return true;
}

void Tiers::leave_victim() {
  {
    core::MutexLock lock(mu_);
    victim_ = nullptr;
    stop_victim_ = false;  // the stop applied to this session only
  }
  released_.notify_all();
}

void Tiers::note_nothing(Request& request, Member& member, std::size_t device) {
  Request::Tried& tried = request.tried[{&member, device}];
  if (tried.pinned > 0) {
    const auto now = Clock::now();
    if (request.patient_until == Clock::time_point{}) request.patient_until = now + patience_;
    if (now < request.patient_until) return;
    member.pool(device).moved_storages().pins_last();  // later requests do not wait for these pins
    tried.pinned = 0;
  }
  tried.used = member.pool(device).account().used();
  ++tried.times;
}

bool Tiers::has_nothing(const Request& request, Member& member, std::size_t device) {
  const auto found = request.tried.find({&member, device});
  return found != request.tried.end() &&
         (found->second.times >= kMaxAttempts ||
          member.pool(device).account().used() <= found->second.used);
}

Tiers::Found Tiers::make_room(Request& request, std::size_t device, std::size_t bytes) {
  Pool& pool = request.member->pool(device);
  const Lack lack{device, bytes, pool.room_for(bytes), pool};
  if (lack.why == Pool::Short::kNothing) return Found::kRoom;
  if (working_set(request, pool, device) > pool.account().quota()) return Found::kNever;
  if (device == kHostIndex && disk_ == nullptr) return Found::kNever;
  std::vector<Member*> others;
  if (lack.why != Pool::Short::kSession) {
    core::MutexLock lock(mu_);
    for (Member* member : members_) {
      if (member != request.member && !has_nothing(request, *member, device)) {
        others.push_back(member);
      }
    }
  }
  std::stable_sort(others.begin(), others.end(), [](const Member* a, const Member* b) {
    return a->active_at_.load() < b->active_at_.load();
  });
  for (auto& [whose, tried] : request.tried) tried.pinned = 0;
  bool later = false;
  // Storages kept by name are moved last.
  for (const bool kept : {false, true}) {
    for (Member* member : others) {
      if (stopped(request)) return Found::kLater;
      if (!claim_victim(member)) continue;
      if (is_evictable(*member, lack) && !evict_idle(request, *member, lack, kept)) later = true;
      leave_victim();
      if (lack.met()) return Found::kRoom;
    }
  }
  for (Member* member : others) {
    if (stopped(request)) return Found::kLater;
    if (!claim_victim(member)) continue;
    if (!has_nothing(request, *member, device) && is_evictable(*member, lack) &&
        !evict_busy(request, *member, lack)) {
      later = true;
    }
    leave_victim();
    if (lack.met()) return Found::kRoom;
  }
  const Found found = later ? Found::kLater : evict_own(request, lack);
  return found == Found::kNever && pins_suffice(request, lack) ? Found::kLater : found;
}

bool Tiers::pins_suffice(const Request& request, const Lack& lack) {
  std::uint64_t pinned = 0;
  for (const auto& [whose, tried] : request.tried) pinned += tried.pinned;
  if (pinned == 0) return false;
  return pinned >= lack.bytes || lack.pool.room_for(lack.bytes - pinned) == Pool::Short::kNothing;
}

bool Tiers::evict_idle(Request& request, Member& member, const Lack& lack, bool kept) {
  if (in_turn(member, true)) return false;
  if (!member.freeze()) return true;
  // If the session received work meanwhile, it is asked to yield later.
  if (!move_away(request, member, lack, kept, true) && kept && !member.has_work()) {
    note_nothing(request, member, lack.device);
  }
  member.thaw();
  return true;
}

bool Tiers::evict_busy(Request& request, Member& member, const Lack& lack) {
  const bool mine = in_turn(*request.member, false);
  const Place waiting = place(request, member);
  bool yielded = false;
  {
    core::MutexLock lock(mu_);
    yielded = member.yielded_;
  }
  // If both wait within their turns, the earlier request has precedence.
  const bool first = mine && waiting == Place::kBehind;
  if ((in_turn(member, false) && !first) || (waiting == Place::kAhead && !mine)) return false;
  if (!yielded && waiting == Place::kNone) {
    member.ask_to_yield(member.asked_ = true);
    return false;
  }
  if (!move_all_away(request, member, lack)) note_nothing(request, member, lack.device);
  if (yielded) {
    member.ask_to_yield(member.asked_ = false);
    {
      core::MutexLock lock(mu_);
      member.yielded_ = false;
    }
    member.thaw();
  }
  return true;
}

// Takes memory from the requesting session itself; if it is running, it is asked to yield first.
Tiers::Found Tiers::evict_own(Request& request, const Lack& lack) {
  Member& own = *request.member;
  if (has_nothing(request, own, lack.device)) return Found::kNever;
  bool here = !request.done;
  if (!here) {
    core::MutexLock lock(mu_);
    here = own.yielded_;
    for (const RequestRef& each : requests_) here = here || (each->member == &own && !each->done);
  }
  const bool frozen = !here && own.freeze();
  if (!here && !frozen) {
    own.ask_to_yield(own.asked_ = true);
    return Found::kLater;
  }
  const bool any = move_all_away(request, own, lack);
  if (frozen) own.thaw();
  if (lack.met()) return Found::kRoom;
  if (!any) note_nothing(request, own, lack.device);
  // If storages were moved and there is still no room, another session has taken the memory that
  // became free, and the request is tried again later.
  return any || stopped(request) ? Found::kLater : Found::kNever;
}

bool Tiers::move_all_away(Request& request, Member& member, const Lack& lack) {
  bool any = move_away(request, member, lack, false, false);
  if (!lack.met()) any = move_away(request, member, lack, true, false) || any;
  return any;
}

bool Tiers::move_away(Request& request, Member& member, const Lack& lack, bool kept, bool idle) {
  std::unordered_set<const void*> stay;
  if (!kept && !member.kept(stay)) return false;
  if (&member == request.member) {
    for (const StorageRef& each : request.need.operands) stay.insert(each.get());
  }
  std::uint64_t pinned = 0;
  std::vector<StorageRef> found = member.pool(lack.device).moved_storages().movable(&pinned);
  // The session's own pinned uploads are bound only by commands after the waiting instruction, so
  // waiting for them is useless.
  const bool waits = &member == request.member && !request.done;
  request.tried[{&member, lack.device}].pinned = waits ? 0 : pinned;
  std::erase_if(found, [&](const StorageRef& each) { return stay.contains(each.get()); });
  std::stable_sort(found.begin(), found.end(), [](const StorageRef& a, const StorageRef& b) {
    return a->used_at() < b->used_at();
  });
  const std::size_t goal = std::max(lack.bytes, kBatch);
  const auto go_on = [&] {
    return !stop_request_ && !stop_victim_ && !(idle && member.has_work());
  };
  std::uint64_t moved = 0;
  for (const StorageRef& storage : found) {
    if (moved >= goal && lack.met()) break;
    const Status status =
        timed(request, *storage, [&] { return move_one(member, lack.device, *storage, go_on); });
    // A smaller storage may fit where this one does not.
    if (status.code() == Code::kResourceExhausted && disk_ == nullptr) continue;
    if (!status.ok()) break;
    moved += storage->bytes();
  }
  return moved > 0;
}

// Moves a storage of a device to the host, or if that has no room, to the disk, like a storage of
// the host.
Status Tiers::move_one(Member& member, std::size_t device, memory::Storage& storage,
                       const std::function<bool()>& go_on) {
  Pool& from = member.pool(device);
  if (device != kHostIndex) {
    Status status = from.moved_storages().move_to_host(storage, member.pool(kHostIndex), go_on);
    if (status.code() != Code::kResourceExhausted || disk_ == nullptr) return status;
  }
  return from.moved_storages().move_out(storage, *disk_, member.share_, go_on);
}

void Tiers::answer(Request& request, StorageRef storage, bool room,
                   std::vector<std::uint64_t> granted) {
  Member& member = *request.member;
  if (request.transfers.count() > 0) {
    const auto now = Clock::now();
    if (now >= member.turn_ends_) {
      member.turn_began_ = now;
      member.transfers_ = {};
      member.part_ = 0;
    }
    // A turn counts transfers of at most all of the session's memory, out and in. Otherwise a
    // session that is larger than the memory, and therefore moves all the time, would have an
    // endless turn.
    if (member.part_ < 2) member.transfers_ += request.transfers;
    member.part_ += request.part;
    member.turn_ends_ = member.turn_began_ + kTurns * member.transfers_;
  }
  RequestRef hold;
  {
    core::MutexLock lock(mu_);
    const auto found = std::find_if(requests_.begin(), requests_.end(),
                                    [&](const RequestRef& each) { return each.get() == &request; });
    hold = *found;
    requests_.erase(found);
  }
  if (request.done) return request.done(std::move(storage));
  // Released first, because the session checks for other references to its operands.
  request.need = {};
  member.active(Clock::now());
  member.go_on(room, std::move(granted));
}

// Resumes sessions that yielded to a request, if no request needs their memory any more.
void Tiers::thaw_yielded(bool all) {
  std::vector<Member*> members;
  {
    core::MutexLock lock(mu_);
    for (Member* member : members_) {
      if (member->yielded_ ? all || member->seen_ : member->asked_ && requests_.empty()) {
        members.push_back(member);
      }
    }
  }
  for (Member* member : members) {
    if (!claim_victim(member)) continue;
    member->ask_to_yield(member->asked_ = false);
    bool frozen = false;
    {
      core::MutexLock lock(mu_);
      frozen = std::exchange(member->yielded_, false);
    }
    if (frozen) member->thaw();
    leave_victim();
  }
}

}  // namespace teletensor::runtime
