// Fabric: carries messages between this daemon and its peers, the other daemons that its operator
// has configured. Messages from one daemon to another arrive in order and exactly once, over any
// number of connections, until one of the two daemons restarts.
//
// A group over several daemons is formed in three steps by the daemon with rank 0, the former. Each
// daemon registers its sessions' ranks with all peers. When the former knows the registrations of
// all ranks, it sends the list of places (kForm). A daemon that has created its part of the group
// answers kReady. When all daemons have answered, the former lets them begin (kGo). So a message of
// the group never reaches a daemon that does not know the group yet.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/collective/message.h"

namespace teletensor::runtime {

// One incarnation of a group over several daemons.
struct EpochId {
  std::uint64_t former = 0;  // the incarnation of the daemon that formed it
  std::uint64_t number = 0;  // counts the epochs formed by this incarnation of the daemon
  friend auto operator<=>(const EpochId&, const EpochId&) = default;
};

struct PeerMessage {
  // These values are sent between daemons and are never renumbered.
  enum class Kind : std::uint8_t {
    // user, name, ranks, rank, elastic, ticket, text: a session wants to be this rank, or, with the
    // ticket 0, is this rank of a group that runs.
    kRegister = 1,
    kWithdraw = 2,  // ticket: the registration is withdrawn, or its group has formed
    kForm = 3,      // epoch, user, name, ranks, places
    kReady = 4,     // epoch; text: why this daemon cannot take part, or empty
    kGo = 5,        // epoch
    kGroup = 6,     // epoch, message; message.payload bytes follow
    // kept: the epochs of the sender that have ranks of the receiver; the first message after two
    // daemons have connected.
    kKept = 7,
  };
  struct Kept {
    EpochId epoch;
    std::uint64_t generation = 0;  // generation of the epoch's cut
    friend bool operator==(const Kept&, const Kept&) = default;
  };
  struct Member {
    collective::Rank rank = 0;
    std::uint64_t ticket = 0;
    friend bool operator==(const Member&, const Member&) = default;
  };
  struct Place {
    std::string daemon;
    std::vector<Member> members;  // ascending by rank
    friend bool operator==(const Place&, const Place&) = default;
  };

  Kind kind = Kind::kGroup;
  EpochId epoch;
  std::string user, name;  // together they identify the group
  collective::Rank ranks = 0, rank = 0;
  bool elastic = false;       // the group continues without ranks that are lost
  std::uint64_t ticket = 0;   // identifies a registration of the sending daemon
  std::string text;           // at most collective::kMaxNote bytes
  std::vector<Place> places;  // in the order of their lowest ranks
  std::vector<Kept> kept;
  collective::Message message;
};

// The contents of a payload, as consecutive pieces.
using Pieces = std::span<const std::span<const char>>;

class Fabric {
 public:
  // Calls that concern one peer are made one after another; those of different peers may overlap.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // Reports the first connection to this peer, or to a peer that has restarted. In the second
    // case all unacknowledged messages to it are dropped.
    virtual void met(const std::string& peer) = 0;
    // Returns InvalidArgument if the peer violates the protocol. The fabric then ends the
    // connection and calls lost().
    virtual core::Status received(const std::string& peer, const PeerMessage& message,
                                  Pieces payload) = 0;
    // Reports that the peer could not be reached for too long, or that it violated the protocol.
    // Unacknowledged messages are dropped. When the peer can be reached again, met() is called.
    virtual void lost(const std::string& peer, const std::string& why) = 0;
  };

  // Bytes that are sent with a message; `held` keeps their memory allocated until the peer has
  // received them.
  struct Payload {
    std::vector<std::span<const char>> parts;
    std::shared_ptr<const void> held;
  };

  virtual ~Fabric() = default;
  // The name of this daemon among its peers.
  virtual const std::string& name() const = 0;
  // A random number of this daemon's process, never 0.
  virtual std::uint64_t incarnation() const = 0;
  // The names of the other daemons.
  virtual std::vector<std::string> peers() const = 0;
  // Describes the peers without a connection and why they have none, for an error message. Empty if
  // all are connected.
  virtual std::string disconnected() const { return ""; }
  // Queues a message without waiting; may be called from a receiver. A kKept message precedes all
  // messages that were queued and not sent. Precondition: `peer` is one of peers().
  virtual void send(const std::string& peer, PeerMessage message, Payload payload = {}) = 0;
};

}  // namespace teletensor::runtime
