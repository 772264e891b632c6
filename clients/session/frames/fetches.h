// Fetches holds the values that a session has fetched: those that were received and not taken, and
// which outstanding ones are expected or are not wanted any more.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "proto/wire/progress.h"

namespace teletensor::client {

// The object has no lock: the session calls it with the session's lock held. A fetch has the number
// of its command.
class Fetches {
 public:
  // The value of this fetch is to be received even if a restarted daemon computes it again.
  void expect(std::uint64_t seq) { expected_.insert(seq); }
  // Stores a value, unless it is not wanted. Values of fetches up to `replayed_upto`, which a
  // restarted daemon has computed again, are stored only if they are still expected.
  void receive(wire::FetchedValue value, std::uint64_t replayed_upto);
  bool received(std::uint64_t seq) const { return values_.contains(seq); }
  // Removes and returns a value. Nothing if it was not received, or was taken before.
  std::optional<wire::FetchedValue> take(std::uint64_t seq);
  // The value will not be taken: drops it, or ignores it when it is received.
  void drop(std::uint64_t seq) {
    if (values_.erase(seq) == 0) unwanted_.insert(seq);
  }

 private:
  std::map<std::uint64_t, wire::FetchedValue> values_;
  std::set<std::uint64_t> expected_;  // Fetches whose values were not received.
  std::set<std::uint64_t> unwanted_;  // Fetches whose values are ignored.
};

}  // namespace teletensor::client
