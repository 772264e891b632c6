#include "engine/memory/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace teletensor::memory {

using core::Code;
using core::Status;

namespace {

constexpr char kPrefix[] = "teletensor-spill-";

// Locks the folder and returns the descriptor that holds the lock; -1 if the folder belongs to
// another user or is in use by a living process.
int lock_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat facts {};
  if (fstat(fd, &facts) == 0 && facts.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
    return fd;
  }
  ::close(fd);
  return -1;
}

// Removes the folders of processes that died.
void clean(const std::string& base) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(base, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->path().filename().string().starts_with(kPrefix)) continue;
    const int fd = lock_folder(it->path().string());
    if (fd < 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(it->path(), ignored);
    ::close(fd);
  }
}

}  // namespace

core::Result<std::unique_ptr<Disk>> Disk::open(const std::string& base, std::uint64_t total,
                                               std::uint64_t user_limit) {
  const auto refuse = [&](int error) {
    return Status(Code::kUnavailable, "cannot create a folder for spilled tensors in " + base +
                                          ": " + std::strerror(error));
  };
  std::error_code error;
  // The mode of a new folder is set explicitly, so that it does not depend on the umask.
  if (std::filesystem::create_directories(base, error)) {
    std::filesystem::permissions(base, std::filesystem::perms::owner_all, error);
  }
  if (error) return refuse(error.value());
  clean(base);
  std::string folder = base + "/" + kPrefix + "XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return refuse(errno);  // mode 0700
  const int lock = lock_folder(folder);
  if (lock < 0) return refuse(EWOULDBLOCK);
  return std::unique_ptr<Disk>(new Disk(std::move(folder), lock, total, user_limit));
}

Disk::~Disk() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  ::close(lock_);
}

std::shared_ptr<DiskShare> Disk::share(const std::string& user) {
  if (user.empty() || user_limit_ == 0) return std::make_shared<DiskShare>(budget_, nullptr);
  core::MutexLock lock(mu_);
  std::erase_if(users_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<UserBudget>& known = users_[user];
  std::shared_ptr<UserBudget> budget = known.lock();
  if (!budget) known = budget = std::make_shared<UserBudget>(budget_, user_limit_);
  return std::make_shared<DiskShare>(budget_, std::move(budget));
}

std::string Disk::new_path() {
  return folder_ + "/" + std::to_string(next_.fetch_add(1, std::memory_order_relaxed));
}

void Disk::discard(std::string path) {
  core::MutexLock lock(mu_);
  dead_.push_back(std::move(path));
}

void Disk::delete_discarded() {
  std::vector<std::string> dead;
  {
    core::MutexLock lock(mu_);
    dead.swap(dead_);
  }
  for (const std::string& path : dead) (void)unlink(path.c_str());
}

bool Disk::in_use() const {
  core::MutexLock lock(mu_);
  return bytes() > 0 || !dead_.empty();
}

Disk::Moved Disk::moved() const {
  const auto of = [](const std::atomic<std::uint64_t>& n) {
    return n.load(std::memory_order_relaxed);
  };
  return {of(out_), of(in_), of(files_), of(out_ns_), of(in_ns_), of(failures_)};
}

void Disk::moved_out(std::uint64_t bytes, std::uint64_t file, std::uint64_t ns) {
  out_.fetch_add(bytes, std::memory_order_relaxed);
  files_.fetch_add(file, std::memory_order_relaxed);
  out_ns_.fetch_add(ns, std::memory_order_relaxed);
}

void Disk::moved_in(std::uint64_t bytes, std::uint64_t ns) {
  in_.fetch_add(bytes, std::memory_order_relaxed);
  in_ns_.fetch_add(ns, std::memory_order_relaxed);
}

Away::~Away() {
  if (disk == nullptr) return;
  (void)share->files.release(file);
  disk->discard(std::move(path));
}

}  // namespace teletensor::memory
