// Peer manages the connection to one other daemon: the link that numbers and keeps messages, and
// the times at which to connect, to acknowledge messages and to give up the peer.
// The link has its own incarnation, which is renewed when the peer is lost. The peer then knows
// that messages of the earlier incarnation were forgotten, as after a restart of the daemon.
// Threads: those of the loop, callers of send(), and the timer of Peers. The receiver is called
// with `deliver_` locked, so its calls do not overlap. `mutex_` is never locked while code outside
// this class runs. Only threads of the loop call the receiver, never from inside wake() or end(); a
// caller of send() may therefore hold a lock that the receiver acquires.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/collective/link.h"
#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/runtime/groups/fabric.h"
#include "server/peer/peer_codec.h"
#include "server/peer/peer_stream.h"

namespace teletensor::server {

inline constexpr std::size_t kPeerReason = 300;  // Maximum length of a reason in the log, in bytes.

// A message, encoded once, and its payload.
struct PeerParcel {
  std::shared_ptr<const std::string> message;
  runtime::Fabric::Payload payload;
  std::int64_t bytes = 0;  // Size of the payload in bytes.
  bool first = false;      // It is sent before all parcels that have not been sent yet.

  std::int64_t payload_bytes() const { return bytes; }
  bool for_any_incarnation() const { return false; }
};

// Receives the messages of peers about sessions that move.
class MoveReceiver {
 public:
  virtual ~MoveReceiver() = default;
  // Calls with the same contract as those of runtime::Fabric::Receiver.
  virtual void met(const std::string& peer) = 0;
  virtual core::Status received(const std::string& peer, v1::PeerMove move,
                                std::string payload) = 0;
  virtual void lost(const std::string& peer, const std::string& why) = 0;
};

// Data that all peers of a daemon share. It outlives them and their streams.
struct PeerHome {
  std::string name;  // Name of this daemon.
  PeerStream::Home streams;
  std::chrono::milliseconds patience{30'000};
  runtime::Fabric::Receiver* receiver = nullptr;
  // Receives messages about sessions that move. Null if no session moves.
  MoveReceiver* moves = nullptr;
  // Called when the tick() of a peer must run earlier than tick() has returned.
  std::function<void()> look_again;
};

// Returns a random number that is never 0.
std::uint64_t new_incarnation();

// The state of a peer for operators.
struct PeerFacts {
  std::string name;
  bool connected = false;
  std::uint64_t connections = 0;  // Number of established connections since the daemon started.
  std::uint64_t losses = 0;       // Number of times that the peer was given up.
  std::uint64_t sent = 0, received = 0;  // Size of the frames in bytes.
};

class Peer final : public PeerStream::Owner {
 public:
  using Clock = core::Clock;
  // Maximum time from the start of a connection to a valid hello.
  static constexpr std::chrono::seconds kHandshake{5};

  // `address` is that of the peer, "HOST:PORT".
  Peer(std::string name, const std::string& address, PeerHome& home);

  const std::string& name() const { return name_; }
  // Returns true if this daemon connects to the peer, and false if the peer connects to this
  // daemon.
  bool dials() const { return home_.name < name_; }
  bool connected();

  void send(PeerParcel parcel);
  // Replaces an earlier connection by this one, whose hello is valid. Precondition: the caller is
  // inside the received() of the stream's owner.
  void accept(const PeerStream::Ref& stream, const PeerHello& hello);
  PeerFacts facts();
  // Why there is no connection: the error of the last attempt, if this daemon connects to the peer.
  // Empty if there is one.
  std::string why_disconnected();
  // Connects, acknowledges messages or gives up the peer, if one of these is due. Returns the time
  // of the next call, if it is known.
  Clock::time_point tick(Clock::time_point now);
  // Returns true if the peer has not acknowledged a message that was sent or could be sent now.
  bool busy();
  // Ends the connection, and neither connects nor sends afterwards. Apart from a running call,
  // nothing is reported about the peer afterwards.
  void stop();

