// ShareServer passes memory of sessions to processes of this machine as file descriptors, over a
// socket beside the daemon's own socket (proto/wire/share.h).
// Memory that was passed on a connection stays valid until every process that has the client's end
// of the connection has closed it or died. A request can only receive memory of the session whose
// ticket it has. One thread watches the connections, and two threads copy and share. A connection
// that is to be a Run stream is passed on to LocalStreams.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/os/unique_fd.h"
#include "proto/wire/share.h"
#include "server/base/os/private_files.h"
#include "server/net/local/local_streams.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

class ShareServer {
 public:
  static constexpr std::size_t kMaxConnections = 2048;

  // Listens on `socket` + ".share", for root and the user that the daemon runs as. `leases` must
  // outlive this object, and its sessions must be destroyed before it stops.
  static core::Result<std::unique_ptr<ShareServer>> start(const std::string& socket,
                                                          Leases& leases);
  ~ShareServer();

 private:
  struct Connection {
    core::UniqueFd socket;
    // Time when it was accepted, or when its last job ended.
    Clock::time_point since = Clock::now();
    // Used by the watcher thread, or by the job while `working` is set.
    std::string in;
    std::weak_ptr<Lease> lease;
    std::uint64_t share = 0;
    std::shared_ptr<void> hold;  // Keeps the shared memory alive.
    std::uint64_t upload = 0;    // Number of an unfinished upload.
    bool way = false;            // Whether the connection was opened with kShareWay.
    bool working = false;
    bool broken = false;
  };
  using ConnectionRef = std::shared_ptr<Connection>;
  // A connection's wait for the value of command `seq`.
  struct Take {
    LeaseRef lease;
    std::uint64_t seq = 0;
    std::uint64_t wait = 0;  // Number of the engine's wait. 0 until it has begun.
    Clock::time_point since = Clock::now();
  };

  enum class Heard { kNotYet, kRequest, kEnd };

  ShareServer(std::string path, Leases& leases) : path_(std::move(path)), leases_(leases) {}
  core::Status listen();
  // Reads the next request of a connection as far as it was received. Called by the watcher thread,
  // or by the job while `working` is set.
  static Heard hear(Connection& connection, wire::ShareRequest& request);

  // ---- functions of the watcher thread
  void watch();
  void accept_all();
  void look_at(const ConnectionRef& connection);
  void drop(const ConnectionRef& connection);
  void end_silent();
  // Ends the waits for commands that have not come in time.
  void end_takes();
  void arm(const Connection& connection, bool add);

  // ---- functions of the worker threads
  void work();
  void give(std::function<void()> job);
  bool idle();  // Returns true if no job waits.
  void serve(const ConnectionRef& connection, const wire::ShareRequest& request);
  void take(const ConnectionRef& connection, const LeaseRef& lease, std::uint64_t seq, bool gpu);
  void run(const ConnectionRef& connection, const LeaseRef& lease, std::uint64_t attach);
  void upload(const ConnectionRef& connection, const LeaseRef& lease,
              const wire::ShareRequest& request);
  static void begin(Connection& connection, engine::Session& session, std::uint64_t upload);
  void copy(const ConnectionRef& connection, Lease& lease, const wire::ShareRequest& request,
            std::uint64_t number);
  // Ends the job of a connection with a reply.
  void answer(const ConnectionRef& connection, const core::Status& status, wire::ShareReply reply,
              core::UniqueFd passed = core::UniqueFd());
  // Returns a connection whose job has ended to the watcher.
  void finished(const ConnectionRef& connection);
  core::Result<LeaseRef> lease_of(const wire::ShareRequest& request) const;

  const std::string path_;
  Leases& leases_;
  std::unique_ptr<LocalStreams> streams_;
  std::unique_ptr<SocketFile> file_;
  int listener_ = -1;  // Belongs to file_.
  core::UniqueFd epoll_, event_;
  bool accepting_ = true;                     // Used by the watcher thread only.
  std::map<int, ConnectionRef> connections_;  // Used by the watcher thread only.

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<std::function<void()>> jobs_ TT_GUARDED_BY(mutex_);
  std::map<const Connection*, Take> takes_ TT_GUARDED_BY(mutex_);
  // Connections whose job has ended; they return to the watcher.
  std::vector<ConnectionRef> done_ TT_GUARDED_BY(mutex_);
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace teletensor::server
