#include "engine/collective/sim_world_test.h"

#include <algorithm>

namespace teletensor::collective::sim {

World::World(Plan plan, std::uint64_t seed)
    : plan_(std::move(plan)),
      dice_(seed),
      group_(plan_.ranks, plan_.ranks_of, plan_.radix),
      nodes_(group_.places()),
      programs_(plan_.programs) {
  for (Place place = 0; place < group_.places(); ++place) {
    nodes_[place].speed = 1 + dice_.below(4);
    boot(place, {});
    for (const Rank rank : group_.ranks_of(place)) think(rank);
  }
  if (plan_.cut_every > 0) at(dice_.below(plan_.cut_every), [this] { cut_some(); });
}

bool World::run() {
  const std::int64_t limit = 4000000 + 20000 * static_cast<std::int64_t>(group_.places());
  while (!events_.empty()) {
    if (++events > limit) return false;
    const Event event = events_.top();
    events_.pop();
    now = event.time;
    event.run();
  }
  return true;
}

void World::complain(const std::string& what) {
  if (wrong.size() < 5) wrong.push_back("at " + std::to_string(now) + ": " + what);
}

void World::boot(Place place, Participant::Image image) {
  Node& node = nodes_[place];
  node.incarnation = ++incarnations_;
  node.participant = std::make_unique<Participant>(node.group ? *node.group : group_, place, "sim",
                                                   plan_.limits, image);
  settle(place);
  for (const Rank rank : group_.ranks_of(place)) {
    if (lost.contains(rank) && !lost.at(rank)) depart(rank);
  }
}

void World::lose(Rank rank) {
  if (!lost.try_emplace(rank).second) return;
  const Place place = group_.place_of(rank);
  if (alive(place) && !nodes_[place].ended) depart(rank);
}

void World::depart(Rank rank) {
  const Place place = group_.place_of(rank);
  Number last = 0;
  for (const Step& step : programs_[rank]) {
    if (step.state != Step::State::kWaiting) last = std::max(last, step.number);
  }
  if (group_.levels() > 1) {
    nodes_[place].participant->lost(rank, "is lost", last);
  } else {
    nodes_[place].participant->depart(rank, last, "is lost");
  }
  settle(place);
}

void World::forget_lost(Place place, const Action& action) {
  for (const Claim& claim : action.message.vote.claims) {
    const auto known = lost.find(claim.rank);
    if (known == lost.end() || claim.text != "is lost") {
      complain("rank " + std::to_string(claim.rank) + " is not lost");
      continue;
    }
    std::optional<Number>& number = known->second;
    if (number && *number != action.number) complain("a rank is lost at two numbers");
    number = action.number;
    if (group_.place_of(claim.rank) != place) continue;
    for (Step& step : programs_[claim.rank]) {
      if (step.state != Step::State::kDeposited || step.number <= action.number) continue;
      complain("forgets a deposit of a lost rank");
    }
  }
}

bool World::gone(Place place) const {
  const std::vector<Rank>& ranks = group_.ranks_of(place);
  return std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) {
    const auto known = lost.find(rank);
    return known != lost.end() && known->second;
  });
}

void World::stop(Place place) {
  for (Place other = 0; other < group_.places(); ++other) {
    const auto known = connections_.find({std::min(place, other), std::max(place, other)});
    if (known != connections_.end()) cut(place, other);
  }
  Node& node = nodes_[place];
  node.participant.reset();
  node.links.clear();
  node.buffers.clear();
  node.tokens.clear();
  node.staging = 0;
  node.interrupting = false;
}

void World::kill(Place place) {
  if (!alive(place)) return;
  stop(place);
  nodes_[place].killed = true;
  for (Place other = 0; other < group_.places(); ++other) {
    const bool all_notice = plan_.leaves || plan_.limits.elastic;
    const bool notices = all_notice || other == (place + 1) % group_.places() || dice_.chance(30);
    if (other == place || !notices) continue;
    notice(other, place, 20);
  }
}

// A restarted daemon is noticed when it is alive again.
void World::notice(Place other, Place place, int times) {
  at(now + 1000 + dice_.below(2000), [this, other, place, times] {
    if (!alive(other)) {
      if (times > 0) notice(other, place, times - 1);
      return;
    }
    nodes_[other].participant->lost_place(place, "is lost: daemon killed");
    settle(other);
  });
}

void World::drain(Place place) {
  Node& node = nodes_[place];
  if (!alive(place) || node.ended || node.draining) return;
  node.draining = true;
  node.participant->drain();
  settle(place);
}

void World::interrupt(Place place) {
  Node& node = nodes_[place];
  if (!alive(place) || node.ended || node.interrupting) return;
  ++interrupts;
  node.interrupting = true;
  node.participant->interrupt();
  settle(place);
}

