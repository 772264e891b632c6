// Disk: the folder into which storages move when memory is short, and who has how much of it.
//
// A private folder (0700) of files that only this user can read (0600), one a storage; it and what
// daemons that died have left go when one begins or ends. Thread-safe. Outlives every storage.
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

// What a session has on the disk.
struct DiskShare {
  DiskShare(Budget& budget, std::shared_ptr<UserBudget> user) : files(budget, 0, std::move(user)) {}
  Account files;                        // bytes of files
  std::atomic<std::uint64_t> bytes{0};  // of the storages that are in them
};

class Disk {
 public:
  // Makes a folder of its own in `base` (made where it is not there). `total`: bytes of all files;
  // `user_limit`: of the files of one user's sessions, 0: no limit.
  static core::Result<std::unique_ptr<Disk>> open(const std::string& base, std::uint64_t total,
                                                  std::uint64_t user_limit = 0);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  Budget& budget() { return budget_; }
  const std::string& folder() const { return folder_; }
  // Of a session of `user`; "": of nobody that is known, without a limit of its own.
  std::shared_ptr<DiskShare> share(const std::string& user);
  std::string new_path();
  // The file is of no use any more; bury() removes it. Any thread.
  void discard(std::string path);
  void bury();          // does I/O
  bool in_use() const;  // there are files

  // So far, of storages; `files`: how much of it the disk got.
  struct Moved {
    std::uint64_t out = 0, in = 0, files = 0, out_ns = 0, in_ns = 0, failures = 0;
  };
  Moved moved() const;
  void moved_out(std::uint64_t bytes, std::uint64_t file, std::uint64_t ns);
  void moved_in(std::uint64_t bytes, std::uint64_t ns);
  void failed() { failures_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // there now

 private:
  friend class Pool;
  Disk(std::string folder, int lock, std::uint64_t total, std::uint64_t user_limit)
      : folder_(std::move(folder)), lock_(lock), user_limit_(user_limit), budget_(total) {}

  const std::string folder_;
  const int lock_;  // of the folder, held while it is in use
  const std::uint64_t user_limit_;
  Budget budget_;
  std::atomic<std::uint64_t> next_{1}, bytes_{0};
  std::atomic<std::uint64_t> out_{0}, in_{0}, files_{0}, out_ns_{0}, in_ns_{0}, failures_{0};
  mutable core::Mutex mu_;
  std::map<std::string, std::weak_ptr<UserBudget>> users_ TT_GUARDED_BY(mu_);
  std::vector<std::string> dead_ TT_GUARDED_BY(mu_);
};

// Where a storage's bytes are while they are not in its memory.
struct Away {
  ~Away();  // the file goes

  core::Ref<Storage> host;  // of one on a device: there, whether or not that is in a file now
  // Without it, in a file.
  Disk* disk = nullptr;
  std::shared_ptr<DiskShare> share;
  std::string path;
  std::uint64_t bytes = 0, file = 0, charged = 0;  // `charged`: in memory before
  core::Status lost;                               // not ok: they cannot be had back
  // Of who reads it piece by piece (Pool::read).
  std::unique_ptr<BlockReader> reader;
  std::uint64_t read = 0;
};

}  // namespace teletensor::memory
