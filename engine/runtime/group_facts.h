// GroupFacts: what an operator is told of a group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teletensor::runtime {

struct GroupFacts {
  enum class State : std::uint8_t { kForming, kRunning, kEnded };
  struct Member {
    std::uint32_t rank = 0;
    std::string daemon;  // of its session; empty: this one
    std::string who;     // the session; empty: it is in another daemon, or has left
    bool waits = false;  // for other ranks
  };
  std::string user, name;  // together they name it
  std::uint32_t ranks = 0;
  State state = State::kForming;
  std::string why;                // it has ended
  std::uint64_t collectives = 0;  // that the ranks of this daemon have begun
  std::uint64_t open = 0;       // collectives and transfers of the ranks of this daemon, not ended
  std::vector<Member> members;  // that have joined, by rank
};

}  // namespace teletensor::runtime
