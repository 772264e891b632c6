// Door is the listener of the daemon's own UNIX socket. It accepts connections itself, asks the
// kernel which user has connected (SO_PEERCRED, which cannot be forged), and passes each connection
// to the gRPC server for that user.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/core/status.h"
#include "server/base/private_files.h"

namespace teletensor::server {

class Door {
 public:
  // Takes ownership of the connection, or closes it. Called by the listener's own thread.
  using Guide = std::function<void(uid_t user, int connection)>;

  // Binds `path` with the file mode `mode`. Connections wait until start() is called. Returns an
  // error that says why the path cannot be bound.
  static core::Result<std::unique_ptr<Door>> open(const std::string& path, mode_t mode);
  ~Door();  // Waits for a running call of the guide, and removes the socket.
  void start(Guide guide);

 private:
  Door() = default;
  void accept_all();
  void run();

  std::unique_ptr<SocketFile> socket_;
  Guide guide_;
  int event_ = -1;
  std::thread thread_;
};

}  // namespace teletensor::server
