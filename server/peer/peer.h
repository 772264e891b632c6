// Peer: what this daemon knows of one peer: the connection, the link that numbers and keeps
// messages, and when to dial, to acknowledge and to give the peer up.
//
// The link has an incarnation of its own, made anew when the peer is lost: after that the peer is
// told that its messages of before are forgotten, as by a daemon that has restarted.
//
// Threads: callbacks of gRPC, callers of send(), and the clock of Peers. The receiver is called
// under `deliver_`, so one call at a time; `mutex_` is never held while code outside this class
// runs. No callback of gRPC runs inside StartRead or StartWrite: gRPC calls back from threads of
// its own, so a caller of send() may hold a lock that the receiver takes.
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
#include "engine/runtime/fabric.h"
#include "server/peer/peer_codec.h"
#include "server/peer/peer_stream.h"

namespace teletensor::server {

inline constexpr std::size_t kPeerReason = 300;  // bytes of a reason in the log

// A message that is encoded once, and what is sent with it.
struct PeerParcel {
  std::shared_ptr<const std::string> message;
  runtime::Fabric::Payload payload;
  std::int64_t bytes = 0;  // of the payload

  std::int64_t payload_bytes() const { return bytes; }
  bool for_any_incarnation() const { return false; }
};

// Whoever is told what peers say of sessions that move.
class MoveReceiver {
 public:
  virtual ~MoveReceiver() = default;
  // As runtime::Fabric::Receiver's.
  virtual void met(const std::string& peer) = 0;
  virtual core::Status received(const std::string& peer, v1::PeerMove move,
                                std::string payload) = 0;
  virtual void lost(const std::string& peer, const std::string& why) = 0;
};

// What the peers of a daemon have in common. It outlives them and their streams.
struct PeerHome {
  std::string name;  // of this daemon
  bool tls = false;
  std::chrono::milliseconds patience{30'000};
  runtime::Fabric::Receiver* receiver = nullptr;
  MoveReceiver* moves = nullptr;  // null: no session moves
  std::function<std::shared_ptr<grpc::Channel>(const std::string& peer)> channel;
  std::function<void()> look_again;  // tick() of a peer is due earlier than it has said
  std::atomic<int> streams{0};       // of all peers that have not been closed
  // Pieces of memory that gRPC has not given back.
  std::shared_ptr<std::atomic<std::int64_t>> lent = std::make_shared<std::atomic<std::int64_t>>(0);
};

// In an owner's closed(): counts the stream as ended when all else is done, because the owner may
// be destroyed then.
struct StreamEnd {
  PeerHome& home;
  ~StreamEnd();
};

// Random, never 0.
std::uint64_t new_incarnation();

// PeerFacts: a peer as an operator sees it.
struct PeerFacts {
  std::string name;
  bool connected = false;
  std::uint64_t connections = 0;         // that have stood, since the daemon began
  std::uint64_t losses = 0;              // how often it was given up
  std::uint64_t sent = 0, received = 0;  // bytes of frames
};

class Peer final : public PeerStream::Owner {
 public:
  using Clock = core::Clock;
  static constexpr std::chrono::seconds kHandshake{5};  // from the start of a connection to a hello

  Peer(std::string name, PeerHome& home);

  const std::string& name() const { return name_; }
  // This daemon calls the peer, not the other way round.
  bool dials() const { return home_.name < name_; }
  bool connected();

  void send(PeerParcel parcel);
  // A connection of this peer, whose hello is valid, takes the place of an earlier one.
  // Precondition: the caller is in the received() of the stream's owner.
  void accept(const PeerStream::Ref& stream, const PeerHello& hello);
  PeerFacts facts();
  // Does what is due. Returns when something is due again, if it is known.
  Clock::time_point tick(Clock::time_point now);
  // Is there a message that is sent or could be sent now, and that the peer has not acknowledged?
  bool busy();
  // Ends the connection, and dials and sends no more. Nothing is told of the peer afterwards but
  // what is being told.
  void stop();

  void received(const PeerStream::Ref& stream, grpc::ByteBuffer frame) override;
  std::optional<grpc::ByteBuffer> next(const PeerStream::Ref& stream) override;
  void closed(const PeerStream::Ref& stream, const std::string& why) override;

 private:
  using Link = collective::BasicLink<PeerParcel>;

  void dial();
  core::Status greet(const PeerStream::Ref& stream, const PeerHello& hello);
  void stand(const PeerStream::Ref& stream, const PeerHello& hello) TT_REQUIRES(deliver_);
  core::Status take(const PeerStream::Ref& stream, PeerFrame& frame) TT_REQUIRES(deliver_);
  void lose(const std::string& why) TT_REQUIRES(deliver_);
  std::optional<grpc::ByteBuffer> next_frame() TT_REQUIRES(mutex_);
  void note_receipt(std::size_t bytes) TT_REQUIRES(mutex_);
  void detach(Clock::time_point now) TT_REQUIRES(mutex_);
  bool is_lost(Clock::time_point now) TT_REQUIRES(mutex_);

  const std::string name_;
  PeerHome& home_;

  core::Mutex deliver_;  // before mutex_
  core::Mutex mutex_;
  std::unique_ptr<Link> link_ TT_GUARDED_BY(mutex_);
  PeerStream::Ref stream_ TT_GUARDED_BY(mutex_);
  std::optional<std::string> hello_ TT_GUARDED_BY(mutex_);  // to be written first
  bool standing_ TT_GUARDED_BY(mutex_) = false;             // the peer's hello has come
  bool known_ TT_GUARDED_BY(mutex_) = false;                // met, and not lost since
  bool stopped_ TT_GUARDED_BY(mutex_) = false;
  PeerFacts facts_ TT_GUARDED_BY(mutex_);       // without name and connected
  std::string last_why_ TT_GUARDED_BY(mutex_);  // of a connection that did not come to stand
  // Since when the peer is missed; none: it is connected, or neither known nor sent to.
  std::optional<Clock::time_point> missed_ TT_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> acknowledge_at_ TT_GUARDED_BY(mutex_);
  std::size_t unacknowledged_ TT_GUARDED_BY(mutex_) = 0;  // bytes received
  Clock::time_point greet_until_ TT_GUARDED_BY(mutex_);
  Clock::time_point dial_at_ TT_GUARDED_BY(mutex_);
  std::chrono::milliseconds pause_ TT_GUARDED_BY(mutex_);  // before the next call
  std::minstd_rand random_ TT_GUARDED_BY(mutex_);
};

// Is the hello one that a peer of this name may say on this stream? PermissionDenied or
// FailedPrecondition says why not.
core::Status check_hello(const PeerHello& hello, const PeerStream& stream, const PeerHome& home);
// What a frame says; ResourceExhausted where there is no memory for it.
core::Result<PeerFrame> read_frame(const grpc::ByteBuffer& bytes, std::vector<grpc::Slice>* memory);

}  // namespace teletensor::server
