// Folders and sockets that no other user of the machine may write to. None of this depends on the
// umask, which belongs to all threads of the process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "engine/core/status.h"

namespace teletensor::server {

// UNAVAILABLE: `what`, and the text of errno.
core::Status system_error(const std::string& what);

// Makes the folder, and those missing above it, with mode 0700. PERMISSION_DENIED if the folder
// belongs to another user than this one or root, or if others can write to it; UNAVAILABLE if it
// cannot be made.
core::Status private_folder(const std::string& path);

// As private_folder(), and PERMISSION_DENIED if an entry of the folder belongs to another user or
// can be written by others: what a state directory has may have been planted while it was open.
core::Status private_state(const std::string& path);

// Makes the file, empty and of mode 0600, where it is missing. PERMISSION_DENIED if it is a link,
// belongs to another user, or can be opened by others.
core::Status private_file(const std::string& path);

// Makes the file, with mode 0600, and opens it for writing: its descriptor. ALREADY_EXISTS where
// something is at the path.
core::Result<int> new_private_file(const std::string& path);

// A UNIX socket of this process, bound at a path. One process at a time has the path: a lock on
// PATH.lock is held from before the path is looked at until the socket is gone.
class SocketFile {
 public:
  // Binds and listens, with `mode` from the first moment. ALREADY_EXISTS, with the process that
  // has it, where the path is taken.
  static core::Result<std::unique_ptr<SocketFile>> open(const std::string& path, mode_t mode);
  ~SocketFile();  // closes it, and removes the path if that still is this socket
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;

  int descriptor() const { return socket_; }  // non-blocking

 private:
  explicit SocketFile(std::string path) : path_(std::move(path)) {}
  core::Status lock();
  core::Status bind(mode_t mode);

  const std::string path_;
  int lock_ = -1, socket_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // of the bound socket; 0: none
};

}  // namespace teletensor::server
