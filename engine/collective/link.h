// Link: delivers the messages of two daemons to each other, in order and exactly once over any
// number of connections. It has no sockets: its owner moves frames.
//
// Parcels are numbered and kept until the peer has acknowledged them. A connection begins with each
// side's Hello, which says what it has received; the rest is sent again. A peer of another
// incarnation has forgotten everything: parcels that were put into a connection to the earlier
// incarnation are dropped, and numbers begin anew (see Participant::restarted). Parcels that were
// never put into a connection are kept: the group may have gone on over other daemons before this
// connection stands again, and no other part of the program sends them again. Only messages of
// sends and receives are dropped among them, because Participant::restarted offers those again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "engine/collective/message.h"

namespace teletensor::collective {

// A message, where its payload is, and what keeps that alive until it is acknowledged.
struct Parcel {
  Message message;
  std::vector<Slice> slices;
  std::shared_ptr<const void> held;
};

class Link {
 public:
  struct Hello {
    std::uint64_t incarnation = 0;  // of a daemon's process: never 0
    std::uint64_t received = 0;     // parcels, of the incarnation that `of` names
    std::uint64_t of = 0;
  };
  struct Frame {
    std::uint64_t number = 0;  // of the parcel, from 1; 0: an acknowledgement alone
    std::uint64_t received = 0;
    Parcel parcel;
  };

  // window: bytes of payload that may be sent and not acknowledged; one parcel always may.
  Link(std::uint64_t incarnation, std::int64_t window)
      : incarnation_(incarnation), window_(window) {}

  void send(Parcel parcel) { parcels_.push_back(std::move(parcel)); }

  Hello hello() const { return {incarnation_, received_, peer_}; }
  // A connection stands. True: the peer has restarted.
  bool connected(const Hello& peer);
  void disconnected() { connected_ = false; }
  bool is_connected() const { return connected_; }

  // The next frame to put into the connection, if any.
  std::optional<Frame> next();
  // True: the frame's parcel is for the owner. InvalidArgument: not the next one, or an
  // acknowledgement of what was not sent.
  core::Result<bool> receive(const Frame& frame);
  // Something was received that no frame has acknowledged yet.
  bool owes() const { return connected_ && owes_; }
  Frame acknowledgement();

  std::int64_t in_flight() const { return in_flight_; }  // bytes of payload
  bool idle() const { return parcels_.empty(); }

 private:
  bool acknowledge(std::uint64_t received);

  const std::uint64_t incarnation_;
  const std::int64_t window_;
  std::deque<Parcel> parcels_;  // from number acknowledged_ + 1; the first sent_ of them are sent
  std::size_t sent_ = 0;
  std::int64_t in_flight_ = 0;
  std::uint64_t tried_ = 0;  // the highest number ever put into a connection to this incarnation
  std::uint64_t acknowledged_ = 0, received_ = 0, peer_ = 0;
  bool connected_ = false, owes_ = false;
};

}  // namespace teletensor::collective
