// ShareServer: passes memory of sessions to processes of this machine, by descriptor, over a socket
// beside the daemon's own (proto/wire/share.h).
//
// A connection is a hold: what was passed on it stays as it is until every process that has the
// client's end has closed it, also by dying. A descriptor is of the memory of the session whose
// ticket came with the request, and of no other. One thread watches the connections, two copy and
// share.
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
#include "proto/wire/share.h"
#include "server/base/private_files.h"
#include "server/session/leases.h"

namespace teletensor::server {

class ShareServer {
 public:
  static constexpr std::size_t kMaxConnections = 2048;

  // Listens on `socket` + ".share", for the user that the daemon runs as and root. `leases`
  // outlives it; their sessions are gone before it stops.
  static core::Result<std::unique_ptr<ShareServer>> start(const std::string& socket,
                                                          Leases& leases);
  ~ShareServer();

 private:
  struct Connection {
    ~Connection();
    int socket = -1;
    Clock::time_point since = Clock::now();  // it came, or its last job was done
    // Of the watcher; while `working` of the job.
    std::string in;
    std::weak_ptr<Lease> lease;
    std::uint64_t share = 0;
    std::shared_ptr<void> hold;  // of that memory
    std::uint64_t upload = 0;    // begun and not finished
    bool way = false;            // of kShareWay
    bool working = false;
    bool broken = false;
  };
  using ConnectionRef = std::shared_ptr<Connection>;

  enum class Heard { kNotYet, kRequest, kEnd };

  ShareServer(std::string path, Leases& leases) : path_(std::move(path)), leases_(leases) {}
  core::Status listen();
  // Reads what has come of a connection's next request. Its watcher's, while `working` its job's.
  static Heard hear(Connection& connection, wire::ShareRequest& request);

  // The watcher's.
  void watch();
  void accept_all();
  void look_at(const ConnectionRef& connection);
  void drop(const ConnectionRef& connection);
  void end_silent();
  void arm(const Connection& connection, bool add);

  // The workers'.
  void work();
  void give(std::function<void()> job);
  bool idle();  // no job waits
  void serve(const ConnectionRef& connection, const wire::ShareRequest& request);
  void take(const ConnectionRef& connection, const LeaseRef& lease, std::uint64_t seq, bool gpu);
  void upload(const ConnectionRef& connection, const LeaseRef& lease,
              const wire::ShareRequest& request);
  static void begin(Connection& connection, engine::Session& session, std::uint64_t upload);
  void copy(const ConnectionRef& connection, Lease& lease, const wire::ShareRequest& request,
            std::uint64_t number);
  // Ends the job of a connection with a reply.
  void answer(const ConnectionRef& connection, const core::Status& status, wire::ShareReply reply,
              int descriptor = -1);
  core::Result<LeaseRef> lease_of(const wire::ShareRequest& request) const;

  const std::string path_;
  Leases& leases_;
  std::unique_ptr<SocketFile> file_;
  int listener_ = -1, epoll_ = -1, event_ = -1;  // the first is the file's
  bool accepting_ = true;                        // the watcher's
  std::map<int, ConnectionRef> connections_;     // the watcher's

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<std::function<void()>> jobs_ TT_GUARDED_BY(mutex_);
  std::vector<ConnectionRef> done_ TT_GUARDED_BY(mutex_);  // back to the watcher
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace teletensor::server
