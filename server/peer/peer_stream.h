// PeerStream is one connection to a peer: a gRPC call that carries frames in both directions.
// It reads a frame when its owner has processed the last one, and writes the frames that its owner
// provides. A stream lives until gRPC has reported its end; its owner must outlive it.
//
// A stream and its channel may be destroyed on a thread of gRPC's callbacks. gRPC ends these
// threads with the last object of the process that uses them, by joining them, and aborts if that
// object is a channel and one of the threads destroys it. Hence a server must outlive all streams:
// it is destroyed after `alive` is 0.
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
#include "server/base/serial_executor.h"

namespace teletensor::server {

class PeerStream : public std::enable_shared_from_this<PeerStream> {
 public:
  using Ref = std::shared_ptr<PeerStream>;

  // The calls for one stream do not overlap, except those of next(). No lock of the stream is held
  // during a call.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void received(const Ref& stream, grpc::ByteBuffer frame) = 0;
    // Returns the next frame to write, if there is one. Called after wake() and when the last frame
    // was written.
    virtual std::optional<grpc::ByteBuffer> next(const Ref& stream) = 0;
    // Reports the end of the stream. It is the last call.
    virtual void closed(const Ref& stream, const std::string& why) = 0;
  };

  virtual ~PeerStream() { --alive_; }
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  // Starts the operations and the calls to the owner. Must be called once.
  virtual void open() noexcept = 0;
  // Changes the owner from the next call on. Precondition: the caller is inside the first owner's
  // received().
  void hand_to(Owner& owner) { owner_ = &owner; }
  // Reports that there may be a frame to write. Callable from any thread.
  void wake() noexcept;
  // Ends the stream; closed() follows, for a stream that is not open yet once open() has been
  // called. If it is called several times, the first reason counts. Callable from any thread.
  void end(core::Status why) noexcept;
  // Returns true if the verified certificate of the other side has exactly this DNS name.
  // Precondition: a frame was received.
  bool is_certified(const std::string& name) const;

 protected:
  PeerStream(Owner& owner, std::atomic<int>& alive) : alive_(alive), owner_(&owner) { ++alive_; }

  void opened() noexcept;  // Reports that the stream was opened and operations may start.
  void read_done(bool ok) noexcept;
  void write_done(bool ok) noexcept;
  void over(const std::string& why) noexcept;

 private:
  virtual void start_read(grpc::ByteBuffer* frame) = 0;
  virtual void start_write(const grpc::ByteBuffer* frame) = 0;
  virtual void cancel() = 0;  // Ends running operations soon; may be called several times.
  // Ends the stream with `why`, which is OK if the peer has ended it. No operation follows.
  virtual void finish(const core::Status& why) = 0;
  virtual std::shared_ptr<const grpc::AuthContext> identity() const = 0;

  bool step() noexcept;
  bool write_next();

  std::atomic<int>& alive_;  // Number of streams that are not destroyed yet.
  Ref self_;                 // Keeps the stream alive from opened() until over().
  std::atomic<Owner*> owner_;
  SerialExecutor serial_executor_;
  grpc::ByteBuffer read_, written_;  // Buffers of the operations in progress.

  core::Mutex mutex_;
  bool open_ TT_GUARDED_BY(mutex_) = false;  // gRPC's call exists; before that nothing is started
  bool reading_ TT_GUARDED_BY(mutex_) = false;
  bool writing_ TT_GUARDED_BY(mutex_) = false;
  bool ending_ TT_GUARDED_BY(mutex_) = false;
  bool finished_ TT_GUARDED_BY(mutex_) = false;
  core::Status why_ TT_GUARDED_BY(mutex_);
};

using PeerReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Creates the stream for an incoming call of a peer, and the reactor that is returned to gRPC. The
// stream is counted in `alive` until it is destroyed.
std::pair<PeerStream::Ref, PeerReactor*> served_peer(grpc::CallbackServerContext* context,
                                                     PeerStream::Owner& owner,
                                                     std::atomic<int>& alive);
// Calls a peer.
PeerStream::Ref dialed_peer(std::shared_ptr<grpc::Channel> channel, PeerStream::Owner& owner,
                            std::atomic<int>& alive);

}  // namespace teletensor::server
