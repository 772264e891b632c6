// Creates folders, files and sockets that no other user of the machine may write to. The functions
// do not depend on the umask, which all threads of the process share.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "engine/core/status.h"

namespace teletensor::server {

// Returns UNAVAILABLE with `what` and the text of errno.
core::Status system_error(const std::string& what);

// Creates the folder, and missing parent folders, with mode 0700. PERMISSION_DENIED if the folder
// belongs to a user other than this one or root, or if other users can write to it. UNAVAILABLE if
// it cannot be created.
core::Status private_folder(const std::string& path);

// Creates or checks a folder like private_folder(). Returns PERMISSION_DENIED also if an entry of
// the folder belongs to another user or can be written by other users. Such an entry may have been
// planted while the folder was writable.
core::Status private_state(const std::string& path);

// Creates an empty file with mode 0600 if it is missing. PERMISSION_DENIED if the file is a link,
// belongs to another user, or can be opened by other users.
core::Status private_file(const std::string& path);

// Creates a file with mode 0600 and opens it for writing. Returns its descriptor. ALREADY_EXISTS if
// the path exists.
core::Result<int> new_private_file(const std::string& path);

// A UNIX socket of this process that is bound to a path. One process at a time may use the path: it
// acquires a lock on PATH.lock, then checks the path, and releases the lock when the socket is
// removed.
class SocketFile {
 public:
  // Binds the path and listens. The socket has the mode `mode` from the beginning. ALREADY_EXISTS,
  // with the process that uses it, if the path is in use.
  static core::Result<std::unique_ptr<SocketFile>> open(const std::string& path, mode_t mode);
  ~SocketFile();  // Closes the socket, and removes the path if it still refers to this socket.
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;

  // The descriptor of the listening socket, which is non-blocking.
  int descriptor() const { return socket_; }

 private:
  explicit SocketFile(std::string path) : path_(std::move(path)) {}
  core::Status lock();
  core::Status bind(mode_t mode);

  const std::string path_;
  int lock_ = -1, socket_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // Identity of the bound socket file. 0 means none.
};

}  // namespace teletensor::server
