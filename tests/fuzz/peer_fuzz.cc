// Simulates a hostile daemon among three: its messages go through the codec of peers to the groups
// of an honest daemon.
//
//   peer_fuzz [--seconds N] [--from S] [--seed S]
//     Makes random runs with the seeds S, S + 1, ... --seed: makes only the run with this seed. In
//     each run, ranks of the daemons a, b and c perform collectives and transfers, and the messages
//     from b to a are repeated, exchanged, changed in a field or in a byte, or invented.
//
// The following must hold: nothing crashes; each message is accepted, or refused with
// InvalidArgument; a group in which b has no rank computes right results; after b is lost, no rank
// of a waits any more; and no byte of staging memory remains.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory/pool.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/kit_test.h"
#include "server/peer/peer_codec.h"
#include "server/peer/peer_frames.h"
#include "victim.h"

namespace teletensor::fuzz {
namespace {

using collective::Call;
using collective::Op;
using collective::Rank;
using core::Status;
using runtime::Fabric;
using runtime::Groups;
using runtime::PeerMessage;
using runtime::RowMajor;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  // A value that is close to `near`, or one of the values that often cause faults.
  std::uint64_t wild(std::uint64_t near) {
    const std::uint64_t values[] = {0,        1,        near + 1,   near - 1, near * 2,
                                    near / 2, 1u << 20, ~0ull >> 1, ~0ull,    random_()};
    return values[below(std::size(values))];
  }

 private:
  std::mt19937_64 random_;
};

// Adds float32 values by plain loops.
class Sums final : public Groups::Adder {
 public:
  explicit Sums(memory::PoolHandle& pool) : pool_(pool) {}
  Status add(std::span<const collective::Job> jobs, const Address& address) override {
    for (const collective::Job& job : jobs) {
      const auto n = static_cast<std::size_t>(job.elements);
      std::vector<std::vector<float>> slots;
      for (const auto& source : job.sources) {
        const auto* const data = reinterpret_cast<const float*>(address(source.at));
        slots.emplace_back(data, data + n);
      }
      for (const auto& addition : job.additions) {
        for (std::size_t i = 0; i < n; ++i) slots[addition.into][i] += slots[addition.from][i];
      }
      for (const auto& output : job.outputs) {
        for (const collective::Slice& to : output.to) {
          std::memcpy(address(to), slots[output.slot].data(), n * sizeof(float));
        }
      }
    }
    return {};
  }
  core::Ref<memory::Storage> allocate(std::size_t bytes) override {
    return pool_->allocate_shared(bytes, 1);
  }

 private:
  memory::PoolHandle& pool_;
};

struct Sent {
  PeerMessage message;
  std::string payload;
};

// Three daemons in one thread; their messages wait until step() delivers them.
class World {
 public:
  explicit World(Groups::Adder& adder) {
    for (const char* const name : {"a", "b", "c"}) daemons_.emplace_back(name, *this);
    for (Daemon& daemon : daemons_) {
      daemon.groups = std::make_unique<Groups>(adder);
      daemon.receiver = &daemon.groups->connect(daemon);
    }
  }

  Groups& groups(std::size_t daemon) { return *daemons_[daemon].groups; }
  std::vector<Groups*> all_groups() {
    return {daemons_[0].groups.get(), daemons_[1].groups.get(), daemons_[2].groups.get()};
  }

  // Delivers the oldest message of one wire. `change` is applied to messages from b to a. Returns
  // false if there is no message.
  template <class Change>
  bool step(Dice& dice, Change change) {
    std::vector<Wire> full;
    for (const auto& [wire, messages] : wires_) {
      if (!messages.empty()) full.push_back(wire);
    }
    if (full.empty()) return false;
    const Wire wire = full[dice.below(full.size())];
    Sent sent = std::move(wires_[wire].front());
    wires_[wire].pop_front();
    if (wire == Wire{1, 0}) {
      change(std::move(sent));
    } else if (wire.second == 1) {
      (void)deliver(wire.first, wire.second, sent);  // b itself is not tested
    } else if (!deliver(wire.first, wire.second, sent).ok()) {
      fail("an honest daemon refuses a message of an honest daemon");
    }
    return true;
  }

