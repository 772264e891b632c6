#include "clients/session/frames/late_errors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace teletensor::client {

namespace {

bool is_shortage(const wire::ErrorEvent& error) {
  return error.status.code() == core::Code::kResourceExhausted;
}

bool cancelled(const wire::ErrorEvent& error, std::uint64_t upto) {
  return error.root <= upto && error.status.code() == core::Code::kCancelled;
}

}  // namespace

void LateErrors::add(wire::ErrorEvent error) {
  if (!roots_.insert(error.root).second) return;
  if (shortage_ == 0 && is_shortage(error)) shortage_ = error.root;
  errors_.push_back(std::move(error));
  any_ = true;
}

// Updates any_ and shortage_ after errors were removed from errors_.
void LateErrors::removed() {
  any_ = !errors_.empty();
  const auto found = std::find_if(errors_.begin(), errors_.end(), is_shortage);
  shortage_ = found == errors_.end() ? 0 : found->root;
}

void LateErrors::complete(std::uint64_t upto) {
  roots_.erase(roots_.begin(), roots_.upper_bound(upto));
}

std::vector<wire::ErrorEvent> LateErrors::take_alike(std::optional<core::Code> code) {
  std::vector<wire::ErrorEvent> taken;
  if (errors_.empty()) return taken;
  const core::Code wanted = code.value_or(errors_.front().status.code());
  const auto others = std::stable_partition(
      errors_.begin(), errors_.end(),
      [&](const wire::ErrorEvent& error) { return error.status.code() == wanted; });
  taken.assign(std::move_iterator(errors_.begin()), std::move_iterator(others));
  errors_.erase(errors_.begin(), others);
  removed();
  std::sort(taken.begin(), taken.end(),
            [](const wire::ErrorEvent& a, const wire::ErrorEvent& b) { return a.root < b.root; });
  return taken;
}

std::vector<wire::ErrorEvent> LateErrors::take_all() {
  std::vector<wire::ErrorEvent> taken(std::move_iterator(errors_.begin()),
                                      std::move_iterator(errors_.end()));
  errors_.clear();
  removed();
  return taken;
}

std::uint64_t LateErrors::take_cancelled(std::uint64_t upto) {
  const auto found = std::find_if(errors_.begin(), errors_.end(),
                                  [&](const auto& error) { return cancelled(error, upto); });
  if (found == errors_.end()) return 0;
  const std::uint64_t root = found->root;
  errors_.erase(found);
  removed();
  return root;
}

std::uint64_t LateErrors::first_cancelled(std::uint64_t upto) const {
  std::uint64_t first = 0;
  for (const wire::ErrorEvent& error : errors_) {
    if (!cancelled(error, upto)) continue;
    first = first == 0 ? error.root : std::min(first, error.root);
  }
  return first;
}

std::optional<std::vector<std::uint64_t>> Raises::finish(SentRaise raise) {
  sent_.pop_front();
  finished_upto_ = raise.seq;
  const auto found = answers_.find(raise.seq);
  if (found == answers_.end()) return std::nullopt;
  std::vector<std::uint64_t> rebinds = std::move(found->second.rebinds);
  answers_.erase(found);
  return rebinds;
}

}  // namespace teletensor::client
