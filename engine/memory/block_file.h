// Files of bytes in checksummed blocks: what a snapshot or a spilled storage is kept in.
//
// A file is made under a temporary name, mode 0600, and gets its own by commit(); until then, and
// where anything fails, an older file of that name stays as it was. Every block has the hash of its
// contents and of its place, so that a flipped, cut or displaced byte is found by whoever reads it.
// Blocks are compressed (zstd) where that pays: one in kProbe is tried, and the ones behind it
// follow suit. Native byte order: the file is for the machine that wrote it.
//
// One thread at a time each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace teletensor::memory {

inline constexpr std::size_t kFileBlock = std::size_t{1} << 20;

// Waits until the disk has the names of the files in the folder. Returns 0, or the errno.
int sync_folder(const std::string& folder);

class BlockWriter {
 public:
  // Makes `path`.new; one that is there (of a process that died) is replaced. Links are refused.
  static core::Result<std::unique_ptr<BlockWriter>> create(const std::string& path,
                                                           bool compress = true);
  // Removes what was not committed.
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  // Appends. RESOURCE_EXHAUSTED where the disk is full; the writer is then of no further use.
  core::Status write(const void* data, std::size_t bytes);
  core::Status write(std::string_view bytes) { return write(bytes.data(), bytes.size()); }
  // What was written so far can be read though what follows is damaged.
  core::Status end_block() { return block_.empty() ? core::Status() : put_block(); }
  // The file has its name. `durable`: and outlives a crash of the machine (fsync, also of the
  // folder); spilled bytes need not.
  core::Status commit(bool durable = true);

  std::uint64_t bytes() const { return bytes_; }    // written so far
  std::uint64_t stored() const { return stored_; }  // in the file

 private:
  static constexpr int kProbe = 16;

  BlockWriter(std::string path, int fd, bool compress);
  core::Status put_block();
  core::Status put(const void* data, std::size_t bytes);
  core::Status failed(const char* what, int error) const;

  const std::string path_, temporary_;
  int fd_;
  const bool compress_;
  int until_probe_ = 0;
  bool pays_ = false;
  std::uint32_t blocks_ = 0;
  std::uint64_t bytes_ = 0, stored_ = 0;
  std::vector<char> block_, packed_;
};

class BlockReader {
 public:
  // DATA_LOSS for what is no such file, NOT_FOUND where there is none. Others' files, links and
  // files that others can read are refused.
  static core::Result<std::unique_ptr<BlockReader>> open(const std::string& path);
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // The next `bytes` bytes, all of them. DATA_LOSS, which names the file, where they are damaged or
  // missing: `to` then has nothing to rely on.
  core::Status read(void* to, std::size_t bytes);
  // Nothing is missing behind what was read, and nothing follows.
  core::Status finish();

 private:
  BlockReader(std::string path, int fd);
  core::Status next_block();
  core::Status get(void* to, std::size_t bytes);
  core::Status damaged(const char* what) const;

  const std::string path_;
  const int fd_;
  std::uint32_t blocks_ = 0;
  bool ended_ = false;
  std::size_t at_ = 0;
  std::vector<char> block_, packed_;
};

}  // namespace teletensor::memory
