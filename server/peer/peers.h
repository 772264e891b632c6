// Peers: the connections to the other daemons that the operator has named (--peers), and the
// messages that go over them: runtime::Fabric over gRPC.
//
// Of two daemons the one whose name is smaller calls the other. Off loopback both show
// certificates, and the name that a daemon says must be a DNS name of its own. Threads: those of
// gRPC's callbacks, and one for times.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/fabric.h"
#include "server/access/certificates.h"
#include "server/peer/peer.h"
#include "server/peer/peer_options.h"

namespace teletensor::server {

class Peers final : public runtime::Fabric, private PeerStream::Owner {
 public:
  // Says what is wrong with the certificates. Messages may be sent from now on; nothing is received
  // before start(). Precondition: options that peer_options() has made, with a name.
  static core::Result<std::unique_ptr<Peers>> create(PeerOptions options);
  ~Peers() override;  // as stop()

  // Listens and calls. Says why where the address is refused or taken. `receiver` is called until
  // stop() returns.
  // `moves`: as the receiver, of sessions that move; null: none does.
  core::Status start(Receiver& receiver, MoveReceiver* moves = nullptr);
  // Waits for at most a second until peers that are connected have what was sent to them, and ends
  // all connections. Then no call of the receiver is under way, no memory of a payload is held, and
  // nothing is sent any more. Any number of times, by one thread.
  void stop();
  // Of all peers, by name. Thread-safe, also after stop().
  std::vector<PeerFacts> facts() const;
  // Connections that were refused. Thread-safe.
  std::uint64_t refused() const;
  // Where it listens, with the port that was taken.
  const std::string& address() const { return address_; }

  const std::string& name() const override { return options_.name; }
  std::uint64_t incarnation() const override { return incarnation_; }
  std::vector<std::string> peers() const override;
  // Precondition besides: the payload is at most 64 MiB.
  void send(const std::string& peer, runtime::PeerMessage message, Payload payload = {}) override;
  // The same of a message about a session that moves. `data`: at most kMaxMoveData bytes.
  void send_move(const std::string& peer, v1::PeerMove move, std::string data = "");
  // False: the peer is not in --peers.
  bool knows(const std::string& peer) const { return peers_.contains(peer); }
  // Is there a connection to the peer just now? Precondition: knows(peer).
  bool connected(const std::string& peer) { return peers_.at(peer)->connected(); }
  // Is the address where peers call this daemon on this machine alone?
  bool local() const;

 private:
  class Service;
  // A connection that has not said its name yet.
  struct Stranger {
    PeerStream::Ref stream;
    core::Clock::time_point until;
  };

  Peers(PeerOptions options, std::shared_ptr<Certificates> certificates);
  core::Status listen();
  std::shared_ptr<grpc::Channel> channel(const std::string& peer) const;
  PeerReactor* admit(grpc::CallbackServerContext* context);
  core::Status let_in(const PeerStream::Ref& stream, grpc::ByteBuffer& frame);
  void forget_stranger(const PeerStream::Ref& stream);
  core::Clock::time_point end_late_strangers(core::Clock::time_point now);
  void refused(const std::string& why);
  void look_again();
  void keep_time();

  // PeerStream::Owner, of strangers
  void received(const PeerStream::Ref& stream, grpc::ByteBuffer frame) override;
  std::optional<grpc::ByteBuffer> next(const PeerStream::Ref& stream) override;
  void closed(const PeerStream::Ref& stream, const std::string& why) override;

  const PeerOptions options_;
  const std::shared_ptr<Certificates> certificates_;  // null: no TLS
  const std::uint64_t incarnation_;
  PeerHome home_;
  std::map<std::string, std::unique_ptr<Peer>> peers_;  // constant after construction
  std::string address_;
  std::unique_ptr<Service> service_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::Server> server_;
  std::thread clock_;

  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::vector<Stranger> strangers_ TT_GUARDED_BY(mutex_);
  std::uint64_t refused_ TT_GUARDED_BY(mutex_) = 0;
  bool look_again_ TT_GUARDED_BY(mutex_) = false;
  bool stopping_ TT_GUARDED_BY(mutex_) = false;
  bool over_ TT_GUARDED_BY(mutex_) = false;  // the clock ends
};

}  // namespace teletensor::server
