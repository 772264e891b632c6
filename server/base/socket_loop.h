// SocketLoop: a few threads that wait for events of sockets, and pass each event to the object that
// registered the socket. A socket reports one event and then none until it is armed again. A socket
// that is armed during a call of its handler reports the next event after the call, so the calls of
// a handler do not overlap, whichever thread arms the socket.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/os/unique_fd.h"
#include "engine/core/status.h"

namespace teletensor::server {

class SocketLoop {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Called by a thread of the loop after an event of the socket.
    virtual void on_event() noexcept = 0;
  };

  // Returns Unavailable if the system has no descriptors left.
  static core::Result<std::unique_ptr<SocketLoop>> start(unsigned threads);
  // Waits for the calls that are running, and drops all handlers.
  ~SocketLoop();
  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Registers a socket, or another descriptor that epoll supports, and keeps the handler until
  // remove(). Returns the number of the registration; the socket is not armed. Unavailable if the
  // system refuses. The remaining functions are thread-safe as well.
  core::Result<std::uint64_t> add(int socket, std::shared_ptr<Handler> handler);
  // Replaces the socket of a registration by another one, which is not armed.
  core::Status replace(std::uint64_t number, int earlier, int later);
  // Makes the socket report these events of epoll once.
  void arm(std::uint64_t number, int socket, std::uint32_t events);
  // Drops the handler. The caller closes the socket afterwards.
  void remove(std::uint64_t number, int socket);

 private:
  struct Registration {
    std::shared_ptr<Handler> handler;
    // Whether an event may be passed on. epoll reports that a connection has ended even if no
    // event was requested.
    bool armed = false;
    bool running = false;  // Whether a thread is about to call the handler, or is in the call.
    // What arm() requested meanwhile. The socket is -1 if nothing was.
    int next_socket = -1;
    std::uint32_t next_events = 0;
  };

  SocketLoop() = default;
  void serve();
  // Returns the handler to call for an event of its socket. Null if the socket is not armed.
  std::shared_ptr<Handler> begin_call(std::uint64_t number);
  void end_call(std::uint64_t number);

  core::UniqueFd epoll_, stop_;
  core::Mutex mutex_;
  std::uint64_t last_ TT_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Registration> registrations_ TT_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace teletensor::server