  void received(const PeerStream::Ref& stream, const FrameInput::Frame& bytes) override;
  std::optional<FrameOutput::Frame> next(const PeerStream::Ref& stream) override;
  void closed(const PeerStream::Ref& stream, const std::string& why) override;

 private:
  using Link = collective::BasicLink<PeerParcel>;
  // When to acknowledge messages if no other frame does.
  struct Receipts {
    std::size_t bytes = 0;  // Bytes received and not acknowledged.
    // Time at which tick() acknowledges what no other frame has acknowledged by then. Most messages
    // are answered before, so the time is not set again for each of them.
    std::optional<Clock::time_point> look_at;
    bool late = false;  // Whether that time has passed.
  };
  // When to connect next.
  struct Redial {
    Clock::time_point at;
    std::chrono::milliseconds pause;  // Pause after the next attempt that fails.
    std::minstd_rand random;
  };

  void dial();
  core::Status greet(const PeerStream::Ref& stream, const PeerHello& hello) TT_REQUIRES(deliver_);
  void stand(const PeerStream::Ref& stream, const PeerHello& hello) TT_REQUIRES(deliver_);
  core::Status take(const PeerStream::Ref& stream, PeerFrame& frame) TT_REQUIRES(deliver_);
  void lose(const std::string& why) TT_REQUIRES(deliver_);
  std::optional<FrameOutput::Frame> next_frame() TT_REQUIRES(mutex_);
  void note_receipt(std::size_t bytes) TT_REQUIRES(mutex_);
  void acknowledged() TT_REQUIRES(mutex_);
  void detach(Clock::time_point now) TT_REQUIRES(mutex_);
  bool is_lost(Clock::time_point now) TT_REQUIRES(mutex_);

  const std::string name_;
  const std::shared_ptr<PeerAddress> address_;
  PeerHome& home_;

  core::Mutex deliver_;  // Locked before mutex_.
  core::Mutex mutex_;
  std::unique_ptr<Link> link_ TT_GUARDED_BY(mutex_);
  PeerStream::Ref stream_ TT_GUARDED_BY(mutex_);
  std::optional<std::string> hello_ TT_GUARDED_BY(mutex_);  // The hello that is written first.
  bool standing_ TT_GUARDED_BY(mutex_) = false;  // Whether the peer's hello was received.
  // Whether the receiver was told met(), and not lost() since.
  bool known_ TT_GUARDED_BY(mutex_) = false;
  // Whether a call of met() is running. Nothing is sent until it has returned, so that its messages
  // can precede those that other threads send meanwhile.
  bool meeting_ TT_GUARDED_BY(mutex_) = false;
  bool stopped_ TT_GUARDED_BY(mutex_) = false;
  // Counters for facts(). `name` and `connected` are not set here.
  PeerFacts facts_ TT_GUARDED_BY(mutex_);
  std::string last_why_ TT_GUARDED_BY(mutex_);  // Reason why the last attempt to connect failed.
  // Time since which the peer is missing. None if it is connected, or if there was neither contact
  // nor a message for it.
  std::optional<Clock::time_point> missed_ TT_GUARDED_BY(mutex_);
  Clock::time_point sent_at_ TT_GUARDED_BY(mutex_);  // Time of the last frame.
  Receipts receipts_ TT_GUARDED_BY(mutex_);
  Clock::time_point greet_until_ TT_GUARDED_BY(mutex_);
  Redial redial_ TT_GUARDED_BY(mutex_);
};

// Checks whether a peer of this name may send this hello on this stream. Returns PermissionDenied
// or FailedPrecondition with the reason if not.
core::Status check_hello(const PeerHello& hello, const PeerStream& stream, const PeerHome& home);
// Decodes a frame. ResourceExhausted if there is not enough memory.
core::Result<PeerFrame> read_frame(const FrameInput::Frame& bytes);

}  // namespace teletensor::server
