#include "engine/runtime/groups/rank_operations.h"

#include <algorithm>
#include <utility>

namespace teletensor::runtime {

using core::Status;

RankOperations::Open& RankOperations::start(Ticket ticket, Open::Kind kind,
                                            std::chrono::milliseconds timeout) {
  Open& open = open_[ticket];
  open.kind = kind;
  open.began = Groups::Clock::now();
  open.deadline = open.began + timeout;
  return open;
}

void RankOperations::await_sends(Ticket ticket, std::chrono::milliseconds timeout) {
  Open& open = start(ticket, Open::Kind::kAwaitSends, timeout);
  if (sends_.empty()) open.ended = std::exchange(lost_send_, std::nullopt).value_or(Status());
}

Groups::Outcome RankOperations::take(Ticket ticket) {
  const auto found = open_.find(ticket);
  Groups::Outcome outcome{*found->second.ended, found->second.sender};
  open_.erase(found);
  return outcome;
}

bool RankOperations::waits() const {
  return std::any_of(open_.begin(), open_.end(),
                     [](const auto& each) { return !each.second.ended; });
}

std::size_t RankOperations::unfinished() const {
  return static_cast<std::size_t>(std::count_if(
      open_.begin(), open_.end(), [](const auto& each) { return !each.second.ended; }));
}

collective::Number RankOperations::open_after(collective::Number number) const {
  return static_cast<collective::Number>(std::count_if(
      open_.begin(), open_.end(),
      [&](const auto& each) { return each.second.number > number && !each.second.ended; }));
}

void RankOperations::finish(Open& open, const Status& status, Waiters& met) {
  if (open.ended) return;
  open.ended = status;
  if (open.waiter != nullptr) met.push_back(std::exchange(open.waiter, nullptr));
}

void RankOperations::finish_collective(collective::Number number, const Status& status,
                                       Waiters& met) {
  for (auto& [ticket, open] : open_) {
    if (open.number == number) finish(open, status, met);
  }
}

void RankOperations::finish_all(Open::Kind kind, const Status& status, Waiters& met) {
  for (auto& [ticket, open] : open_) {
    if (open.kind == kind) finish(open, status, met);
  }
}

void RankOperations::finish_all(const Status& status, Waiters& met) {
  for (auto& [ticket, open] : open_) finish(open, status, met);
}

// A tensor that does not fit its receiver could be reported to the sender only if the receive was
// deposited first, so a send fails only if its receiver is lost or has left.
void RankOperations::transferred(const collective::Action& action, Waiters& met) {
  bool told = false;
  for (auto& [ticket, open] : open_) {
    if (open.token != action.token || open.ended) continue;
    open.sender = action.rank;
    if (open.kind != Open::Kind::kReceive && !action.lost) continue;
    finish(open, action.status, met);
    told = true;
  }
  const bool sent = sends_.erase(action.token) > 0;
  if (sent && action.lost && !told) lost_send_ = action.status;
  const bool awaited = std::any_of(open_.begin(), open_.end(), [](const auto& each) {
    return each.second.kind == Open::Kind::kAwaitSends && !each.second.ended;
  });
  if (!awaited || (!lost_send_ && !sends_.empty())) return;
  finish_all(Open::Kind::kAwaitSends, std::exchange(lost_send_, std::nullopt).value_or(Status()),
             met);
}

void RankOperations::postpone(Groups::Clock::duration passed) {
  for (auto& [ticket, open] : open_) open.deadline += passed;
}

}  // namespace teletensor::runtime
