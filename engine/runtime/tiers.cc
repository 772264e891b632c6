#include "engine/runtime/tiers.h"

#include <algorithm>
#include <utility>

namespace teletensor::runtime {

using core::Code;
using core::Status;
using memory::Pool;

namespace {

constexpr std::chrono::milliseconds kLook{10};       // while a request has to wait for others
constexpr std::chrono::seconds kTidy{1};             // while something is on the disk
constexpr std::chrono::milliseconds kLeastIdle{50};  // so long without work ends a turn
// At least so much is moved away at a time: what comes next needs room as well.
constexpr std::size_t kBatch = std::size_t{16} << 20;

}  // namespace

Tiers::Tiers(memory::Disk& disk) : disk_(disk) {
  mover_ = std::thread([this] { work(); });
}

Tiers::~Tiers() {
  {
    core::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  mover_.join();
}

// ---------------------------------------------------------------- any thread

void Tiers::join(Member* member, const std::string& user) {
  member->share_ = disk_.share(user);
  member->host_pool().set_disk(&disk_, member->share_);
  core::MutexLock lock(mu_);
  members_.push_back(member);
}

bool Tiers::leave(Member* member) {
  std::vector<RequestRef> over;
  bool strand = false;
  {
    core::MutexLock lock(mu_);
    std::erase(members_, member);
    const bool mover = std::this_thread::get_id() == mover_.get_id();  // in an answer
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

void Tiers::allocate(Member* member, std::size_t bytes, std::uint64_t seq,
                     std::function<void(StorageRef)> done) {
  auto request = std::make_shared<Request>();
  request->member = member;
  request->need.bytes = bytes;
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

Tiers::StorageRef Tiers::allocate(Member* member, std::size_t bytes, std::uint64_t seq) {
  core::Mutex mu;
  core::CondVar answered;
  bool done = false;
  StorageRef result;
  allocate(member, bytes, seq, [&](StorageRef storage) {
    core::MutexLock lock(mu);
    result = std::move(storage);
    done = true;
    answered.notify_all();
  });
  core::MutexLock lock(mu);
  while (!done) answered.wait(mu);
  return result;
}

// ---------------------------------------------------------------- the mover

void Tiers::work() {
  while (true) {
    disk_.bury();
    std::vector<RequestRef> round;
    {
      core::MutexLock lock(mu_);
      if (stopping_) return;
      if (requests_.empty()) {
        bool frozen = false;
        for (const Member* member : members_) frozen = frozen || member->yielded_;
        if (!frozen) {
          if (disk_.in_use()) {
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
  Pool& pool = request.member->host_pool();
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
  for (int tries = 0; found == Found::kRoom && request.need.bytes > 0; ++tries) {
    if (request.done) {
      if ((storage = pool.allocate_shared(request.need.bytes, request.seq))) break;
    } else if (pool.room_for(request.need.bytes) == Pool::Short::kNothing) {
      break;
    }
    found = tries < 8 ? make_room(request, request.need.bytes) : Found::kNever;
  }
  if (found == Found::kLater) return false;
  if (found == Found::kRoom) {
    for (const StorageRef& wished : request.need.wished) {
      if (wished->data() != nullptr || stop_request_) continue;
      const std::size_t both = wished->bytes() + request.need.bytes;
      if (pool.room_for(both + both / 8) != Pool::Short::kNothing) break;
      const auto began = Clock::now();
      (void)pool.move_in(*wished, [this] { return !stop_request_; });
      request.transfers += Clock::now() - began;
    }
  }
  answer(request, std::move(storage), found == Found::kRoom);
  return true;
}

Tiers::Found Tiers::bring_back(Request& request) {
  Pool& pool = request.member->host_pool();
  for (const StorageRef& storage : request.need.operands) {
    // Others' storages are published, and those never move.
    for (int tries = 0; storage->data() == nullptr; ++tries) {
      const auto began = Clock::now();
      const Status status = pool.move_in(*storage, [this] { return !stop_request_; });
      request.transfers += Clock::now() - began;
      if (status.ok() || status.code() == Code::kDataLoss) break;
      if (status.code() == Code::kCancelled) return Found::kLater;
      const Found found = tries < 8 ? make_room(request, storage->bytes()) : Found::kNever;
      if (found != Found::kRoom) return found;
    }
  }
  return Found::kRoom;
}

bool Tiers::in_turn(const Member& member, bool idle) const {
  const auto now = Clock::now();
  if (now >= member.turn_ends_) return false;
  if (!idle) return true;
  const Clock::time_point active{Clock::duration(member.active_at_.load())};
  return now - active < std::max<std::chrono::nanoseconds>(member.transfers_, kLeastIdle);
}

// What others are guaranteed stays theirs.
bool Tiers::may_lose(const Request& request, Member& member, Pool::Short why) const {
  const memory::UserBudget* const whose = member.host_pool().account().user();
  const bool own = whose == request.member->host_pool().account().user() && whose != nullptr;
  if (why == Pool::Short::kUser) return own;
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

bool Tiers::stopped(const Request& request) {
  core::MutexLock lock(mu_);
  return request.hurry || stopping_ || stop_request_;
}

bool Tiers::take_victim(Member* member) {
  core::MutexLock lock(mu_);
  if (std::find(members_.begin(), members_.end(), member) == members_.end()) return false;
  victim_ = member;
  stop_victim_ = false;
  return true;
}

void Tiers::leave_victim() {
  {
    core::MutexLock lock(mu_);
    victim_ = nullptr;
  }
  released_.notify_all();
}

Tiers::Found Tiers::make_room(Request& request, std::size_t bytes) {
  Pool& pool = request.member->host_pool();
  const Pool::Short why = pool.room_for(bytes);
  if (why == Pool::Short::kNothing) return Found::kRoom;
  if (memory::charged_bytes(bytes) > pool.account().quota()) return Found::kNever;
  const auto enough = [&] { return pool.room_for(bytes) == Pool::Short::kNothing; };
  std::vector<Member*> others;
  if (why != Pool::Short::kSession) {
    core::MutexLock lock(mu_);
    for (Member* member : members_) {
      if (member != request.member && !request.tried.contains(member)) others.push_back(member);
    }
  }
  std::stable_sort(others.begin(), others.end(), [](const Member* a, const Member* b) {
    return a->active_at_.load() < b->active_at_.load();
  });
  bool later = false;
  // Those that have nothing to do; then what they keep by name.
  for (const bool kept : {false, true}) {
    for (Member* member : others) {
      if (stopped(request)) return Found::kLater;
      if (!take_victim(member)) continue;
      if (may_lose(request, *member, why)) {
        if (in_turn(*member, true)) {
          later = true;
        } else if (member->freeze()) {
          if (!move_away(request, *member, bytes, kept, true) && kept) request.tried.insert(member);
          member->thaw();
        }
      }
      leave_victim();
      if (enough()) return Found::kRoom;
    }
  }
  // Those that wait behind this one, or for its turn to end, and those that run: they are asked to
  // stop for it.
  const bool mine = in_turn(*request.member, false);
  for (Member* member : others) {
    if (stopped(request)) return Found::kLater;
    if (request.tried.contains(member) || !take_victim(member)) continue;
    if (may_lose(request, *member, why)) {
      const Place waiting = place(request, *member);
      bool yielded = false;
      {
        core::MutexLock lock(mu_);
        yielded = member->yielded_;
      }
      if (in_turn(*member, false) || (waiting == Place::kAhead && !mine)) {
        later = true;
      } else if (yielded || waiting != Place::kNone) {
        bool any = move_away(request, *member, bytes, false, false);
        if (!enough()) any = move_away(request, *member, bytes, true, false) || any;
        if (!any) request.tried.insert(member);
        if (yielded) {
          member->ask_to_yield(member->asked_ = false);
          {
            core::MutexLock lock(mu_);
            member->yielded_ = false;
          }
          member->thaw();
        }
      } else {
        member->ask_to_yield(member->asked_ = true);
        later = true;
      }
    }
    leave_victim();
    if (enough()) return Found::kRoom;
  }
  if (later) return Found::kLater;
  // Its own. Where it is not here, it is asked for as well.
  Member& own = *request.member;
  if (request.tried.contains(&own)) return Found::kNever;
  bool any = false, here = !request.done;
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
  for (const bool kept : {false, true}) {
    if (!enough()) any = move_away(request, own, bytes, kept, false) || any;
  }
  if (frozen) own.thaw();
  if (enough()) return Found::kRoom;
  if (!any) request.tried.insert(&own);
  return stopped(request) ? Found::kLater : Found::kNever;
}

bool Tiers::move_away(Request& request, Member& member, std::size_t bytes, bool kept, bool idle) {
  Pool& pool = request.member->host_pool();
  Pool& from = member.host_pool();
  std::unordered_set<const void*> stay;
  if (!kept && !member.kept(stay)) return false;
  if (&member == request.member) {
    for (const StorageRef& each : request.need.operands) stay.insert(each.get());
  }
  std::vector<StorageRef> found = from.movable();
  std::erase_if(found, [&](const StorageRef& each) { return stay.contains(each.get()); });
  std::stable_sort(found.begin(), found.end(), [](const StorageRef& a, const StorageRef& b) {
    return a->used_at() < b->used_at();
  });
  const std::size_t goal = std::max(bytes, kBatch);
  const auto go_on = [&] {
    return !stop_request_ && !stop_victim_ && !(idle && member.has_work());
  };
  std::uint64_t moved = 0;
  for (const StorageRef& storage : found) {
    if (moved >= goal && pool.room_for(bytes) == Pool::Short::kNothing) break;
    const auto began = Clock::now();
    const Status status = from.move_out(*storage, disk_, member.share_, go_on);
    request.transfers += Clock::now() - began;
    if (!status.ok()) break;
    moved += storage->bytes();
  }
  return moved > 0;
}

void Tiers::answer(Request& request, StorageRef storage, bool room) {
  Member& member = *request.member;
  if (request.transfers.count() > 0) {
    const auto now = Clock::now();
    if (now >= member.turn_ends_) {
      member.turn_began_ = now;
      member.transfers_ = {};
    }
    member.transfers_ += request.transfers;
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
  request.need = {};  // before it runs: it looks who else holds its operands
  member.active(Clock::now());
  member.go_on(room);
}

// Those that stopped for somebody who needs nothing of them any more.
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
    if (!take_victim(member)) continue;
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
