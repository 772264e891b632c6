// World: the daemons of one group in virtual time, over a network that delays messages and cuts
// connections.
//
// A daemon is a Participant and its Links, with buffers of real bytes. The world is deterministic:
// one seed determines one history.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/collective/link.h"
#include "engine/collective/participant.h"
#include "engine/collective/sim_arithmetic_test.h"

namespace teletensor::collective::sim {

using Time = std::int64_t;  // microseconds

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

// One step of a rank. A collective has a number, a transfer between two ranks has none.
struct Step {
  Number number = 0;
  Call call;
  Failed failed;
  Bytes operand;
  std::size_t result_bytes = 0;
  enum class State { kWaiting, kDeposited, kComplete } state = State::kWaiting;
  bool after_end = false;  // deposited after its daemon was told of the end of the epoch
  std::uint64_t token = 0;
  Time since = 0, took = 0;
  core::Status status;
  Bytes result;
};

struct Plan {
  Rank ranks = 0;
  std::vector<std::vector<Rank>> ranks_of;
  Place radix = 0;
  Limits limits;
  Time delay = 200;     // maximum delay of a frame
  Time thinking = 300;  // maximum pause of a rank between two steps
  Time deadline = 2000000;
  Time cut_every = 0;            // interval of connection cuts, at random places; 0: never
  Time late = 0;                 // maximum extra delay of some new connections; 0: none
  std::size_t drains_again = 0;  // number of cuts that directly follow another one
  std::size_t outstanding = 4;   // maximum number of open collectives of a rank
  // The ranks that stop, with the index of the step before which they stop.
  std::map<Rank, std::size_t> stops;
  bool leaves = false;  // ranks that stop leave the group, and other ranks leave at their ends
  std::vector<std::vector<Step>> programs;  // by rank
};

struct Traffic {
  std::int64_t messages = 0, with_data = 0, headers = 0, payload = 0, resent = 0;
};

class World {
 public:
  World(Plan plan, std::uint64_t seed);
  // Runs until nothing happens any more. Returns false if the maximum number of events was
  // exceeded.
  bool run();

  // Schedules an event.
  void at(Time time, std::function<void()> event) {
    events_.push({time, ++order_, std::move(event)});
  }
  void kill(Place place);   // not restarted; some other daemons notice
  void drain(Place place);  // restarts it from its image
  // As drain(), by the rules of daemons: its ranks continue only as far as other ranks need them,
  // and it stops when none of their operations is open.
  // After `patience` its operations may stay open.
  void shut_down(Place place, Time patience);
  void interrupt(Place place);
  // The rank's session ends; the group, which is elastic, continues without it.
  void lose(Rank rank);

  const Group& group() const { return group_; }
  const std::vector<Step>& program(Rank rank) const { return programs_[rank]; }
  bool alive(Place place) const { return nodes_[place].participant != nullptr; }
  std::optional<core::Status> ended(Place place) const { return nodes_[place].ended; }
  bool has_killed() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.killed; });
  }
  // Descriptions of the first few faults.
  std::vector<std::string> wrong;
  // Messages of timeouts that are explained by a rank that had stopped or whose daemon was killed.
  std::set<std::string> timeouts;
  Traffic traffic;
  Time now = 0;
  std::int64_t events = 0, cuts = 0, restarts = 0, interrupts = 0, lowered = 0;
  // Ranks that are lost, with the number of the last collective in which the group had the rank;
  // none if it has not continued without it.
  std::map<Rank, std::optional<Number>> lost;
  // Returns true if the group has continued without all ranks of the place.
  bool gone(Place place) const;
  // Ranks that have left, with the number of each rank's last collective.
  std::map<Rank, Number> left;
  std::int64_t staging_peak = 0, flight_peak = 0;
  // Describes entries that should not be left: buffers, entries of tables, and messages that are
  // not acknowledged.
  std::vector<std::string> left_over() const;

 private:
  using Memory = std::shared_ptr<Bytes>;
  struct Node {
    std::unique_ptr<Participant> participant;
    std::optional<Group> group;  // of the participant before its restart
    std::uint64_t incarnation = 0;
    std::map<Place, Link> links;
    std::map<Buffer, Memory> buffers;
    std::map<std::uint64_t, std::pair<Rank, std::size_t>> tokens;
    std::optional<core::Status> ended;
    std::int64_t staging = 0;
    Time speed = 1;
    bool draining = false, interrupting = false, killed = false;
    bool shuts_down = false;
    Time opens = 0;  // when it shuts down although its operations are open
    Time moved = 0;  // when a rank has last deposited, or was last pushed, while it shuts down
    std::optional<Number> run_to;
  };
  struct Connection {
    std::uint64_t number = 0;  // odd: the connection is established
    Time last[2] = {0, 0};     // time of the last arrival, for each direction
    bool opening = false;
  };
  struct Event {
    Time time;
    std::uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };

  void boot(Place place, Participant::Image image);
  void depart(Rank rank);
  void forget_lost(Place place, const Action& action);
  void stop(Place place);
  void stop(Rank rank, std::size_t index);
  void leave(Rank rank, std::size_t index);
  void settle(Place place);
  void act(Place place, Action action);
  void send(Place place, Action action);
  void reserve(Node& node, const Action& action);
  void complete(Place place, const Action& action);
  void rest(Place place, const Action& action);
  void come_to_rest(Place place, Time until);
  bool has_open(Rank rank) const;
  bool wanted(Rank rank) const;
  void restart(Place place);
  void notice(Place other, Place place, int times);
  void think(Rank rank);
  void step(Rank rank);
  bool deposit_next(Rank rank);
  void deposit(Rank rank, std::size_t index);
  void watch(Rank rank, std::size_t index, std::uint64_t token, Time half);
  void pass_deadline(Rank rank, const Step& step);
  // Checks whether a rank that has stopped, or whose daemon was killed, explains why the step does
  // not end.
  bool partner_has_left(Rank rank, const Step& step) const;
  bool waits_for_lost(Rank rank, const Step& step, std::set<Number>& seen) const;
  bool never_deposits(Rank rank, std::size_t index, std::set<Number>& seen) const;
  Link& link(Place from, Place to);
  void open(Place a, Place b);
  void cut(Place a, Place b);
  void cut_some();
  void flush(Place from, Place to);
  void transmit(Place from, Place to, const Link::Frame& frame);
  void arrive(Place from, Place to, const Link::Frame& frame, const Bytes& payload);
  void forget(Place place, bool all);
  void complain(const std::string& what);
  Connection& connection(Place a, Place b) {
    return connections_[{std::min(a, b), std::max(a, b)}];
  }

  const Plan plan_;
  Dice dice_;
  Group group_;
  std::vector<Node> nodes_;
  std::map<std::pair<Place, Place>, Connection> connections_;
  std::vector<std::vector<Step>> programs_;
  std::priority_queue<Event> events_;
  std::size_t drained_again_ = 0;
  std::uint64_t order_ = 0, tokens_ = 0, incarnations_ = 0;
};

}  // namespace teletensor::collective::sim
