#include "server/base/os/private_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "server/base/os/listen.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

constexpr int kBacklog = 128;

Status check_owner(const std::string& path, const struct stat& info) {
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return Status(Code::kPermissionDenied, path + " belongs to another user (uid " +
                                               std::to_string(info.st_uid) +
                                               "), who could make tokens and sessions of any user");
  }
  if ((info.st_mode & 022) != 0 && !S_ISLNK(info.st_mode)) {
    return Status(Code::kPermissionDenied,
                  path + " can be written by others, who could make tokens and sessions of any " +
                      "user (look at what it has, then chmod go-w)");
  }
  return {};
}

// Creates a folder with mode 0700, regardless of the umask.
Status make_folder(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  struct stat info {};
  if (!parent.empty() && parent != path && stat(parent.c_str(), &info) != 0 && errno == ENOENT) {
    TT_RETURN_IF_ERROR(make_folder(parent));
  }
  if (mkdir(path.c_str(), 0700) != 0) return errno == EEXIST ? Status() : system_error(path);
  return chmod(path.c_str(), 0700) == 0 ? Status() : system_error(path);
}

}  // namespace

Status system_error(const std::string& what) {
  return Status(Code::kUnavailable, what + ": " + std::strerror(errno));
}

Status private_folder(const std::string& path) {
  TT_RETURN_IF_ERROR(make_folder(path));
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return system_error(path);
  if (!S_ISDIR(info.st_mode)) return Status(Code::kUnavailable, path + " is not a folder");
  return check_owner(path, info);
}

Status private_state(const std::string& path) {
  TT_RETURN_IF_ERROR(private_folder(path));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    struct stat info {};
    // The entry was removed meanwhile and is skipped.
    if (lstat(entry.path().c_str(), &info) != 0) continue;
    TT_RETURN_IF_ERROR(check_owner(entry.path().string(), info));
  }
  return {};
}

Status private_file(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == EROFS) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    return errno == ELOOP ? Status(Code::kPermissionDenied, path + " is a link")
                          : system_error(path);
  }
  struct stat info {};
  Status status = fstat(fd, &info) == 0 ? check_owner(path, info) : system_error(path);
  if (status.ok() && (info.st_mode & 077) != 0) {
    status = Status(Code::kPermissionDenied, path + " can be opened by others (chmod 600)");
  }
  close(fd);
  return status;
}

Result<int> new_private_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  return errno == EEXIST ? Status(Code::kAlreadyExists, path + " is there already")
                         : system_error(path);
}

Result<std::unique_ptr<SocketFile>> SocketFile::open(const std::string& path, mode_t mode) {
  std::unique_ptr<SocketFile> file(new SocketFile(path));
  TT_RETURN_IF_ERROR(check_socket_path(path));
  TT_RETURN_IF_ERROR(file->lock());
  TT_RETURN_IF_ERROR(file->bind(mode));
  return file;
}

SocketFile::~SocketFile() {
  if (socket_ >= 0) close(socket_);
  struct stat info {};
  if (inode_ != 0 && lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    unlink(path_.c_str());
  }
  if (lock_ < 0) return;
  unlink((path_ + ".lock").c_str());
  close(lock_);
}

Status SocketFile::lock() {
  const std::string name = path_ + ".lock";
  while (true) {
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return system_error("socket: " + name);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      char text[32] = {};
      const ssize_t size = pread(fd, text, sizeof text - 1, 0);
      close(fd);
      return Status(Code::kAlreadyExists,
                    "socket: another teletensord serves " + path_ +
                        (size > 0 ? ": process " + std::to_string(std::atoi(text)) : ""));
    }
    // The previous owner of the lock may have removed the file after it was opened here.
    struct stat mine {
    }, there{};
    if (fstat(fd, &mine) == 0 && stat(name.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
        mine.st_dev == there.st_dev) {
      lock_ = fd;
      break;
    }
    close(fd);
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, pid.data(), pid.size(), 0) < 0) {
    return system_error("socket: " + name);
  }
  return {};
}

Status SocketFile::bind(mode_t mode) {
  TT_RETURN_IF_ERROR(prepare_socket(path_));
  const std::string what = "socket " + path_;
  socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  // The file gets the mode of the socket, so that it is at no time accessible to other users.
  struct stat info {};
  if (socket_ < 0 || fchmod(socket_, mode & 0600) != 0 ||
      ::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      lstat(path_.c_str(), &info) != 0) {
    return system_error(what);
  }
  device_ = info.st_dev;
  inode_ = info.st_ino;
  if (chmod(path_.c_str(), mode) != 0 || ::listen(socket_, kBacklog) != 0) {
    return system_error(what);
  }
  return {};
}

}  // namespace teletensor::server
