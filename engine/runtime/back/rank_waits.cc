#include "engine/runtime/back/rank_waits.h"

#include <memory>
#include <utility>

namespace teletensor::runtime {

bool RankWaits::request(CollectiveCalls::Open& open) {
  if (open.told) return !open.member->ended(open.ticket);
  state_.expect_notification();
  open.told = open.member->wait(open.ticket, this);
  if (!open.told) state_.drop_notification();
  return open.told;
}

bool RankWaits::wait(CollectiveCalls::Open& open, std::uint64_t seq) {
  if (!request(open)) return false;
  // Once the wait is registered, another lane may run this session and destroy `open`.
  const std::shared_ptr<Groups::Member> member = open.member;
  if (!state_.wait_for_rank(member, seq)) return false;
  opened(*member, seq);
  return true;
}

void RankWaits::opened(Groups::Member& member, std::uint64_t seq) {
  if (state_.stopping() || groups_.shuts_down()) {
    member.leave(state_.stopping() ? kSessionEnds : SessionGroups::kShutsDown);
  } else if (interrupts_.reaches(seq)) {
    member.give_up(kInterrupted);
  }
}

void RankWaits::met() {
  if (state_.notified()) lanes_.ready(task_);
}

void RankWaits::interrupt(std::uint64_t upto) {
  auto members = collectives_.members_upto(upto);
  if (auto member = state_.waits_for(upto)) members.push_back(std::move(member));
  for (const auto& member : members) member->give_up(kInterrupted);
}

}  // namespace teletensor::runtime
