// The simulator's network: connections that delay, are cut, and are established late.
#include <algorithm>

#include "engine/collective/sim_world_test.h"

namespace teletensor::collective::sim {

Link& World::link(Place from, Place to) {
  Node& node = nodes_[from];
  const auto known = node.links.find(to);
  if (known != node.links.end()) return known->second;
  open(from, to);
  return node.links.emplace(to, Link(node.incarnation, plan_.limits.window)).first->second;
}

// Retries until both daemons are alive.
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
    if (lost.contains(rank)) continue;
    if (!group_.has(rank) || !alive(group_.place_of(rank)) || nodes_[group_.place_of(rank)].ended)
      continue;
    busy = !programs_[rank].empty() && programs_[rank].back().state != Step::State::kComplete;
  }
  constexpr std::int64_t kEnough = 200;  // limits the cuts while a rank waits for its deadline
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
      // As if the connection was cut during the payload and the message was sent again.
      if (dice_.chance(5)) (void)participant.expect(from, message);
      const core::Result<Slice> expected = participant.expect(from, message);
      settle(to);
      if (!expected.ok() && !participant.epoch_end().over(message))
        return complain(expected.status().message());
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

}  // namespace teletensor::collective::sim
