// UserListeners are the listeners for the other users of this machine (--socket-users). gRPC does
// not tell a handler which descriptor a call came through, so each user has a gRPC server of its
// own. If there are many, those without a connection end, so that users who have left take no room.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "server/net/listener.h"

namespace teletensor::server {

class UserListeners {
 public:
  // Creates the listener for the user of that name.
  using Create = std::function<core::Result<std::unique_ptr<Listener>>(const std::string& name)>;

  explicit UserListeners(Create create);
  ~UserListeners();  // Calls stop().

  // Passes the connection to the listener of `user`, which is created if there is none. Returns
  // false if there is no room for another listener; the caller then still owns the connection.
  // Must not be called after stop().
  bool take(uid_t user, int connection);
  void set_serving(bool serving);
  // Ends all listeners and returns when they have ended.
  void stop();

 private:
  // A connection that gRPC owns. Descriptor numbers are used again, so the number alone does not
  // identify the connection; the inode of the socket does.
  struct Connection {
    int descriptor;
    ino_t inode;
    bool open() const;  // Returns false when gRPC has closed the descriptor.
  };
  struct User {
    std::unique_ptr<Listener> listener;
    bool has_account;
    std::vector<Connection> connections;
  };

  User* user(uid_t id) TT_REQUIRES(mutex_);
  bool room(bool has_account) const TT_REQUIRES(mutex_);
  void end_idle() TT_REQUIRES(mutex_);
  void end_listeners();

  const Create create_;
  core::Mutex mutex_;
  core::CondVar changed_;
  std::map<uid_t, User> users_ TT_GUARDED_BY(mutex_);
  // Listeners that are to end. A listener waits for its calls, so it ends on a thread of its own
  // and not on the thread that accepts connections.
  std::vector<std::unique_ptr<Listener>> idle_ TT_GUARDED_BY(mutex_);
  std::size_t ending_ TT_GUARDED_BY(mutex_) = 0;  // Number of listeners that end at this moment.
  bool serving_ TT_GUARDED_BY(mutex_) = false;
  bool stopped_ TT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace teletensor::server
