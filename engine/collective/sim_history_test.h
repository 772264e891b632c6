// History: random programs of a group's ranks in a world with faults. check() verifies the
// conditions that hold at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/collective/sim_world_test.h"

namespace teletensor::collective::sim {

// Limits so small that a few hundred bytes exercise every path.
Limits small_limits();
// Ranks 0 to ranks - 1, with `each` adjoining ranks on a daemon.
std::vector<std::vector<Rank>> in_order(Rank ranks, Rank each);
// Appends a collective of all ranks with random operands to every program.
void add_collective(Plan& plan, Number number, const Call& call, Dice& dice);
Call random_call(Rank ranks, const std::vector<Rank>& present, std::int64_t largest, Dice& dice);
// A call of an elastic group.
Call random_replicated(Rank ranks, const std::vector<Rank>& present, Dice& dice);

class History {
 public:
  explicit History(std::uint64_t seed);
  // Runs the history. Returns the faults; there are none if the state machine works.
  std::vector<std::string> run();
  const World& world() const { return *world_; }

 private:
  void place_ranks(Dice& dice);
  void write_programs(Dice& dice);
  void add_transfers(Dice& dice);
  void break_calls(Dice& dice);
  void break_world(Dice& dice);
  void lose_ranks(Dice& dice);

  // Cuts of a group whose blocks have different sizes, with connections that are established late:
  // a place then sends its votes to places from which it receives none, and may release a cut
  // before it is connected with a place that has restarted.
  bool uneven_cuts_ = false;
  bool elastic_ = false;  // sessions end, and the group continues without their ranks
  Plan plan_;
  std::vector<Rank> present_;
  std::unique_ptr<World> world_;
  std::set<Rank> lethal_;  // ranks that stop or are killed
};

// Checks all conditions that hold for a world that has ended. The epoch may end because of `lethal`
// ranks.
std::vector<std::string> check(const World& world, const std::set<Rank>& lethal);

}  // namespace teletensor::collective::sim