  Status deliver(std::size_t from, std::size_t to, const Sent& sent) {
    const std::vector<std::span<const char>> pieces(sent.payload.empty() ? 0 : 1, sent.payload);
    const Status status = daemons_[to].receiver->received(daemons_[from].own, sent.message, pieces);
    if (!status.ok() && status.code() != core::Code::kInvalidArgument) {
      fail("a message is refused with another status than InvalidArgument");
    }
    return status;
  }

  // As server/peer/peer.cc does if a peer violates the protocol: the link is restarted for both.
  void break_link(const std::string& why) {
    lose(0, 1, why);
    lose(1, 0, why);
    daemons_[0].receiver->met("b");
    daemons_[1].receiver->met("a");
  }
  void lose(std::size_t who, std::size_t of, const std::string& why) {
    wires_[{who, of}].clear();
    daemons_[who].receiver->lost(daemons_[of].own, why);
  }

 private:
  using Wire = std::pair<std::size_t, std::size_t>;
  struct Daemon final : Fabric {
    Daemon(const char* name, World& world) : own(name), home(world) {}
    const std::string& name() const override { return own; }
    std::uint64_t incarnation() const override { return static_cast<std::uint64_t>(own[0]); }
    std::vector<std::string> peers() const override {
      std::vector<std::string> others;
      for (const char* const each : {"a", "b", "c"}) {
        if (own != each) others.emplace_back(each);
      }
      return others;
    }
    void send(const std::string& peer, PeerMessage message, Payload payload) override {
      Sent sent{std::move(message), {}};
      for (const auto part : payload.parts) sent.payload.append(part.data(), part.size());
      home.wires_[{static_cast<std::size_t>(own[0] - 'a'), static_cast<std::size_t>(peer[0] - 'a')}]
          .push_back(std::move(sent));
    }
    const std::string own;
    World& home;
    std::unique_ptr<Groups> groups;
    Fabric::Receiver* receiver = nullptr;
  };

  std::map<Wire, std::deque<Sent>> wires_;
  std::deque<Daemon> daemons_;
};

// A rank that deposits one call after the other.
struct Player {
  std::shared_ptr<Groups::Member> member;
  std::size_t daemon = 0;
  std::deque<Groups::Ticket> open;
  std::deque<RowMajor> results;
};

class Match {
 public:
  explicit Match(std::uint64_t seed) : dice_(seed) {}

  void run() {
    const std::uint64_t before = used();
    {
      World world(adder_);
      world_ = &world;
      // The group of a and c alone exists before b becomes hostile.
      const auto honest = [](Sent) { fail("b has a message before it has a rank"); };
      join("quiet", {0, 2, 0}, quiet_);
      settle(honest);
      begin(quiet_);
      play(quiet_, honest);
      std::vector<std::size_t> places;
      for (std::uint64_t ranks = 2 + dice_.below(4); ranks > 0; --ranks) {
        places.push_back(dice_.below(3));
      }
      const std::size_t hostile = dice_.below(places.size());
      places[hostile] = 1;
      places[(hostile + 1) % places.size()] = 0;
      const bool hostile_early = dice_.one_in(3);
      const auto change = [&](Sent sent) { attack(std::move(sent)); };
      const auto pass = [&](Sent sent) { take(sent); };
      join("loud", places, loud_);
      hostile_early ? settle(change) : settle(pass);
      begin(loud_);
      for (int rounds = 0; rounds < 6; ++rounds) {
        if (dice_.one_in(2)) play(quiet_, change);
        play(loud_, change);
      }
      check(quiet_);
      world.lose(0, 1, "no connection for 30 s");
      world.lose(2, 1, "no connection for 30 s");
      world.lose(1, 0, "no connection for 30 s");
      world.lose(1, 2, "no connection for 30 s");
      settle([](Sent) {});
      end(quiet_);
      // A group that is not complete waits for its ranks until the timeout.
      bool forming = false;
      for (const runtime::GroupFacts& each : world.groups(0).all()) {
        forming |= each.name == "loud" && each.state == runtime::GroupFacts::State::kForming;
      }
      for (Player& player : loud_) {
        if (forming) break;
        for (const Groups::Ticket ticket : player.open) {
          if (player.daemon == 0 && !player.member->ended(ticket)) {
            fail("a rank waits although the hostile daemon is lost");
          }
        }
      }
      end(loud_);
      settle([](Sent) {});
      if (!world.groups(0).all().empty()) fail("a group is left");
    }
    if (used() != before) fail("memory is left");
  }

