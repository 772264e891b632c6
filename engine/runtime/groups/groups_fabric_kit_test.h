// Helpers of the tests of groups over several daemons, which a fabric in memory connects.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/groups/groups_kit_test.h"

namespace teletensor::runtime::testing {

// Daemons whose messages are queued until the test delivers them.
class Network {
 public:
  class Daemon : public Fabric {
   public:
    Daemon(Network& network, std::string name, Groups::Adder& adder)
        : groups(adder), network_(network), name_(std::move(name)) {
      receiver = &groups.connect(*this);
    }
    const std::string& name() const override { return name_; }
    std::uint64_t incarnation() const override { return incarnation_; }
    std::vector<std::string> peers() const override {
      std::vector<std::string> peers;
      for (const auto& [name, daemon] : network_.daemons_) {
        if (name != name_) peers.push_back(name);
      }
      return peers;
    }
    std::string disconnected() const override { return network_.disconnected; }
    void send(const std::string& peer, PeerMessage message, Payload payload) override {
      core::MutexLock lock(network_.mu_);
      network_.wires_[{name_, peer}].push_back({std::move(message), std::move(payload)});
    }
    Groups groups;
    Fabric::Receiver* receiver;

   private:
    Network& network_;
    const std::string name_;
    const std::uint64_t incarnation_ = ++network_.incarnations_;
  };

  explicit Network(Groups::Adder& adder) : adder_(adder) {}
  Daemon& add(const std::string& name) {
    return *(daemons_[name] = std::make_unique<Daemon>(*this, name, adder_));
  }
  Daemon& operator[](const std::string& name) { return *daemons_.at(name); }

  // Delivers the oldest message of a randomly chosen wire. Returns false if there is none.
  bool step(std::mt19937& dice) {
    Wire wire;
    Parcel parcel;
    {
      core::MutexLock lock(mu_);
      std::vector<Wire> full;
      for (const auto& [key, parcels] : wires_) {
        if (!parcels.empty() && !cut.contains(key.first) && !cut.contains(key.second)) {
          full.push_back(key);
        }
      }
      if (full.empty()) return false;
      wire = full[dice() % full.size()];
      parcel = std::move(wires_[wire].front());
      wires_[wire].pop_front();
    }
    const Status status =
        daemons_.at(wire.second)
            ->receiver->received(wire.first, parcel.message, parcel.payload.parts);
    EXPECT_TRUE(status.ok()) << wire.second << " refuses a message of " << wire.first << ": "
                             << status.message();
    return true;
  }
  void settle(unsigned seed = 1) {
    std::mt19937 dice(seed);
    while (step(dice)) {
    }
  }
  // Stops the daemon and informs the other daemons.
  void kill(const std::string& name) {
    cut.insert(name);
    for (const auto& [other, daemon] : daemons_) {
      if (other != name) daemon->receiver->lost(name, "no connection for 30 s");
    }
  }
  // Replaces the daemon by a new process. Messages on their way to and from it are dropped.
  void replace(const std::string& name) {
    {
      core::MutexLock lock(mu_);
      for (auto& [wire, parcels] : wires_) {
        if (wire.first == name || wire.second == name) parcels.clear();
      }
    }
    add(name);
  }
  void meet(const std::string& name) {
    for (const auto& [other, daemon] : daemons_) {
      if (other == name) continue;
      daemon->receiver->met(name);
      daemons_.at(name)->receiver->met(other);
    }
  }
  std::set<std::string> cut;
  std::string disconnected;  // what Fabric::disconnected() returns

 private:
  using Wire = std::pair<std::string, std::string>;
  struct Parcel {
    PeerMessage message;
    Fabric::Payload payload;
  };
  Groups::Adder& adder_;
  std::uint64_t incarnations_ = 0;
  core::Mutex mu_;
  std::map<Wire, std::deque<Parcel>> wires_ TT_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<Daemon>> daemons_;
};

class GroupsFabric : public GroupsKit {
 protected:
  GroupsFabric() {
    for (const char* const name : {"a", "b", "c"}) network_.add(name);
  }
  MemberRef join(const std::string& daemon, collective::Rank rank, collective::Rank ranks,
                 milliseconds timeout = kLong) {
    auto member = network_[daemon].groups.join(
        {"alice", "g", rank, ranks, timeout, "session of rank " + std::to_string(rank)});
    EXPECT_TRUE(member.ok()) << member.status().message();
    return std::make_shared<TestRank>(*member);
  }
  // Lets all ranks join and begin; rank i is in the daemon named placement[i].
  std::vector<MemberRef> join_all(const std::string& placement) {
    std::vector<MemberRef> members;
    const auto ranks = static_cast<collective::Rank>(placement.size());
    for (collective::Rank rank = 0; rank < ranks; ++rank) {
      members.push_back(join(std::string(1, placement[rank]), rank, ranks));
    }
    for (const MemberRef& member : members) (void)member->begin();
    network_.settle();
    for (const MemberRef& member : members) EXPECT_TRUE(member->begin());
    return members;
  }
  Network network_{adder_};
};

}  // namespace teletensor::runtime::testing
