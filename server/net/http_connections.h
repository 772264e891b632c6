// HttpConnections holds the connections of the HTTP server and the threads that serve them. There
// are places for a stated number of connections, of which one remote address has a share, so that
// peers without a token cannot take all memory, descriptors or threads. A connection without a
// place is pending. For its sake the connection that has waited longest for its peer is ended, once
// that has waited for a stated time.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "server/base/counters.h"

namespace teletensor::server {

class HttpConnections {
 public:
  static constexpr std::size_t kPlaces = 64;
  static constexpr std::size_t kShare = 16;  // Maximum number of connections of one address.
  // Threads that exist from the start; others, up to kPlaces, start when they are needed.
  static constexpr std::size_t kFirstThreads = 8;
  // Maximum number of pending connections: of all addresses together, and of one address.
  static constexpr std::size_t kMaxPending = 128, kPendingShare = 48;
  // A connection that has waited for less is not ended while there is room for pending connections.
  // Otherwise a peer that connects all the time would end requests that are on their way.
  static constexpr std::chrono::milliseconds kGrace{500};

  struct Connection {
    Connection(int connected, std::string address)
        : socket(connected), peer(std::move(address)), waits_since(core::Clock::now()) {}
    const int socket;
    const std::string peer;  // The network address; for IPv6 the part that names a network (/64).
    // Begin of the phase in which it waits for its peer; time_point::max() while it does not wait.
    std::atomic<core::Clock::time_point> waits_since;
  };
  using Serve = std::function<void(Connection&)>;

  // `serve` serves one connection until its end; the socket is closed afterwards. Connections that
  // are closed for lack of places are counted.
  HttpConnections(Serve serve, Counters& counters);
  ~HttpConnections() { end(); }
  // Takes over a connected socket. Closes it if there is no place for its address.
  void admit(int socket);
  // The same for a peer with the given address.
  void admit(int socket, std::string peer);
  // Ends all connections and waits for the threads. Later sockets are closed.
  void end();

 private:
  using Connections = std::list<std::shared_ptr<Connection>>;

  // Makes room for a pending connection of the peer: if its share is used, its first pending
  // connection gets a place at once. Returns false if that is not possible.
  bool make_room(const std::string& peer) TT_REQUIRES(mutex_);
  // Gives places to pending connections. Returns the time until that may be possible again.
  core::Clock::duration start_pending() TT_REQUIRES(mutex_);
  // Gives a pending connection a place; returns the next pending connection.
  Connections::iterator start(Connections::iterator connection) TT_REQUIRES(mutex_);
  // Makes a place for one more connection of the peer. Returns 0, or the time until that may be
  // possible, if no connection that could be ended has waited for the time `grace`.
  core::Clock::duration make_place(const std::string& peer, core::Clock::duration grace)
      TT_REQUIRES(mutex_);
  // The number of places: one for each thread that exists or can be started now.
  std::size_t places() TT_REQUIRES(mutex_);
  void end_one(Connections::iterator victim) TT_REQUIRES(mutex_);
  void schedule();  // The loop of the thread that gives places to pending connections.
  void work();      // The loop of a thread that serves connections.

  const Serve serve_;
  Counters& counters_;
  core::Mutex mutex_;
  core::CondVar changed_;  // waiting_ or end_ has changed.
  core::CondVar moved_;    // A connection has become pending or has left open_, or end_ is set.
  Connections pending_ TT_GUARDED_BY(mutex_);
  Connections open_ TT_GUARDED_BY(mutex_);  // Those with a place.
  // Connections with a place that no thread serves yet.
  std::deque<std::shared_ptr<Connection>> waiting_ TT_GUARDED_BY(mutex_);
  bool end_ TT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ TT_GUARDED_BY(mutex_);
  std::thread scheduler_;
};

}  // namespace teletensor::server
