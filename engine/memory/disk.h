// Disk: the folder for storages that are moved out of memory, with limits on its use by each user.
//
// The folder is private (mode 0700) and holds one file (mode 0600) for each storage. It is removed
// at the end; folders left by daemons that died are removed at the next start. Thread-safe. Must
// outlive every storage.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/memory/account.h"
#include "engine/memory/block_file.h"
#include "engine/memory/storage.h"

namespace teletensor::memory {

// The disk space used by one session.
struct DiskShare {
  DiskShare(Budget& budget, std::shared_ptr<UserBudget> user) : files(budget, 0, std::move(user)) {}
  Account files;                        // total size of its files
  std::atomic<std::uint64_t> bytes{0};  // bytes of the storages in these files
};

class Disk {
 public:
  // Creates a new folder inside `base`, which is created if necessary. `total` is the maximum size
  // of all files, `user_limit` that of all sessions of one user (0: no limit).
  static core::Result<std::unique_ptr<Disk>> open(const std::string& base, std::uint64_t total,
                                                  std::uint64_t user_limit = 0);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  Budget& budget() { return budget_; }
  const std::string& folder() const { return folder_; }
  // Creates the share of a session of `user`. An empty name means an unknown user, without a limit
  // of its own.
  std::shared_ptr<DiskShare> share(const std::string& user);
  std::string new_path();
  // Marks a file as no longer needed; the next delete_discarded() deletes it. Any thread.
  void discard(std::string path);
  void delete_discarded();  // deletes the discarded files
  bool in_use() const;      // true if files exist or have to be deleted

  // Totals of the transfers so far, in bytes of storages; `files` counts the bytes written to
  // files.
  struct Moved {
    std::uint64_t out = 0, in = 0, files = 0, out_ns = 0, in_ns = 0, failures = 0;
  };
  Moved moved() const;
  void moved_out(std::uint64_t bytes, std::uint64_t file, std::uint64_t ns);
  void moved_in(std::uint64_t bytes, std::uint64_t ns);
  void failed() { failures_.fetch_add(1, std::memory_order_relaxed); }
  // Bytes of storages on the disk now.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class MovedStorages;
  Disk(std::string folder, int lock, std::uint64_t total, std::uint64_t user_limit)
      : folder_(std::move(folder)), lock_(lock), user_limit_(user_limit), budget_(total) {}

  const std::string folder_;
  const int lock_;  // descriptor that holds the folder's lock
  const std::uint64_t user_limit_;
  Budget budget_;
  std::atomic<std::uint64_t> next_{1}, bytes_{0};
  std::atomic<std::uint64_t> out_{0}, in_{0}, files_{0}, out_ns_{0}, in_ns_{0}, failures_{0};
  mutable core::Mutex mu_;
  std::map<std::string, std::weak_ptr<UserBudget>> users_ TT_GUARDED_BY(mu_);
  std::vector<std::string> dead_ TT_GUARDED_BY(mu_);
};

// The location of a storage's bytes while they are not in its own memory.
struct Away {
  ~Away();  // discards the file

  // For a storage of a device: the storage on the host that holds the bytes (itself in memory or in
  // a file).
  core::Ref<Storage> host;
  // If `host` is null, the bytes are in the file `path` of this disk.
  Disk* disk = nullptr;
  std::shared_ptr<DiskShare> share;
  std::string path;
  // `charged`: charged bytes while it was in memory.
  std::uint64_t bytes = 0, file = 0, charged = 0;
  core::Status lost;  // an error if the bytes can never be read again
  // The state of a reader that proceeds piece by piece (Pool::read).
  std::unique_ptr<BlockReader> reader;
  std::uint64_t read = 0;
};

}  // namespace teletensor::memory