  std::uint64_t delivered = 0, refused = 0, damaged = 0, sums = 0;

 private:
  std::uint64_t used() const { return pool_->account().used(); }

  template <class Change>
  void settle(Change change) {
    while (world_->step(dice_, change)) {
    }
  }

  void join(const std::string& name, const std::vector<std::size_t>& places,
            std::vector<Player>& players) {
    const auto ranks = static_cast<Rank>(places.size());
    for (Rank rank = 0; rank < ranks; ++rank) {
      auto member = world_->groups(places[rank])
                        .join({"alice", name, rank, ranks, std::chrono::hours(1),
                               "session of rank " + std::to_string(rank)});
      if (!member.ok()) fail("a rank cannot join");
      players.push_back({std::move(*member), places[rank], {}, {}});
    }
  }
  // Waits for the other ranks; a rank whose group was attacked while it was formed may wait for
  // ever.
  void begin(std::vector<Player>& players) {
    for (Player& player : players) {
      if (const auto ticket = player.member->begin()) player.open.push_back(*ticket);
    }
    settle([&](Sent sent) { take(sent); });
  }

  // Each rank that may deposit does so; now and then the call of one rank differs.
  template <class Change>
  void play(std::vector<Player>& players, Change change) {
    const bool same = &players == &quiet_;
    const auto ranks = static_cast<Rank>(players.size());
    const std::int64_t sizes[] = {0, 1, 7, 3000, 50'000, 400'000};
    const std::int64_t elements = sizes[dice_.below(std::size(sizes))];
    const bool transfers = !same && dice_.one_in(4);
    const auto from = static_cast<Rank>(dice_.below(ranks));
    for (Rank rank = 0; rank < ranks; ++rank) {
      Player& player = players[rank];
      while (!player.open.empty() && player.member->ended(player.open.front())) {
        same ? retire_right(player) : static_cast<void>(retire(player));
      }
      // Precondition of a deposit: the rank has begun.
      if (player.member->begin()) continue;
      Call call;
      call.shape = {elements};
      call.count = elements;
      call.op = same || !dice_.one_in(10) ? Op::kAllReduce : Op::kBroadcast;
      if (!same && dice_.one_in(20)) call.shape = {++call.count};
      if (transfers) {
        if (rank != from && rank != (from + 1) % ranks) continue;
        if (ranks == 1) continue;
        call.op = rank == from ? Op::kSend : Op::kRecv;
        call.peer = rank == from ? (from + 1) % ranks : from;
      }
      RowMajor operand = row(call.count, static_cast<float>(rank + 1)), result;
      if (call.op == Op::kRecv) {
        result = operand;
      } else if (call.op != Op::kSend) {
        result = row(call.count, 0);
      } else {
        result = row(0, 0);
      }
      player.results.push_back(result);

      player.open.push_back(player.member->deposit({call, std::move(operand), std::move(result)}));
      for (std::uint64_t steps = dice_.below(6); steps > 0 && world_->step(dice_, change);
           --steps) {
      }
    }
    if (same || dice_.one_in(2)) settle(change);
  }

  // All operations that ranks of the undisturbed group have open must exist.
  void check(std::vector<Player>& players) {
    settle([](Sent) {});
    for (Player& player : players) {
      while (!player.open.empty()) {
        if (!player.member->ended(player.open.front())) fail("the quiet group waits");
        retire_right(player);
      }
    }
  }
  // The oldest result of a rank of the undisturbed group must be 1 + 2 + 3.
  void retire_right(Player& player) {
    const RowMajor result = player.results.empty() ? RowMajor() : player.results.front();
    if (!retire(player).ok()) fail("a collective of the quiet group fails");
    for (std::size_t i = 0; i < result.bytes / sizeof(float); ++i) {
      if (reinterpret_cast<const float*>(result.data())[i] != 6.0f) {
        fail("a wrong sum in the quiet group");
      }
    }
    ++sums;
  }
  Status retire(Player& player) {
    const Status status = player.member->take(player.open.front()).status;
    player.open.pop_front();
    if (!player.results.empty()) player.results.pop_front();
    return status;
  }
  void end(std::vector<Player>& players) {
    for (Player& player : players) player.member->leave("has ended its session");
    players.clear();
  }