// Carries out the participant's actions, and the actions that follow from them.
void World::settle(Place place) {
  std::set<Place> to;
  while (alive(place)) {
    std::vector<Action> actions = nodes_[place].participant->take();
    if (actions.empty()) break;
    for (Action& action : actions) {
      if (action.kind == Action::Kind::kSend) to.insert(action.to);
      act(place, std::move(action));
    }
  }
  for (const Place other : to) flush(place, other);
}

void World::reserve(Node& node, const Action& action) {
  node.buffers[action.buffer] = std::make_shared<Bytes>(static_cast<std::size_t>(action.bytes));
  node.staging += action.bytes;
  staging_peak = std::max(staging_peak, node.staging);
}

void World::act(Place place, Action action) {
  Node& node = nodes_[place];
  switch (action.kind) {
    case Action::Kind::kSend:
      return send(place, std::move(action));
    case Action::Kind::kReserve:
      return reserve(node, action);
    case Action::Kind::kFree: {
      const auto found = node.buffers.find(action.buffer);
      if (found == node.buffers.end()) return complain("frees a buffer twice");
      node.staging -= static_cast<std::int64_t>(found->second->size());
      node.buffers.erase(found);
      return;
    }
    case Action::Kind::kReduce: {
      // The job keeps the buffers that it names.
      auto held = std::make_shared<std::map<Buffer, Memory>>();
      const auto keep = [&](const Slice& slice) {
        const auto found = node.buffers.find(slice.buffer);
        if (found == node.buffers.end()) return complain("reduces a buffer that is not there");
        if (slice.offset < 0 ||
            slice.offset + slice.bytes > static_cast<std::int64_t>(found->second->size())) {
          complain("reduces behind a buffer's end");
        }
        (*held)[slice.buffer] = found->second;
      };
      for (const Job::Source& source : action.job.sources) keep(source.at);
      for (const Job::Output& output : action.job.outputs) {
        for (const Slice& to : output.to) keep(to);
      }
      if (!wrong.empty()) return;
      at(now + dice_.below(20 * node.speed),
         [this, place, held, job = std::move(action.job), incarnation = node.incarnation] {
           sim::run(job, [&](const Slice& slice) {
             return (*held)[slice.buffer]->data() + slice.offset;
           });
           if (!alive(place) || nodes_[place].incarnation != incarnation) return;
           nodes_[place].participant->reduced(job.id);
           settle(place);
         });
      return;
    }
    case Action::Kind::kComplete:
      return complete(place, action);
    case Action::Kind::kRetire:
      std::erase_if(node.buffers, [&](const auto& entry) {
        return entry.first.number == action.number && entry.first.kind != Buffer::Kind::kStaging;
      });
      return;
    case Action::Kind::kRunTo:
      node.run_to = action.number;
      return;
    case Action::Kind::kAtRest:
      return rest(place, action);
    case Action::Kind::kGoOn:
      node.run_to.reset();
      if (node.draining && !node.shuts_down && !node.participant->cut().drains) {
        node.participant->drain();  // the last cut was of no use for another place
      }
      if (drained_again_ < plan_.drains_again && dice_.chance(40)) {
        ++drained_again_;
        at(now + dice_.below(300),
           [this, other = static_cast<Place>(dice_.below(group_.places()))] { drain(other); });
      }
      for (const Rank rank : group_.ranks_of(place)) think(rank);
      return;
    case Action::Kind::kLost:
      return forget_lost(place, action);
    case Action::Kind::kEnded:
      node.ended = action.status;
      for (const Rank rank : group_.ranks_of(place)) think(rank);
      return;
  }
}

void World::send(Place place, Action action) {
  auto held = std::make_shared<std::vector<Memory>>();
  for (const Slice& slice : action.slices) {
    const auto found = nodes_[place].buffers.find(slice.buffer);
    if (found == nodes_[place].buffers.end()) return complain("sends a buffer that is not there");
    if (slice.offset < 0 ||
        slice.offset + slice.bytes > static_cast<std::int64_t>(found->second->size())) {
      return complain("sends behind a buffer's end");
    }
    held->push_back(found->second);
  }
  link(place, action.to).send({std::move(action.message), std::move(action.slices), held});
}

