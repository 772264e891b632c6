// Helpers of the tests of Participant: a pair of daemons with one rank each.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>

#include "engine/collective/participant.h"

namespace teletensor::collective {

// Two daemons with one rank each, over a network without delays and losses.
class Pair {
 public:
  explicit Pair(Limits limits = {}) : limits_(limits), group_(2, {{0}, {1}}) {
    for (Place place = 0; place < 2; ++place) {
      at_[place] =
          std::make_unique<Participant>(group_, place, "test", limits_, Participant::Image());
    }
  }
  Participant& operator[](Place place) { return *at_[place]; }

  // Delivers messages until none is left. With `keep_data`, the data of sends is not delivered.
  void settle(bool keep_data = false) {
    for (bool more = true; more;) {
      more = false;
      for (Place place = 0; place < 2; ++place) {
        for (const Action& action : at_[place]->take()) note(place, action);
      }
      std::deque<std::pair<Place, Message>> kept;
      for (; !wire_.empty(); wire_.pop_front(), more = true) {
        const auto& [from, message] = wire_.front();
        if (keep_data && message.kind == Kind::kData) {
          kept.push_back(wire_.front());
          continue;
        }
        Participant& to = *at_[1 - from];
        const Slice slice = message.payload > 0 ? *to.expect(from, message) : Slice();
        EXPECT_TRUE(to.receive(from, message, slice).ok());
      }
      more = more && kept.empty();
      wire_ = std::move(kept);
      if (!more) break;
    }
  }
  // Lets both ranks deposit their next collectives.
  void deposit(Number number, const Call& call) {
    for (Place place = 0; place < 2; ++place) {
      EXPECT_TRUE(at_[place]->deposit(place, number, call).ok());
    }
  }
  std::vector<std::pair<Place, std::uint64_t>> completed;
  std::vector<std::pair<Place, Action::Kind>> cuts;  // kAtRest and kGoOn
  std::set<std::pair<Place, Buffer>> staging;

 private:
  void note(Place place, const Action& action) {
    switch (action.kind) {
      case Action::Kind::kComplete:
        return completed.push_back({place, action.token});
      case Action::Kind::kSend:
        return wire_.push_back({place, action.message});
      case Action::Kind::kAtRest:
      case Action::Kind::kGoOn:
        return cuts.push_back({place, action.kind});
      case Action::Kind::kReserve:
        EXPECT_TRUE(staging.insert({place, action.buffer}).second);
        return;
      case Action::Kind::kFree:
        EXPECT_EQ(staging.erase({place, action.buffer}), 1u);
        return;
      default:
        return;
    }
  }

  Limits limits_;
  Group group_;
  std::unique_ptr<Participant> at_[2];
  std::deque<std::pair<Place, Message>> wire_;
};

inline Call transfer(Op op, std::int64_t count) {
  Call call;
  call.op = op;
  call.peer = op == Op::kSend ? 1 : 0;
  call.count = count;
  return call;
}

inline Call collective(Op op, std::int64_t count) {
  Call call;
  call.op = op;
  call.count = count;
  return call;
}

inline Message of(Kind kind, Number number) {
  Message message;
  message.kind = kind;
  message.number = number;
  message.from = 0;
  message.to = 1;
  return message;
}

// Partial sums of the first elements of collective 1, in float32.
inline Message partial_sums(std::int64_t elements) {
  Message message = of(Kind::kPartial, 1);
  message.range = {0, elements};
  message.payload = 4 * elements;
  return message;
}

}  // namespace teletensor::collective