  RowMajor row(std::int64_t elements, float value) {
    RowMajor row;
    row.bytes = static_cast<std::size_t>(elements) * sizeof(float);
    row.storage = memory::Pinned(pool_->allocate_shared(row.bytes, 1));
    if (!row.storage) fail("no memory for an operand");
    std::fill_n(reinterpret_cast<float*>(row.data()), elements, value);
    return row;
  }

  // Delivers the message from b to a, or another one in its place.
  void attack(Sent sent) {
    if (seen_.size() < 64)
      seen_.push_back(sent);
    else
      seen_[dice_.below(seen_.size())] = sent;
    switch (dice_.below(calm_)) {
      case 0:  // the message twice
        take(sent);
        return take(sent);
      case 1:  // no message
        return;
      case 2:  // an earlier message instead
        return take(seen_[dice_.below(seen_.size())]);
      case 3:
      case 4:
        mutate(sent);
        return take(sent);
      case 5:  // an additional message
        take(sent);
        sent = seen_[dice_.below(seen_.size())];
        mutate(sent);
        return take(sent);
      case 6:
        return take(sent, true);
      default:
        return take(sent);
    }
  }

  void mutate(Sent& sent) {
    PeerMessage& m = sent.message;
    collective::Message& g = m.message;
    const auto changed = [&](auto& field) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(
          dice_.wild(static_cast<std::uint64_t>(field)));
    };
    for (std::uint64_t times = 1 + dice_.below(3); times > 0; --times) {
      switch (dice_.below(23)) {
        case 0:
          m.kind = PeerMessage::Kind(1 + dice_.below(7));
          break;
        case 1:
          changed(m.epoch.former);
          break;
        case 2:
          changed(m.epoch.number);
          break;
        case 3:
          m.name = dice_.one_in(2) ? "quiet" : "";
          break;
        case 4:
          m.ranks = static_cast<Rank>(dice_.below(6));
          break;
        case 5:
          m.rank = static_cast<Rank>(dice_.below(6));
          break;
        case 6:
          changed(m.ticket);
          break;
        case 7:
          places(m);
          break;
        case 8:
          g.kind = collective::Kind(1 + dice_.below(12));
          break;
        case 9:
          g.purpose = collective::Purpose(1 + dice_.below(5));
          break;
        case 10:
          changed(g.level);
          break;
        case 11:
          changed(g.number);
          break;
        case 12:
          changed(g.done);
          break;
        case 13:
          changed(g.range.begin);
          break;
        case 14:
          changed(g.range.end);
          break;
        case 15:
          g.from = static_cast<Rank>(dice_.below(6));
          break;
        case 16:
          g.to = static_cast<Rank>(dice_.below(6));
          break;
        case 17:
          changed(g.vote.fingerprint);
          break;
        case 18:
          g.vote.failed = static_cast<Rank>(dice_.wild(1));
          break;
        case 19:
          g.vote.claims.resize(dice_.below(17));
          break;
        case 20:
          changed(g.vote.announced);
          break;
        case 21:
          kept(m);
          break;
        default:
          sent.payload.resize(dice_.below(2 * sent.payload.size() + 9));
          break;
      }
    }
    g.payload = static_cast<std::int64_t>(sent.payload.size());
  }
  // Lists groups that daemon b claims to have kept: groups of messages that b has sent, and unknown
  // groups.
  void kept(PeerMessage& m) {
    m.kind = PeerMessage::Kind::kKept;
    m.kept.resize(dice_.below(4));
    for (PeerMessage::Kept& each : m.kept) {
      each.epoch = seen_[dice_.below(seen_.size())].message.epoch;
      if (dice_.one_in(4)) each.epoch.number = dice_.wild(each.epoch.number);
      each.generation = dice_.below(3);
      if (dice_.one_in(4)) each.generation = dice_.wild(each.generation);
    }
  }
  void places(PeerMessage& m) {
    m.places.resize(dice_.below(4));
    for (PeerMessage::Place& place : m.places) {
      place.daemon = std::string(1, static_cast<char>('a' + dice_.below(4)));
      place.members.resize(dice_.below(3));
      for (auto& member : place.members) {
        member = {static_cast<Rank>(dice_.below(6)), dice_.below(9)};
      }
    }
  }

