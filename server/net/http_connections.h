// HttpConnections holds the connections of the HTTP server and the threads that serve them. There
// are places for a stated number of connections, of which one remote address has a share, so that
// peers without a token cannot take all memory, descriptors or threads. If there is no place for a
// newcomer, the connection that has waited longest for its peer is ended. Newcomers wait in a lobby
// until a connection has waited long enough to be ended.
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

namespace teletensor::server {

class HttpConnections {
 public:
  static constexpr std::size_t kPlaces = 64;
  static constexpr std::size_t kShare = 16;  // Maximum number of connections of one address.
  // Threads that exist from the start; others, up to kPlaces, start when they are needed.
  static constexpr std::size_t kFirstThreads = 8;
  // Places of the lobby, and the share of one address.
  static constexpr std::size_t kLobby = 128, kLobbyShare = 48;
  // A connection that has waited for less is not ended for a newcomer while the lobby has a place.
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

  // `serve` serves one connection until its end; the socket is closed afterwards.
  explicit HttpConnections(Serve serve);
  ~HttpConnections() { end(); }
  // Takes over a connected socket. Closes it if there is no place for its address.
  void admit(int socket);
  // The same for a peer with the given address.
  void admit(int socket, std::string peer);
  // Ends all connections and waits for the threads. Later sockets are closed.
  void end();

 private:
  using Connections = std::list<std::shared_ptr<Connection>>;

  // Makes a place in the lobby for the peer: if its share is used, its first connection there gets
  // a place at once. Returns false if that is not possible.
  bool make_room(const std::string& peer) TT_REQUIRES(mutex_);
  // Moves connections from the lobby to places. Returns the time until that may be possible again.
  core::Clock::duration seat() TT_REQUIRES(mutex_);
  // Moves a connection from the lobby to a place; returns the next of the lobby.
  Connections::iterator take_place(Connections::iterator newcomer) TT_REQUIRES(mutex_);
  // Makes a place for one more connection of the peer. Returns 0, or the time until that may be
  // possible, if no connection that could be ended has waited for the time `grace`.
  core::Clock::duration make_place(const std::string& peer, core::Clock::duration grace)
      TT_REQUIRES(mutex_);
  // The number of places: one for each thread that exists or can be started now.
  std::size_t places() TT_REQUIRES(mutex_);
  void end_one(Connections::iterator victim) TT_REQUIRES(mutex_);
  void seat_all();  // The loop of the thread that seats newcomers.
  void work();      // The loop of a thread that serves connections.

  const Serve serve_;
  core::Mutex mutex_;
  core::CondVar changed_;  // waiting_ or end_ has changed.
  core::CondVar moved_;    // A connection has come to the lobby or has left open_, or end_ is set.
  Connections lobby_ TT_GUARDED_BY(mutex_);
  Connections open_ TT_GUARDED_BY(mutex_);  // Those with a place.
  // Connections with a place that no thread serves yet.
  std::deque<std::shared_ptr<Connection>> waiting_ TT_GUARDED_BY(mutex_);
  bool end_ TT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ TT_GUARDED_BY(mutex_);
  std::thread usher_;
};

}  // namespace teletensor::server
