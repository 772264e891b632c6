// Outbox: collects the actions of a participant, and adds the progress that every message reports.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/collective/message.h"

namespace teletensor::collective {

// Limits in bytes unless stated otherwise. They must be equal on all daemons of a group.
struct Limits {
  std::int64_t whole = 16 << 10;  // operands up to this size are not scattered
  std::int64_t eager = 8 << 10;   // partial sums up to this size do not wait for the vote
  // Segment size of results, each of which costs some thread switches.
  std::int64_t segment = 2 << 20;
  std::int64_t window = 8 << 20;    // maximum staging for one peer
  std::int64_t staging = 16 << 20;  // maximum staging for all peers
  Number ahead = 64;                // maximum of collectives that are announced but not finished
  Number active = 2;  // maximum of collectives whose partial sums may be sent at the same time
  std::size_t offers = 4096;  // maximum of incomplete sends from one place to another
  // Not a limit: the group continues without ranks that are lost (Participant::depart).
  bool elastic = false;
};

class Outbox {
 public:
  explicit Outbox(Place places) : told_(places, 0), heard_(places, 0) {}

  void send(Place to, Message message, std::vector<Slice> slices = {}) {
    message.done = told_[to] = done;
    for (const Slice& slice : slices) message.payload += slice.bytes;
    Action action;
    action.to = to;
    action.message = std::move(message);
    action.slices = std::move(slices);
    actions_.push_back(std::move(action));
  }
  void reserve(const Buffer& buffer, std::int64_t bytes) {
    Action action;
    action.kind = Action::Kind::kReserve;
    action.buffer = buffer;
    action.bytes = bytes;
    actions_.push_back(std::move(action));
  }
  void free(const Buffer& buffer) {
    Action action;
    action.kind = Action::Kind::kFree;
    action.buffer = buffer;
    actions_.push_back(std::move(action));
  }
  std::uint64_t reduce(Job job) {
    Action action;
    action.kind = Action::Kind::kReduce;
    action.job = std::move(job);
    action.job.id = ++jobs_;
    actions_.push_back(std::move(action));
    return jobs_;
  }
  void push(Action action) { actions_.push_back(std::move(action)); }
  // An action that consists of these parts.
  void tell(Action::Kind kind, Number number = 0, bool interrupted = false) {
    Action action;
    action.kind = kind;
    action.number = number;
    action.interrupted = interrupted;
    actions_.push_back(std::move(action));
  }
  std::vector<Action> take() { return std::exchange(actions_, {}); }

  // This place has finished all collectives up to `done`. told() is the `done` that was last sent
  // to a place, heard() the one that the place has sent.
  Number done = 0;
  Number told(Place place) const { return told_[place]; }
  Number heard(Place place) const { return heard_[place]; }
  // Returns true if `number` is higher than all that the place sent earlier.
  bool hear(Place place, Number number) {
    return number > heard_[place] && (heard_[place] = number, true);
  }

 private:
  std::vector<Number> told_, heard_;
  std::vector<Action> actions_;
  std::uint64_t jobs_ = 0;
};

}  // namespace teletensor::collective