void World::complete(Place place, const Action& action) {
  Node& node = nodes_[place];
  Step* step = nullptr;
  Rank rank = action.rank;
  if (action.token != 0) {
    const auto found = node.tokens.find(action.token);
    if (found == node.tokens.end()) return complain("completes a transfer twice");
    rank = found->second.first;
    step = &programs_[rank][found->second.second];
    node.tokens.erase(found);
  } else {
    for (Step& candidate : programs_[rank]) {
      if (candidate.number == action.number) step = &candidate;
    }
  }
  if (step->state != Step::State::kDeposited) return complain("completes what was not deposited");
  if (action.status.code() == core::Code::kCancelled) {
    step->state = Step::State::kWaiting;  // the rank continues with this step after the cut
    std::erase_if(node.buffers, [&](const auto& entry) {
      return entry.first.number == action.number && entry.first.number != 0;
    });
    return think(rank);
  }
  step->state = Step::State::kComplete;
  step->status = action.status;
  step->took = now - step->since;
  const bool transfer = action.token != 0;
  const bool in = step->call.op == Op::kRecv;
  const Buffer result{transfer ? 0 : action.number,
                      !transfer ? Buffer::Kind::kResult
                      : in      ? Buffer::Kind::kReceived
                                : Buffer::Kind::kSent,
                      transfer ? action.token : rank};
  const auto found = node.buffers.find(result);
  if (found != node.buffers.end() && (!transfer || in)) step->result = *found->second;
  if (transfer && found != node.buffers.end()) node.buffers.erase(found);
  think(rank);
}

void World::rest(Place place, const Action& action) {
  Node& node = nodes_[place];
  for (const Rank rank : group_.ranks_of(place)) {
    if (!node.participant->context().group.has(rank)) continue;
    for (const Step& step : programs_[rank]) {
      if (step.number != 0 && step.number <= action.number &&
          step.state != Step::State::kComplete) {
        complain("at rest before #" + std::to_string(step.number) + " has run");
      }
    }
  }
  if (node.interrupting && node.participant->cut().interrupts) {
    at(now + dice_.below(3000), [this, place, incarnation = node.incarnation] {
      Node& node = nodes_[place];
      if (!alive(place) || node.incarnation != incarnation || !node.interrupting) return;
      node.interrupting = false;
      node.participant->end_interrupt();
      settle(place);
    });
  }
  if (!node.draining) return;
  at(now + dice_.below(500), [this, place, incarnation = node.incarnation] {
    if (!alive(place) || nodes_[place].ended || nodes_[place].incarnation != incarnation) return;
    if (nodes_[place].participant->cut().rests()) restart(place);
  });
}

void World::restart(Place place) {
  const Participant::Image image = nodes_[place].participant->image();
  nodes_[place].group = nodes_[place].participant->context().group;
  ++restarts;
  stop(place);
  for (const Rank rank : group_.ranks_of(place)) {
    for (Step& step : programs_[rank]) {
      if (step.state == Step::State::kDeposited) step.state = Step::State::kWaiting;
    }
  }
  at(now + dice_.below(20000), [this, place, image] {
    boot(place, image);
    nodes_[place].shuts_down = false;
    for (Place other = 0; other < group_.places(); ++other) {
      if (connections_.contains({std::min(place, other), std::max(place, other)}))
        open(place, other);
    }
    for (const Rank rank : group_.ranks_of(place)) think(rank);
    at(now + dice_.below(2000), [this, place, incarnation = nodes_[place].incarnation] {
      if (!alive(place) || nodes_[place].incarnation != incarnation) return;
      nodes_[place].draining = false;
      nodes_[place].participant->end_drain();
      settle(place);
    });
  });
}

void World::shut_down(Place place, Time patience) {
  Node& node = nodes_[place];
  if (!alive(place) || node.ended || node.draining || group_.levels() > 1) return;
  node.draining = node.shuts_down = true;
  node.moved = now;
  node.opens = now + patience;
  // A cut connection may stay closed for plan_.late, several times in each generation.
  come_to_rest(place, now + 300000 + 20 * plan_.late);
}

bool World::has_open(Rank rank) const {
  return std::any_of(programs_[rank].begin(), programs_[rank].end(),
                     [](const Step& step) { return step.state == Step::State::kDeposited; });
}

// Has another rank of the daemon deposited a later number, or is the cut at a later one?
bool World::wanted(Rank rank) const {
  const Place place = group_.place_of(rank);
  const auto last_of = [&](Rank each) {
    Number last = 0;
    for (const Step& step : programs_[each]) {
      if (step.state != Step::State::kWaiting) last = std::max(last, step.number);
    }
    return last;
  };
  Number last = nodes_[place].run_to.value_or(0);
  for (const Rank each : group_.ranks_of(place)) last = std::max(last, last_of(each));
  return last_of(rank) < last;
}

