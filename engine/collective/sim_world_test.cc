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
  node.participant = std::make_unique<Participant>(group_, place, "sim", plan_.limits, image);
  settle(place);
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
    if (other == place || (other != (place + 1) % group_.places() && !dice_.chance(30))) continue;
    notice(other, place, 20);
  }
}

// A daemon that restarts notices when it is there again.
void World::notice(Place other, Place place, int times) {
  at(now + 1000 + dice_.below(2000), [this, other, place, times] {
    if (!alive(other)) {
      if (times > 0) notice(other, place, times - 1);
      return;
    }
    nodes_[other].participant->lost(group_.ranks_of(place).front(), "is lost: daemon killed");
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

// Carries out what the participant asks for, and what that leads to.
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
      // The job keeps what it names.
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
      if (drained_again_ < plan_.drains_again && dice_.chance(40)) {
        ++drained_again_;
        at(now + dice_.below(300),
           [this, other = static_cast<Place>(dice_.below(group_.places()))] { drain(other); });
      }
      for (const Rank rank : group_.ranks_of(place)) think(rank);
      return;
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
    step->state = Step::State::kWaiting;  // the stream begins anew behind the cut
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
    for (const Step& step : programs_[rank]) {
      if (step.number != 0 && step.number <= action.number &&
          step.state != Step::State::kComplete) {
        complain("at rest before #" + std::to_string(step.number) + " has run");
      }
    }
  }
  if (node.interrupting && node.participant->interrupts()) {
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
    const Participant::Image image = nodes_[place].participant->image();
    ++restarts;
    stop(place);
    for (const Rank rank : group_.ranks_of(place)) {
      for (Step& step : programs_[rank]) {
        if (step.state == Step::State::kDeposited) step.state = Step::State::kWaiting;
      }
    }
    at(now + dice_.below(20000), [this, place, image] {
      boot(place, image);
      for (Place other = 0; other < group_.places(); ++other) {
        if (connections_.contains({std::min(place, other), std::max(place, other)}))
          open(place, other);
      }
      for (const Rank rank : group_.ranks_of(place)) think(rank);
      at(now + dice_.below(2000), [this, place] {
        if (!alive(place)) return;
        nodes_[place].draining = false;
        nodes_[place].participant->end_drain();
        settle(place);
      });
    });
  });
}

void World::think(Rank rank) {
  const Place place = group_.place_of(rank);
  at(now + dice_.below(plan_.thinking * nodes_[place].speed + 1), [this, rank] { step(rank); });
}

void World::step(Rank rank) {
  const Place place = group_.place_of(rank);
  if (!alive(place)) return;
  std::size_t open = 0;
  const auto stop = plan_.stops.find(rank);
  for (std::size_t i = 0; i < programs_[rank].size(); ++i) {
    Step& step = programs_[rank][i];
    if (step.state == Step::State::kDeposited && step.number != 0) ++open;
    if (step.state != Step::State::kWaiting) continue;
    if (stop != plan_.stops.end() && i >= stop->second) {
      nodes_[place].participant->describe_rank(rank, "sits in a debugger");
      return;
    }
    const std::optional<Number> run_to = nodes_[place].run_to;
    if (step.number != 0 && run_to && step.number > *run_to && dice_.chance(80)) return;
    if (open >= plan_.outstanding) return;
    deposit(rank, i);
    return think(rank);
  }
}

void World::deposit(Rank rank, std::size_t index) {
  const Place place = group_.place_of(rank);
  Node& node = nodes_[place];
  Step& step = programs_[rank][index];
  step.state = Step::State::kDeposited;
  step.since = now;
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

// Time passes: half of the deadline is the patience.
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
    // A cut may have begun in between; else nothing may be open now.
    if (!alive(place) || !nodes_[place].participant->held()) complain("hangs past its deadline");
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
  timeouts.insert(ended->message());
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
  if (nodes_[group_.place_of(rank)].killed) return true;
  if (programs_[rank][index].state != Step::State::kWaiting) return false;
  const auto stop = plan_.stops.find(rank);
  if (stop != plan_.stops.end() && index >= stop->second) return true;
  // Else it waits for its open collectives, of which there are as many as it may have.
  std::size_t open = 0;
  bool lost = false;
  for (const Step& step : programs_[rank]) {
    if (step.number == 0 || step.state != Step::State::kDeposited) continue;
    ++open;
    lost = lost || waits_for_lost(rank, step, seen);
  }
  return lost && open >= plan_.outstanding;
}

Link& World::link(Place from, Place to) {
  Node& node = nodes_[from];
  const auto known = node.links.find(to);
  if (known != node.links.end()) return known->second;
  open(from, to);
  return node.links.emplace(to, Link(node.incarnation, plan_.limits.window)).first->second;
}

