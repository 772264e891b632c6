#include "server/state/write_order.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace teletensor::server {

void WriteOrder::expect(const Session& session) {
  expected_.insert_or_assign(session.key,
                             Expected{std::string(session.user), session.bytes, session.place});
}

std::optional<std::size_t> WriteOrder::choose(std::span<const Session> ready, Time now) const {
  std::set<const void*> have;
  for (const Session& each : ready) have.insert(each.key);
  std::optional<Rank> running;  // The first session in the order that cannot be written yet.
  for (const auto& [key, each] : expected_) {
    const Rank its = rank(each.user, each.bytes, each.place);
    if (!have.contains(key) && (!running || its < *running)) running = its;
  }
  std::optional<std::size_t> chosen;
  std::optional<Rank> best;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const Session& each = ready[i];
    const Rank its = rank(each.user, each.bytes, each.place);
    if (running && *running < its && now < latest_start(each.bytes)) continue;
    if (!best || its < *best) {
      best = its;
      chosen = i;
    }
  }
  return chosen;
}

void WriteOrder::charge(std::string_view user, std::uint64_t bytes) {
  const auto found = charged_.find(user);
  std::uint64_t& sum = found != charged_.end() ? found->second : charged_[std::string(user)];
  sum += bytes + kFile;
}

void WriteOrder::refund(std::string_view user, std::uint64_t bytes) {
  const auto found = charged_.find(user);
  if (found != charged_.end()) found->second -= std::min(found->second, bytes + kFile);
}

WriteOrder::Rank WriteOrder::rank(std::string_view user, std::uint64_t bytes, int place) const {
  const auto found = charged_.find(user);
  return {(found != charged_.end() ? found->second : 0) + bytes, place};
}

WriteOrder::Time WriteOrder::latest_start(std::uint64_t bytes) const {
  const std::chrono::duration<double> writing(static_cast<double>(bytes) / kBytesPerSecond);
  const auto wait = std::chrono::duration_cast<core::Clock::duration>(writing);
  return began_ + std::min(std::max<core::Clock::duration>(wait, kShortestWait), longest_wait_);
}

}  // namespace teletensor::server
