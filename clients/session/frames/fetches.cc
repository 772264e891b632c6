#include "clients/session/frames/fetches.h"

#include <utility>

namespace teletensor::client {

void Fetches::receive(wire::FetchedValue value, std::uint64_t replayed_upto) {
  if (expected_.erase(value.seq) == 0 && value.seq <= replayed_upto) return;
  if (unwanted_.erase(value.seq) != 0) return;
  values_[value.seq] = std::move(value);
}

std::optional<wire::FetchedValue> Fetches::take(std::uint64_t seq) {
  const auto found = values_.find(seq);
  if (found == values_.end()) return std::nullopt;
  std::optional<wire::FetchedValue> value = std::move(found->second);
  values_.erase(found);
  return value;
}

}  // namespace teletensor::client