// Tries until both are alive.
void World::open(Place a, Place b) {
  Connection& connection = this->connection(a, b);
  if (connection.opening || connection.number % 2 == 1) return;
  connection.opening = true;
  const Time late = plan_.late > 0 && dice_.chance(30) ? dice_.below(plan_.late) : 0;
  at(now + 20 + dice_.below(500) + late, [this, a, b] {
    Connection& connection = this->connection(a, b);
    connection.opening = false;
    if (connection.number % 2 == 1 || !alive(a) || !alive(b)) return;
    Link& first = link(a, b);
    Link& second = link(b, a);
    ++connection.number;
    connection.last[0] = connection.last[1] = now;
    const Link::Hello from_a = first.hello(), from_b = second.hello();
    if (first.connected(from_b)) nodes_[a].participant->restarted(b);
    if (second.connected(from_a)) nodes_[b].participant->restarted(a);
    settle(a);
    settle(b);
    flush(a, b);
    flush(b, a);
  });
}

void World::cut(Place a, Place b) {
  Connection& connection = this->connection(a, b);
  if (connection.number % 2 == 0) return;
  ++connection.number;
  ++cuts;
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const auto known = nodes_[from].links.find(to);
    if (known != nodes_[from].links.end()) known->second.disconnected();
  }
  open(a, b);
}

void World::cut_some() {
  if (connections_.empty()) return;
  auto chosen = connections_.begin();
  std::advance(chosen, dice_.below(static_cast<std::int64_t>(connections_.size())));
  cut(chosen->first.first, chosen->first.second);
  bool busy = false;
  for (Rank rank = 0; rank < plan_.ranks && !busy; ++rank) {
    if (!group_.has(rank) || !alive(group_.place_of(rank)) || nodes_[group_.place_of(rank)].ended)
      continue;
    busy = !programs_[rank].empty() && programs_[rank].back().state != Step::State::kComplete;
  }
  constexpr std::int64_t kEnough = 200;  // while a rank waits for its deadline
  if (busy && cuts < kEnough)
    at(now + 1 + dice_.below(2 * plan_.cut_every), [this] { cut_some(); });
}

void World::flush(Place from, Place to) {
  if (!alive(from)) return;
  Link& link = this->link(from, to);
  while (const std::optional<Link::Frame> frame = link.next()) transmit(from, to, *frame);
  flight_peak = std::max(flight_peak, link.in_flight());
}

void World::transmit(Place from, Place to, const Link::Frame& frame) {
  Connection& connection = this->connection(from, to);
  Bytes payload;
  std::size_t i = 0;
  for (const Slice& slice : frame.parcel.slices) {
    const auto& held = *static_cast<const std::vector<Memory>*>(frame.parcel.held.get());
    const std::uint8_t* at = held[i++]->data() + slice.offset;
    payload.insert(payload.end(), at, at + slice.bytes);
  }
  if (frame.number != 0) {
    ++traffic.messages;
    traffic.with_data += payload.empty() ? 0 : 1;
    traffic.headers += frame.parcel.message.header_bytes();
    traffic.payload += static_cast<std::int64_t>(payload.size());
  }
  Time& last = connection.last[from < to ? 0 : 1];
  last = std::max(last, now + 1 + dice_.below(plan_.delay));
  Link::Frame sent = frame;
  sent.parcel.held.reset();
  at(last, [this, from, to, sent, payload = std::move(payload), number = connection.number] {
    if (this->connection(from, to).number == number) arrive(from, to, sent, payload);
  });
}

void World::arrive(Place from, Place to, const Link::Frame& frame, const Bytes& payload) {
  Link& link = this->link(to, from);
  const core::Result<bool> fresh = link.receive(frame);
  if (!fresh.ok()) return complain(fresh.status().message());
  if (*fresh) {
    Participant& participant = *nodes_[to].participant;
    const Message& message = frame.parcel.message;
    Slice place;
    if (message.payload > 0) {
      // As if the connection had been cut in the middle of the payload, and it had come again.
      if (dice_.chance(5)) (void)participant.expect(from, message);
      const core::Result<Slice> expected = participant.expect(from, message);
      settle(to);
      if (!expected.ok() && !participant.ended()) return complain(expected.status().message());
      if (expected.ok()) {
        place = *expected;
        const auto buffer = nodes_[to].buffers.find(place.buffer);
        if (buffer == nodes_[to].buffers.end() ||
            place.offset + place.bytes > static_cast<std::int64_t>(buffer->second->size()) ||
            place.bytes != static_cast<std::int64_t>(payload.size())) {
          return complain("receives behind a buffer's end");
        }
        std::copy(payload.begin(), payload.end(), buffer->second->data() + place.offset);
      }
    }
    const core::Status status = participant.receive(from, message, place);
    if (!status.ok()) complain(status.message());
    settle(to);
  }
  flush(to, from);
  if (!link.owes()) return;
  at(now + 50, [this, from, to, number = connection(from, to).number] {
    if (connection(from, to).number != number || !this->link(to, from).owes()) return;
    transmit(to, from, this->link(to, from).acknowledgement());
  });
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
