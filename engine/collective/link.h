// Link: delivers the messages of two daemons to each other, in order and exactly once, over any
// number of connections. It has no sockets: its owner transmits the frames.
//
// Parcels are numbered and kept until the peer has acknowledged them. A connection begins with a
// Hello from each side, which reports what it has received; the remaining parcels are sent again. A
// peer with another incarnation has lost its state: parcels that were put into a connection to the
// earlier incarnation are dropped, and numbers begin anew. The type of the parcels determines which
// of the other parcels are kept.
//
// A type of parcels has two member functions: payload_bytes(), and for_any_incarnation(), which
// returns false if the parcel is useless to a peer that has restarted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/collective/message.h"

namespace teletensor::collective {

// The message that each side sends when a connection begins.
struct LinkHello {
  std::uint64_t incarnation = 0;  // incarnation of the sender's link, never 0
  std::uint64_t received = 0;     // number of parcels received from the incarnation `of`
  std::uint64_t of = 0;
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

template <class Parcel>
class BasicLink {
 public:
  using Hello = LinkHello;
  struct Frame {
    // Number of the parcel, from 1; 0: the frame is only an acknowledgement.
    std::uint64_t number = 0;
    std::uint64_t received = 0;
    Parcel parcel;
  };

  // window: maximum bytes of payload that may be sent without acknowledgement; a single parcel may
  // exceed it.
  BasicLink(std::uint64_t incarnation, std::int64_t window)
      : incarnation_(incarnation), window_(window) {}

  void send(Parcel parcel) { parcels_.push_back(std::move(parcel)); }
  // Sends the parcel before all parcels that have not been put into a connection yet.
  void send_first(Parcel parcel) {
    const std::uint64_t tried = std::max<std::uint64_t>(tried_ - acknowledged_, sent_);
    parcels_.insert(parcels_.begin() + static_cast<std::ptrdiff_t>(tried), std::move(parcel));
  }

  Hello hello() const { return {incarnation_, received_, peer_}; }
  // Reports that a connection is established. Returns true if the peer has restarted. `released`,
  // here and below, receives the parcels that are no longer needed, so that the owner can destroy
  // them later.
  bool connected(const Hello& peer, std::vector<Parcel>* released = nullptr) {
    const bool restarted = peer_ != 0 && peer.incarnation != peer_;
    connected_ = true;
    owes_ = false;
    if (restarted) {
      forget(released);
    } else if (peer.of == incarnation_) {
      acknowledge(peer.received, released);
    }
    peer_ = peer.incarnation;
    sent_ = 0;
    in_flight_ = 0;
    return restarted;
  }
  void disconnected() { connected_ = false; }
  bool is_connected() const { return connected_; }

  // The next frame to put into the connection, if any.
  std::optional<Frame> next() {
    if (!connected_ || sent_ == parcels_.size()) return std::nullopt;
    const Parcel& parcel = parcels_[sent_];
    const std::int64_t bytes = parcel.payload_bytes();
    if (bytes > 0 && in_flight_ > 0 && in_flight_ + bytes > window_) return std::nullopt;
    in_flight_ += bytes;
    ++sent_;
    tried_ = std::max(tried_, acknowledged_ + sent_);
    owes_ = false;
    return Frame{acknowledged_ + sent_, received_, parcel};
  }
  // Returns true if the frame's parcel must be processed. Returns InvalidArgument if it is not the
  // next one, or if it acknowledges a parcel that was not sent. Only the number and `received` of
  // the frame are read.
  core::Result<bool> receive(const Frame& frame, std::vector<Parcel>* released = nullptr) {
    if (!acknowledge(frame.received, released)) {
      return core::invalid("link: a peer acknowledges a parcel that was not sent to it");
    }
    if (frame.number == 0) return false;
    if (frame.number != received_ + 1) {
      return core::invalid("link: a peer sends #" + std::to_string(frame.number) + " after #" +
                           std::to_string(received_));
    }
    ++received_;
    owes_ = true;
    return true;
  }
  // Returns true if parcels were received that no frame has acknowledged yet.
  bool owes() const { return connected_ && owes_; }
  Frame acknowledgement() {
    owes_ = false;
    return {0, received_, {}};
  }

  std::int64_t in_flight() const { return in_flight_; }  // unacknowledged bytes of payload
  bool idle() const { return parcels_.empty(); }

 private:
  bool acknowledge(std::uint64_t received, std::vector<Parcel>* released) {
    if (received < acknowledged_ || received > acknowledged_ + sent_) return false;
    for (; acknowledged_ < received; ++acknowledged_, --sent_) {
      in_flight_ -= parcels_.front().payload_bytes();
      if (released != nullptr) released->push_back(std::move(parcels_.front()));
      parcels_.pop_front();
    }
    return true;
  }

  // Drops the parcels for an earlier incarnation of the peer.
  void forget(std::vector<Parcel>* released) {
    std::deque<Parcel> kept;
    const std::uint64_t tried = tried_ - acknowledged_;
    for (std::size_t i = 0; i < parcels_.size(); ++i) {
      if (i >= tried && parcels_[i].for_any_incarnation()) {
        kept.push_back(std::move(parcels_[i]));
      } else if (released != nullptr) {
        released->push_back(std::move(parcels_[i]));
      }
    }
    parcels_.swap(kept);
    tried_ = acknowledged_ = received_ = 0;
  }

  const std::uint64_t incarnation_;
  const std::int64_t window_;
  // Parcels from number acknowledged_ + 1 on; the first sent_ of them are sent.
  std::deque<Parcel> parcels_;
  std::size_t sent_ = 0;
  std::int64_t in_flight_ = 0;
  std::uint64_t tried_ = 0;  // the highest number ever put into a connection to this incarnation
  std::uint64_t acknowledged_ = 0, received_ = 0, peer_ = 0;
  bool connected_ = false, owes_ = false;
};

// A message of a group, the location of its payload, and a reference that keeps the payload in
// memory until it is acknowledged.
struct Parcel {
  Message message;
  std::vector<Slice> slices;
  std::shared_ptr<const void> held;

  std::int64_t payload_bytes() const { return message.payload; }
  // Returns true for messages that no other part of the program sends again; the group may have
  // continued over other daemons before the connection is established again. Messages of sends and
  // receives are offered again by Participant::restarted().
  bool for_any_incarnation() const {
    return message.kind < Kind::kOffer || message.kind > Kind::kDone;
  }
};
using Link = BasicLink<Parcel>;

}  // namespace teletensor::collective
