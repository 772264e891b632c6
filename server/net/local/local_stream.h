// LocalStream is one Run stream over a UNIX socket (LocalStreams): the counterpart of the gRPC
// reactor in server/stream/run_stream.cc.
// At most one thread at a time reads, because the socket reports one event and then none until it
// is armed again. Any thread may send; the serial executor makes sure that one does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/mutex.h"
#include "engine/core/os/unique_fd.h"
#include "server/base/serial_executor.h"
#include "server/net/local/local_streams.h"
#include "server/session/run_call.h"

namespace teletensor::server {

class LocalStream final : public RunCall,
                          public SocketLoop::Handler,
                          public std::enable_shared_from_this<LocalStream> {
 public:
  // Owns `socket`, which does not block.
  LocalStream(LocalStreams& streams, core::UniqueFd socket, std::uint64_t attach,
              StreamShares::Place place);
  LocalStream(const LocalStream&) = delete;
  LocalStream& operator=(const LocalStream&) = delete;

  // `number` is that of the socket in the loop.
  void start(std::uint64_t number, LeaseRef lease);

  // SocketLoop::Handler
  void on_event() noexcept override;

  // LeaseCall
  void abandon() override;
  void wake() override { pump(); }

 private:
  // Reads and submits frames until nothing has arrived, the session is busy with a frame, or other
  // streams should have their turn. Returns false if the client has closed the connection.
  bool read();
  // Submits the first frame of `bytes` if it is complete, and removes it from `bytes`. Returns
  // false if there is no complete frame or if the lease was ended by an invalid one.
  bool consume(Lease& lease, std::string_view& bytes);
  void pump() override;
  bool step();
  bool send_progress(Lease& lease);
  // Sends as much as the socket takes; the rest waits in unsent_.
  void send(std::uint32_t kind, std::string_view bytes);
  void send_rest();
  void close() TT_REQUIRES(mutex_);
  // Makes the socket report what the stream waits for.
  void arm() TT_REQUIRES(mutex_);

  LocalStreams& streams_;
  std::uint64_t number_ = 0;  // Constant after start().
  const core::UniqueFd socket_;
  const std::uint64_t attach_;
  const StreamShares::Place place_;

  // Bytes of frames that were received and not submitted. Used by the thread that reads.
  std::string received_;

  SerialExecutor serial_executor_;
  // ---- used inside the serial executor
  std::string unsent_;     // The rest of a message that the socket did not take.
  bool end_sent_ = false;  // Whether the last message is sent or in unsent_.
  bool broken_ = false;    // Whether the client takes nothing more.

  // ---- guarded by mutex_
  bool handling_ TT_GUARDED_BY(mutex_) = true;  // Whether a thread is inside start() or on_event().
  std::uint32_t armed_ TT_GUARDED_BY(mutex_) = 0;   // The events that the socket reports.
  bool frame_waits_ TT_GUARDED_BY(mutex_) = false;  // Whether received_ has a complete frame.
  bool closed_ TT_GUARDED_BY(mutex_) = false;
};

}  // namespace teletensor::server
