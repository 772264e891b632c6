#include "engine/runtime/profile.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "engine/core/clock.h"
#include "engine/runtime/lanes/lanes.h"

namespace teletensor::runtime {
namespace {

template <class T>
std::vector<T> take_front(std::vector<T>& from, std::size_t most) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(most, from.size()));
  std::vector<T> taken(std::make_move_iterator(from.begin()), std::make_move_iterator(end));
  from.erase(from.begin(), end);
  return taken;
}

// Appends an entry, or counts it as dropped if there is no room or no memory.
template <class T>
void append(std::vector<T>& entries, const T& entry, std::uint64_t& dropped) noexcept try {
  if (entries.size() < Profile::kMax) {
    entries.push_back(entry);
  } else {
    ++dropped;
  }
} catch (const std::bad_alloc&) {
  ++dropped;
}

}  // namespace

std::uint32_t Profile::lane() {
  static std::atomic<std::uint32_t> lanes{0};
  thread_local const std::uint32_t lane = ++lanes;
  return lane;
}

void Profile::turn(bool on) {
  core::MutexLock lock(mu_);
  if (on && !on_) recorded_ = {};
  on_ = on;
}

void Profile::add(const program::Span& span) noexcept {
  core::MutexLock lock(mu_);
  append(recorded_.spans, span, recorded_.dropped);
}

void Profile::arrived(std::uint64_t first_seq, std::uint64_t commands) {
  if (!on()) return;
  const std::uint64_t at = core::now_ns();
  core::MutexLock lock(mu_);
  append(recorded_.arrivals, program::Arrival{at, first_seq, commands}, recorded_.dropped);
}

program::Timeline Profile::take(std::size_t most) {
  core::MutexLock lock(mu_);
  program::Timeline taken;
  taken.now = core::now_ns();
  taken.spans = take_front(recorded_.spans, most);
  taken.arrivals = take_front(recorded_.arrivals, most);
  taken.dropped = recorded_.dropped;
  taken.more = !recorded_.spans.empty() || !recorded_.arrivals.empty();
  if (!taken.more && !on_) recorded_ = {};  // frees its memory
  return taken;
}

void Profile::Timer::begin(Profile& profile, std::uint64_t seq, program::OpId op,
                           std::uint32_t steps) {
  profile_ = &profile;
  given_ = Lanes::given_ns();
  span_ = {core::now_ns(), 0, seq, op, steps, lane()};
}

void Profile::Timer::end() {
  span_.ns = core::now_ns() - span_.begin - (Lanes::given_ns() - given_);
  profile_->add(span_);
}

}  // namespace teletensor::runtime
