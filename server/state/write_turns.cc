#include "server/state/write_turns.h"

#include <algorithm>

namespace teletensor::server {

void WriteTurns::enter(const std::string& user) {
  Turn& turn = turns_[user];
  if (turn.waiting++ == 0) turn.start = std::max(turn.start, now_);
}

const std::string& WriteTurns::next() const {
  return std::ranges::min_element(turns_,
                                  [](const auto& a, const auto& b) {
                                    if ((a.second.waiting == 0) != (b.second.waiting == 0)) {
                                      return b.second.waiting == 0;
                                    }
                                    return a.second.start < b.second.start;
                                  })
      ->first;
}

void WriteTurns::begin(std::string_view user) {
  Turn& turn = turns_.find(user)->second;
  --turn.waiting;
  now_ = turn.start;
}

void WriteTurns::end(std::string_view user, double seconds) {
  turns_.find(user)->second.start += seconds;
  // A user that is not ahead is as a new one. If no session waits, all users are.
  const bool idle =
      std::ranges::all_of(turns_, [](const auto& each) { return each.second.waiting == 0; });
  std::erase_if(turns_, [&](const auto& each) {
    return each.second.waiting == 0 && (idle || each.second.start <= now_);
  });
}

}  // namespace teletensor::server
