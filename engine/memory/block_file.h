// BlockWriter and BlockReader: files of checksummed blocks, used for snapshots and spilled
// storages.
//
// A file is written under a temporary name with mode 0600 and renamed by commit(). Until then, and
// if anything fails, an existing file of that name is unchanged. Every block stores a hash of its
// contents and of its position, so that the reader detects flipped, truncated or displaced bytes.
// Blocks are compressed with zstd if that pays: one block in kProbe is tried, and the following
// blocks are treated like it. Numbers have native byte order, so a file can only be read on the
// kind of machine that wrote it.
//
// Each object may be used by one thread at a time.
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

// Waits until the names of the files in the folder are durable on the disk. Returns 0 or the errno.
int sync_folder(const std::string& folder);

class BlockWriter {
 public:
  // Creates the temporary file `path`.new and replaces an existing one (left by a process that
  // died). Symbolic links are refused.
  static core::Result<std::unique_ptr<BlockWriter>> create(const std::string& path,
                                                           bool compress = true);
  // Removes the file if it was not committed.
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  // Appends bytes. Returns RESOURCE_EXHAUSTED if the disk is full; the writer cannot be used
  // afterwards.
  core::Status write(const void* data, std::size_t bytes);
  core::Status write(std::string_view bytes) { return write(bytes.data(), bytes.size()); }
  // Ends the current block, so that the bytes written so far stay readable if later ones are
  // damaged.
  core::Status end_block() { return block_.empty() ? core::Status() : put_block(); }
  // Gives the file its final name. With `durable`, the file also survives a crash of the machine
  // (fsync of file and folder); spilled bytes do not need that.
  core::Status commit(bool durable = true);

  std::uint64_t bytes() const { return bytes_; }    // written so far
  std::uint64_t stored() const { return stored_; }  // bytes in the file so far, after compression

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
  // Returns NOT_FOUND if there is no file and DATA_LOSS if it is not a block file. Symbolic links,
  // files of another user, and files that other users can read are refused.
  static core::Result<std::unique_ptr<BlockReader>> open(const std::string& path);
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // Reads exactly the next `bytes` bytes. Returns DATA_LOSS with the name of the file if they are
  // damaged or missing; the contents of `to` are then undefined.
  core::Status read(void* to, std::size_t bytes);
  // Checks that the file ends here and that nothing is missing.
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
