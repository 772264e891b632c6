// Sockets between daemons: addresses, connections to them, and the thread that accepts connections.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/os/unique_fd.h"
#include "engine/core/status.h"

namespace teletensor::server {

using Socket = core::UniqueFd;

struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
};

// A search for the endpoints of an address, in a thread of its own, because the system may take
// long to answer. Thread-safe.
class PeerSearch {
 public:
  PeerSearch();

  // A descriptor that is readable once the search has ended, or wake() was called.
  int descriptor() const { return event_.get(); }
  void wake();
  // Returns the result once the search has ended.
  std::optional<core::Result<std::vector<Endpoint>>> take();
  void end(core::Result<std::vector<Endpoint>> found);

 private:
  const Socket event_;
  core::Mutex mutex_;
  std::optional<core::Result<std::vector<Endpoint>>> found_ TT_GUARDED_BY(mutex_);
};

// The address of a peer, "HOST:PORT". Thread-safe.
class PeerAddress : public std::enable_shared_from_this<PeerAddress> {
 public:
  explicit PeerAddress(std::string text) : text_(std::move(text)) {}
  // The endpoint if HOST is numeric, otherwise empty.
  std::vector<Endpoint> numeric() const;
  // Starts a search. Unavailable if an earlier one has not ended, or if the system refuses the
  // thread.
  core::Result<std::shared_ptr<PeerSearch>> search();

 private:
  const std::string text_;
  std::atomic<bool> searching_{false};
};

// Begins to connect to an endpoint. The socket does not block, and is ready for writing when the
// connection is established or has failed.
core::Result<Socket> begin_connect(const Endpoint& endpoint);
// The result of the attempt to connect.
core::Status connected(int socket);

// Accepts connections in a thread of its own.
class PeerListener {
 public:
  // Called by the thread with each connection, whose socket does not block.
  using Accepted = std::function<void(Socket)>;

  // Binds all addresses of HOST. Returns Unavailable with the reason.
  static core::Result<std::unique_ptr<PeerListener>> open(const std::string& address);
  ~PeerListener();  // Calls stop().
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  // The port of all addresses.
  int port() const { return port_; }
  // May be called once.
  void start(Accepted accepted);
  // Closes the sockets. Afterwards `accepted` is not running. Must not be called by `accepted`.
  void stop();

 private:
  PeerListener() = default;
  core::Status bind(const Endpoint& endpoint);
  void accept_all(const Accepted& accepted);

  std::vector<Socket> sockets_;
  Socket stop_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace teletensor::server
