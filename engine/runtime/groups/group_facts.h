// GroupFacts: information about a group for operators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teletensor::runtime {

struct GroupFacts {
  enum class State : std::uint8_t { kForming, kRunning, kEnded };
  struct Member {
    std::uint32_t rank = 0;
    std::string daemon;  // daemon of its session; empty: this daemon
    std::string who;     // name of the session; empty: it is in another daemon, or has left
    bool waits = false;  // it waits for other ranks
  };
  std::string user, name;  // together they identify the group
  std::uint32_t ranks = 0;
  State state = State::kForming;
  std::string why;                // the reason why it has ended
  std::uint64_t collectives = 0;  // number that ranks of this daemon have begun
  std::uint64_t open = 0;         // unfinished collectives and transfers of this daemon's ranks
  std::vector<Member> members;    // members that have joined, by rank
};

}  // namespace teletensor::runtime
