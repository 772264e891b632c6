// Peers implements runtime::Fabric: the connections to the daemons that the operator has listed
// (--peers), and the messages on them.
// Of two daemons, the one whose name is smaller connects to the other. Except on the loopback
// interface, both present certificates, and the name that a daemon states must be a DNS name in its
// certificate. Threads: those of the loop, one that accepts connections, and a timer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/groups/fabric.h"
#include "server/access/certificates.h"
#include "server/peer/peer.h"
#include "server/peer/peer_options.h"

namespace teletensor::server {

class Peers final : public runtime::Fabric, private PeerStream::Owner {
 public:
  // Returns an error that says what is wrong with the certificates. Messages may be sent after
  // create(), but none is received before start(). Precondition: `options` come from peer_options()
  // and have a name.
  static core::Result<std::unique_ptr<Peers>> create(PeerOptions options);
  ~Peers() override;  // Calls stop().

  // Listens and connects to the peers. Returns an error that says why the address is refused or in
  // use. `receiver` is called until stop() returns. `moves` receives messages about sessions that
  // move; null: no session moves.
  core::Status start(Receiver& receiver, MoveReceiver* moves = nullptr);
  // Waits at most one second until connected peers have received what was sent to them, and ends
  // all connections. Afterwards no call of the receiver is running, no payload memory is held, and
  // nothing is sent. May be called several times by one thread.
  void stop();
  // The state of all peers, sorted by name. Thread-safe, also after stop().
  std::vector<PeerFacts> facts() const;
  // Number of refused connections. Thread-safe.
  std::uint64_t refused() const;
  // The address where the daemon listens for peers, with the actual port.
  const std::string& address() const { return address_; }

  const std::string& name() const override { return options_.name; }
  std::uint64_t incarnation() const override { return incarnation_; }
  std::vector<std::string> peers() const override;
  std::string disconnected() const override;
  // Additional precondition: the payload is at most 64 MiB.
  void send(const std::string& peer, runtime::PeerMessage message, Payload payload = {}) override;
  // Sends a message about a session that moves. `data` has at most kMaxMoveData bytes.
  void send_move(const std::string& peer, v1::PeerMove move, std::string data = "");
  // Returns false if the peer is not in --peers.
  bool knows(const std::string& peer) const { return peers_.contains(peer); }
  // Returns true if the peer is connected now. Precondition: knows(peer).
  bool connected(const std::string& peer) { return peers_.at(peer)->connected(); }
  // Returns true if the address where peers connect to this daemon is a loopback address.
  bool local() const;

 private:
  // A connection whose hello was not received yet.
  struct PendingConnection {
    PeerStream::Ref stream;
    core::Clock::time_point until;
  };

  Peers(PeerOptions options, std::shared_ptr<Certificates> certificates);
  core::Status listen();
  void admit(Socket socket);
  core::Status accept_hello(const PeerStream::Ref& stream, const FrameInput::Frame& bytes);
  // Returns false if the stream is not waiting for a hello.
  bool forget_stranger(const PeerStream::Ref& stream);
  core::Clock::time_point end_late_strangers(core::Clock::time_point now);
  void refused(const std::string& why);
  void look_again();
  void run_timer();

  // ---- PeerStream::Owner, for connections without a hello
  void received(const PeerStream::Ref& stream, const FrameInput::Frame& bytes) override;
  std::optional<FrameOutput::Frame> next(const PeerStream::Ref& stream) override;
  void closed(const PeerStream::Ref& stream, const std::string& why) override;

  const PeerOptions options_;
  const std::shared_ptr<Certificates> certificates_;  // Certificates for TLS. Null disables TLS.
  const std::uint64_t incarnation_;
  PeerHome home_;
  // The peers by name; constant after construction.
  std::map<std::string, std::unique_ptr<Peer>> peers_;
  std::string address_;
  std::unique_ptr<PeerTls> tls_;  // Null without TLS.
  std::unique_ptr<SocketLoop> loop_;
  std::unique_ptr<PeerListener> listener_;
  std::thread clock_;

  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::vector<PendingConnection> strangers_ TT_GUARDED_BY(mutex_);
  std::uint64_t refused_ TT_GUARDED_BY(mutex_) = 0;
  bool look_again_ TT_GUARDED_BY(mutex_) = false;
  bool stopping_ TT_GUARDED_BY(mutex_) = false;
  bool over_ TT_GUARDED_BY(mutex_) = false;  // Whether the timer thread is to end.
};

}  // namespace teletensor::server