// As GroupRest::rest() and Recovery::rest_groups().
void World::come_to_rest(Place place, Time until) {
  Node& node = nodes_[place];
  if (!alive(place) || !node.shuts_down) return;
  const std::vector<Rank>& ranks = group_.ranks_of(place);
  const bool busy = std::any_of(ranks.begin(), ranks.end(), [&](Rank r) { return has_open(r); });
  const bool over = node.ended || node.participant->epoch_end().ending();
  const bool open = now > node.opens;
  if (!over && node.participant->come_to_rest(!busy, open)) {
    lowered += busy ? 1 : 0;
    return restart(place);
  }
  if (over || now > until) {
    if (!over && plan_.stops.empty() && !has_killed()) complain("does not come to rest");
    node.draining = node.shuts_down = false;
    node.participant->end_drain();
    for (const Rank rank : ranks) think(rank);
    return settle(place);
  }
  settle(place);
  const bool stuck = now - node.moved > 3000;
  for (const Rank rank : ranks) {
    const bool pushed = stuck && (busy || node.participant->cut().repeats());
    if (pushed || wanted(rank)) deposit_next(rank);
  }
  if (stuck) node.moved = now;
  at(now + 1 + dice_.below(60), [this, place, until, incarnation = node.incarnation] {
    if (nodes_[place].incarnation == incarnation) come_to_rest(place, until);
  });
}

void World::think(Rank rank) {
  const Place place = group_.place_of(rank);
  at(now + dice_.below(plan_.thinking * nodes_[place].speed + 1), [this, rank] { step(rank); });
}

void World::step(Rank rank) {
  const Place place = group_.place_of(rank);
  if (!alive(place)) return;
  if (!nodes_[place].shuts_down && deposit_next(rank)) think(rank);
}

// False where the rank does not deposit its next step now.
bool World::deposit_next(Rank rank) {
  const Place place = group_.place_of(rank);
  if (lost.contains(rank)) return false;
  std::size_t open = 0;
  const auto stop = plan_.stops.find(rank);
  for (std::size_t i = 0; i < programs_[rank].size(); ++i) {
    Step& step = programs_[rank][i];
    if (step.state == Step::State::kDeposited && step.number != 0) ++open;
    if (step.state != Step::State::kWaiting) continue;
    if (stop != plan_.stops.end() && i >= stop->second) {
      this->stop(rank, i);
      return false;
    }
    const std::optional<Number> run_to = nodes_[place].run_to;
    if (step.number != 0 && run_to && step.number > *run_to && dice_.chance(80)) return false;
    if (open >= plan_.outstanding) return false;
    nodes_[place].moved = now;
    deposit(rank, i);
    return true;
  }
  if (plan_.leaves) leave(rank, programs_[rank].size());
  return false;
}

// Stops the rank before this step.
void World::stop(Rank rank, std::size_t index) {
  Node& node = nodes_[group_.place_of(rank)];
  if (!plan_.leaves) return node.participant->describe_rank(rank, "sits in a debugger");
  leave(rank, index);
}

// Lets the rank leave when its steps before `index` are complete.
void World::leave(Rank rank, std::size_t index) {
  Number last = 0;
  for (std::size_t i = 0; i < index; ++i) {
    const Step& step = programs_[rank][i];
    if (step.state != Step::State::kComplete) return;
    last = std::max(last, step.number);
  }
  if (!left.emplace(rank, last).second) return;
  const Place place = group_.place_of(rank);
  nodes_[place].participant->leave(rank, last, "has left");
  settle(place);
}

void World::deposit(Rank rank, std::size_t index) {
  const Place place = group_.place_of(rank);
  Node& node = nodes_[place];
  Step& step = programs_[rank][index];
  step.state = Step::State::kDeposited;
  step.since = now;
  step.after_end = node.ended.has_value();
  step.token = ++tokens_;
  core::Status status;
  if (step.number != 0) {
    if (!node.ended) {
      node.buffers[{step.number, Buffer::Kind::kOperand, rank}] =
          std::make_shared<Bytes>(step.operand);
      node.buffers[{step.number, Buffer::Kind::kResult, rank}] =
          std::make_shared<Bytes>(step.result_bytes);
    }
    status = node.participant->deposit(rank, step.number, step.call, step.failed);
  } else {
    const bool in = step.call.op == Op::kRecv;
    node.tokens[step.token] = {rank, index};
    node.buffers[{0, in ? Buffer::Kind::kReceived : Buffer::Kind::kSent, step.token}] =
        std::make_shared<Bytes>(in ? Bytes(step.result_bytes) : step.operand);
    status = node.participant->deposit_point_to_point(rank, step.token, step.call, step.failed);
  }
  if (!status.ok()) complain("refuses a deposit: " + status.message());
  watch(rank, index, step.token, plan_.deadline / 2);
  settle(place);
}

}  // namespace teletensor::collective::sim
