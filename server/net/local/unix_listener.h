// UnixListener is the listener of the daemon's own UNIX socket. It accepts connections itself, asks
// the kernel which user has connected (SO_PEERCRED, which cannot be forged), and passes each
// connection to the gRPC server for that user.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/core/os/unique_fd.h"
#include "engine/core/status.h"
#include "server/base/os/private_files.h"

namespace teletensor::server {

class UnixListener {
 public:
  // Takes ownership of the connection, or closes it. Called by the listener's own thread.
  using OnAccept = std::function<void(uid_t user, int connection)>;

  // Binds `path` with the file mode `mode`. Connections wait until start() is called. Returns an
  // error that says why the path cannot be bound.
  static core::Result<std::unique_ptr<UnixListener>> open(const std::string& path, mode_t mode);
  ~UnixListener();  // Waits for a running call of the guide, and removes the socket.
  void start(OnAccept guide);

 private:
  UnixListener() = default;
  void accept_all();
  void run();

  std::unique_ptr<SocketFile> socket_;
  OnAccept on_accept_;
  core::UniqueFd event_;
  std::thread thread_;
};

}  // namespace teletensor::server
