// Door: the daemon's own UNIX socket. It accepts by itself, asks the kernel which user has
// connected (SO_PEERCRED, which nobody can forge), and gives the connection to whoever serves that
// user.
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
  // Takes over the connection, or closes it. Called by the door's own thread.
  using Guide = std::function<void(uid_t user, int connection)>;

  // Binds `path` with `mode`; connections wait until start(). Says why where it cannot.
  static core::Result<std::unique_ptr<Door>> open(const std::string& path, mode_t mode);
  ~Door();  // no call of the guide runs any more; the socket is gone
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
