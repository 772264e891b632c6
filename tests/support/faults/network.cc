// Records to which addresses the daemon connects: each connection that it begins over the network
// is a line in the file that TT_CALLS names.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int connect(int fd, const sockaddr* to, socklen_t size) {
  static const auto real =
      reinterpret_cast<int (*)(int, const sockaddr*, socklen_t)>(dlsym(RTLD_NEXT, "connect"));
  const char* const path = std::getenv("TT_CALLS");
  if (path != nullptr && (to->sa_family == AF_INET || to->sa_family == AF_INET6)) {
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    (void)!write(file, "connect\n", 8);
    close(file);
  }
  return real(fd, to, size);
}
