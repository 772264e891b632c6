// PeerStream is one connection to a peer: a TCP socket, with TLS if the daemons have certificates.
// It carries frames in both directions (peer_frames.h).
// One thread of the loop at a time connects, reads and passes frames to the owner. Any thread may
// write: the thread that has a frame for the peer, usually an execution lane, writes it itself, so
// that a small frame waits for no other thread. The rest of a large one is written by the loop.
// A stream lives until it has reported its end; its owner must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/base/serial_executor.h"
#include "server/base/socket_loop.h"
#include "server/peer/peer_frames.h"
#include "server/peer/peer_sockets.h"
#include "server/peer/peer_tls.h"

namespace teletensor::server {

class PeerStream final : public SocketLoop::Handler,
                         public std::enable_shared_from_this<PeerStream> {
 public:
  using Ref = std::shared_ptr<PeerStream>;
  using Clock = core::Clock;

  // The calls for one stream do not overlap, except those of next(), which do not overlap each
  // other. No lock of the stream is held during a call.
  class Owner {
   public:
    virtual ~Owner() = default;
    // `frame` is valid during the call.
    virtual void received(const Ref& stream, const FrameInput::Frame& frame) = 0;
    // Returns the next frame to write, if there is one. Called after wake() and when earlier frames
    // were written.
    virtual std::optional<FrameOutput::Frame> next(const Ref& stream) = 0;
    // Reports the end of the stream. It is the last call.
    virtual void closed(const Ref& stream, const std::string& why) = 0;
  };
  // What all streams of a daemon use. It outlives them.
  struct Home {
    SocketLoop* loop = nullptr;
    const PeerTls* tls = nullptr;  // Null: no TLS.
    std::atomic<int> streams{0};   // Number of streams that are not destroyed yet.
  };

  // A connection that was accepted.
  static Ref accepted(Home& home, Owner& owner, Socket socket);
  // A connection to the daemon `peer` at this address.
  static Ref dialed(Home& home, Owner& owner, std::shared_ptr<PeerAddress> address,
                    std::string peer);
  ~PeerStream() override { --home_.streams; }
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  // Starts the connection, and from then on calls the owner. If the connection fails at once, the
  // owner's closed() is called before this function returns. Must be called once.
  void open() noexcept;
  // Changes the owner from the next call on. Precondition: the caller is inside the first owner's
  // received().
  void hand_to(Owner& owner) { owner_ = &owner; }
  // Accepts frames of all sizes from now on, rather than only a hello. Precondition: the caller is
  // inside received().
  void trust();
  // Reports that there may be a frame to write. Callable from any thread.
  void wake() noexcept;
  // Ends the stream, after a frame that tells the peer why; closed() follows, for a stream that is
  // not open yet once open() has been called. If it is called several times, the first reason
  // counts. Callable from any thread. Precondition: `why` is not OK.
  void end(core::Status why) noexcept;
  // Returns true without TLS, or if the verified certificate of the other side has exactly this DNS
  // name. Precondition: the caller is inside received().
  bool is_certified(const std::string& name) const { return channel_->is_certified(name); }
  // The last time at which bytes of the peer arrived, or at which the owner was still busy with
  // its frames.
  Clock::time_point heard() const;

  // SocketLoop::Handler
  void on_event() noexcept override;

 private:
  enum class Stage { kStart, kFind, kConnect, kHandshake, kOpen };
  // Where the connection comes from, or goes to.
  struct Route {
    Socket accepted;                       // The connection that was accepted.
    std::shared_ptr<PeerAddress> address;  // Null for a connection that was accepted.
    std::string peer;                      // Name of the daemon to connect to.
    std::vector<Endpoint> endpoints;       // Endpoints to try, the next one last.
  };
  struct Registration {
    std::uint64_t number = 0;  // In the loop; 0: not there yet.
    int descriptor = -1;       // The channel's descriptor, or that of the search for the address.
    std::uint32_t awaits = 0;  // Events for which the current stage waits.
  };
  struct End {
    bool wanted = false;
    bool said = false;  // Whether the farewell was said, or there is none.
    bool closed = false;
    core::Status why;
  };

  PeerStream(Home& home, Owner& owner) : home_(home), owner_(&owner) { ++home_.streams; }

  // ---- Used by the thread that handles events
  // Goes through the stages as far as possible.
  core::Status advance();
  core::Status start();
  core::Status find();
  core::Status connect_next();
  core::Status use_channel(Socket socket);
  core::Status register_descriptor(int descriptor, std::uint32_t awaits) TT_REQUIRES(mutex_);
  // Reads and processes frames until nothing has arrived, the stream ends, or the other direction
  // should have its turn.
  core::Status read();
  void deliver(const FrameInput::Frame& frame);
  // The end of the handling of an event with this result.
  void settle(core::Status status) noexcept;
  void close() noexcept;

  // The step of the serial executor. `budget`: how many bytes the calling thread may still write.
  bool write(std::size_t& budget);
  void say_farewell(const core::Status& why);

  // Makes the socket report what the stream waits for, unless a thread handles an event.
  void arm() TT_REQUIRES(mutex_);
  // Reports that the farewell was said, so that the loop closes the stream.
  void prompt() TT_REQUIRES(mutex_);

  Home& home_;
  std::atomic<Owner*> owner_;
  std::atomic<Clock::rep> heard_{0};
  std::atomic<bool> delivering_{false};  // Whether the owner processes a frame.
  // Set by the thread that handles events, before the stream is open.
  std::unique_ptr<PeerChannel> channel_;

  // ---- Used by the thread that handles events
  Stage stage_ = Stage::kStart;
  Route route_;
  FrameInput input_;

  SerialExecutor writer_;
  FrameOutput output_;  // Used inside the serial executor.

  core::Mutex mutex_;
  Registration registration_ TT_GUARDED_BY(mutex_);
  std::shared_ptr<PeerSearch> search_ TT_GUARDED_BY(mutex_);  // Null outside of kFind.
  bool started_ TT_GUARDED_BY(mutex_) = false;                // Whether open() was called.
  bool handling_ TT_GUARDED_BY(mutex_) = true;  // Whether a thread is inside open() or on_event().
  bool open_ TT_GUARDED_BY(mutex_) = false;     // Whether frames may be written.
  bool blocked_ TT_GUARDED_BY(mutex_) = false;  // Whether the loop must continue to write or read.
  End end_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
