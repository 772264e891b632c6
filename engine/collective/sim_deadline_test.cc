// The simulator's deadlines: checks whether a lost rank explains each one. Also lists entries that
// are left at the end.
#include <algorithm>

#include "engine/collective/sim_world_test.h"

namespace teletensor::collective::sim {

// Lets time pass for one step: first the patience, which is half of the deadline, and then the rest
// of the deadline.
void World::watch(Rank rank, std::size_t index, std::uint64_t token, Time half) {
  at(now + half, [this, rank, index, token, half] {
    const Place place = group_.place_of(rank);
    const Step& step = programs_[rank][index];
    if (!alive(place) || step.state != Step::State::kDeposited || step.token != token) return;
    Participant& participant = *nodes_[place].participant;
    if (now - step.since < plan_.deadline) {
      if (step.number != 0) participant.patience_passed(step.number);
      settle(place);
      return watch(rank, index, token, half);
    }
    pass_deadline(rank, step);
    if (step.state != Step::State::kDeposited) return;
    // A step may stay open after its deadline only while a cut is in progress, because deadlines
    // have no effect then.
    if (!alive(place) || !nodes_[place].participant->cut().holding())
      complain("hangs past its deadline");
    watch(rank, index, token, half);
  });
}

void World::pass_deadline(Rank rank, const Step& step) {
  const Place place = group_.place_of(rank);
  std::set<Number> seen;
  const bool explained = waits_for_lost(rank, step, seen);
  if (step.number != 0) {
    nodes_[place].participant->deadline_passed(step.number);
  } else {
    nodes_[place].participant->deadline_passed_point_to_point(step.token);
  }
  settle(place);
  const std::optional<core::Status>& ended = nodes_[place].ended;
  if (!ended) return;
  if (!explained) complain("nothing explains: " + ended->message());
  if (step.number == 0 && partner_has_left(rank, step)) {
    complain("waits for a rank that has left: " + ended->message());
  }
  timeouts.insert(ended->message());
}

// Returns true if the other rank of the transfer has left, and its daemon can report that.
bool World::partner_has_left(Rank rank, const Step& step) const {
  return std::any_of(left.begin(), left.end(), [&](const auto& entry) {
    const Rank other = entry.first;
    return other != rank && step.call.peer == other && !nodes_[group_.place_of(other)].killed;
  });
}

bool World::waits_for_lost(Rank rank, const Step& step, std::set<Number>& seen) const {
  if (step.number != 0 && !seen.insert(step.number).second) return false;
  for (const Rank other : group_.present()) {
    if (step.number == 0 && other == rank) continue;
    for (std::size_t i = 0; i < programs_[other].size(); ++i) {
      const Step& its = programs_[other][i];
      const bool partner =
          its.number == step.number && (step.number != 0 || its.call.tag == step.call.tag);
      if (partner && never_deposits(other, i, seen)) return true;
    }
  }
  return false;
}

bool World::never_deposits(Rank rank, std::size_t index, std::set<Number>& seen) const {
  const Node& node = nodes_[group_.place_of(rank)];
  if (lost.contains(rank)) return true;
  // The end of a place, and of a rank's program, was checked when it happened.
  if (node.killed || node.ended) return true;
  if (programs_[rank][index].after_end) return true;
  if (programs_[rank][index].state != Step::State::kWaiting) return false;
  const auto stop = plan_.stops.find(rank);
  if (stop != plan_.stops.end() && index >= stop->second) return true;
  // Otherwise the rank waits for its open collectives, whose number has reached the maximum.
  std::size_t open = 0;
  bool lost = false;
  for (const Step& step : programs_[rank]) {
    if (step.number == 0 || step.state != Step::State::kDeposited) continue;
    ++open;
    lost = lost || waits_for_lost(rank, step, seen);
  }
  return lost && open >= plan_.outstanding;
}

std::vector<std::string> World::left_over() const {
  std::vector<std::string> names;
  for (Place place = 0; place < group_.places(); ++place) {
    if (!alive(place)) continue;
    const Node& node = nodes_[place];
    const std::string name = "place " + std::to_string(place);
    for (const auto& [buffer, memory] : node.buffers) {
      if (node.ended && buffer.kind != Buffer::Kind::kStaging) continue;
      names.push_back(name + " #" + std::to_string(buffer.number) + " kind " +
                      std::to_string(static_cast<int>(buffer.kind)) + " " +
                      std::to_string(buffer.index));
    }
    if (!node.ended && node.participant->cut().holding()) names.push_back(name + ": its rest");
    const std::size_t open = node.participant->open() + node.tokens.size();
    if (open > 0) names.push_back(name + ": " + std::to_string(open) + " entries of tables");
    for (const auto& [other, link] : node.links) {
      if (!alive(other) || (link.idle() && !link.owes())) continue;
      names.push_back(name + ": messages to place " + std::to_string(other));
    }
  }
  return names;
}

}  // namespace teletensor::collective::sim