  // Decodes the bytes of a frame as the daemon does.
  void take(const Sent& sent, bool damage = false) {
    const std::string text = server::encode_numbers(1, 0) + server::encode_message(sent.message);
    const auto header = server::frame_header(text.size(), sent.payload.size());
    std::string bytes = std::string(header.data(), header.size()) + text + sent.payload;
    if (damage) {
      ++damaged;
      for (std::uint64_t n = 1 + dice_.below(3); n > 0; --n) {
        bytes[dice_.below(bytes.size())] = static_cast<char>(dice_.below(256));
      }
      if (dice_.one_in(4)) bytes.resize(dice_.below(bytes.size() + 1));
    }
    ++delivered;
    const Status status = take_bytes(bytes);
    if (status.ok()) return;
    world_->break_link(status.message());
    ++refused;
  }

  // Takes the bytes of a connection, which arrive in pieces. Damage to a header can make one frame
  // of several, or let the daemon wait for bytes that never come.
  Status take_bytes(std::string_view bytes) {
    server::FrameInput input;
    input.accept(server::kMaxPeerTexts, server::kMaxPeerPayload);
    std::size_t taken = 0;
    while (!bytes.empty()) {
      const std::span<char> room = input.room();
      if (room.empty()) fail("no room for the bytes of a frame");
      const std::size_t piece = std::min({room.size(), bytes.size(), 1 + dice_.below(5000)});
      std::memcpy(room.data(), bytes.data(), piece);
      input.filled(piece);
      bytes.remove_prefix(piece);
      while (true) {
        const core::Result<std::optional<server::FrameInput::Frame>> frame = input.next();
        if (!frame.ok()) return frame.status();
        if (!*frame) break;
        ++taken;
        TT_RETURN_IF_ERROR(take_frame(**frame));
      }
    }
    return taken > 0 ? Status() : core::invalid("nothing has arrived for 8 s");
  }

  Status take_frame(const server::FrameInput::Frame& frame) {
    const auto decoded = server::decode_frame(frame.text, frame.payload);
    if (!decoded.ok()) return decoded.status();
    if (decoded->hello || decoded->end) return core::invalid("a second hello, or the end");
    if (decoded->number == 0 || decoded->move) return {};
    return world_->deliver(1, 0,
                           {decoded->message, {decoded->payload.data(), decoded->payload.size()}});
  }

  Dice dice_;
  // Of this number of messages about seven are changed; it differs from run to run.
  const std::uint64_t calm_ = 16ull << dice_.below(5);
  runtime::testing::Box box_{256u << 20};
  memory::PoolHandle pool_{memory::Pool::create(box_.devices.at(0).pool(), 1, 0)};
  Sums adder_{pool_};
  World* world_ = nullptr;
  std::vector<Player> quiet_, loud_;
  std::vector<Sent> seen_;
};

}  // namespace
}  // namespace teletensor::fuzz

int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1, runs = 0, delivered = 0, refused = 0, damaged = 0, sums = 0;
  bool alone = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    const bool one = std::strcmp(argv[i], "--seed") == 0;
    if (one || std::strcmp(argv[i], "--from") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
      alone = one;
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    teletensor::fuzz::now_at("peer_fuzz: --seed %llu\n", static_cast<unsigned long long>(seed));
    teletensor::fuzz::Match match(seed++);
    match.run();
    ++runs;
    delivered += match.delivered;
    refused += match.refused;
    damaged += match.damaged;
    sums += match.sums;
  } while (!alone && std::chrono::steady_clock::now() < end);
  const auto n = [](std::uint64_t count) { return static_cast<unsigned long long>(count); };
  std::printf(
      "peer_fuzz: %llu runs, %llu messages of the hostile daemon, %llu of them refused, %llu "
      "damaged frames, %llu right sums of others\n",
      n(runs), n(delivered), n(refused), n(damaged), n(sums));
  return 0;
}
