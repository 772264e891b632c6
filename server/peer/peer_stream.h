// PeerStream: one connection to a peer, a gRPC call that carries frames in both directions.
//
// It reads whenever its owner has done with the last frame, and writes what its owner gives it. A
// stream lives until gRPC has told its end; its owner outlives it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/base/turnstile.h"

namespace teletensor::server {

class PeerStream : public std::enable_shared_from_this<PeerStream> {
 public:
  using Ref = std::shared_ptr<PeerStream>;

  // The calls for one stream come one after the other, but for next(). None is made under a lock of
  // the stream.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void received(const Ref& stream, grpc::ByteBuffer frame) = 0;
    // The next frame to write, if any; asked for after wake(), and when the last one is written.
    virtual std::optional<grpc::ByteBuffer> next(const Ref& stream) = 0;
    // It is over. The last call.
    virtual void closed(const Ref& stream, const std::string& why) = 0;
  };

  virtual ~PeerStream() = default;
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  // Operations begin, and calls to the owner. Once.
  virtual void open() noexcept = 0;
  // Another owner from the next call on. Precondition: the caller is in the first owner's
  // received().
  void hand_to(Owner& owner) { owner_ = &owner; }
  // There may be something to write. Any thread.
  void wake() noexcept;
  // Ends it; closed() follows. The first reason counts. Any thread.
  void end(core::Status why) noexcept;
  // Does the verified certificate of the other side have this DNS name, exactly? Precondition: a
  // frame has come.
  bool is_certified(const std::string& name) const;

 protected:
  explicit PeerStream(Owner& owner) : owner_(&owner) {}

  void opened() noexcept;  // operations may start
  void read_done(bool ok) noexcept;
  void write_done(bool ok) noexcept;
  void over(const std::string& why) noexcept;

 private:
  virtual void start_read(grpc::ByteBuffer* frame) = 0;
  virtual void start_write(const grpc::ByteBuffer* frame) = 0;
  virtual void cancel() = 0;                         // operations end soon; several times
  virtual void finish(const core::Status& why) = 0;  // no operation follows; ok: it was the peer
  virtual std::shared_ptr<const grpc::AuthContext> identity() const = 0;

  bool step() noexcept;
  bool write_next();

  Ref self_;  // from opened() until over()
  std::atomic<Owner*> owner_;
  Turnstile turnstile_;
  grpc::ByteBuffer read_, written_;  // of the operations in progress

  core::Mutex mutex_;
  bool reading_ TT_GUARDED_BY(mutex_) = false;
  bool writing_ TT_GUARDED_BY(mutex_) = false;
  bool ending_ TT_GUARDED_BY(mutex_) = false;
  bool finished_ TT_GUARDED_BY(mutex_) = false;
  core::Status why_ TT_GUARDED_BY(mutex_);
};

using PeerReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// A call that a peer makes, and what gRPC is to be given for it.
std::pair<PeerStream::Ref, PeerReactor*> served_peer(grpc::CallbackServerContext* context,
                                                     PeerStream::Owner& owner);
// A call to a peer.
PeerStream::Ref dialed_peer(std::shared_ptr<grpc::Channel> channel, PeerStream::Owner& owner);

}  // namespace teletensor::server
