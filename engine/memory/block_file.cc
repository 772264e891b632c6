#include "engine/memory/block_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace teletensor::memory {

using core::Code;
using core::Status;

namespace {

constexpr char kMagic[8] = {'t', 't', 'b', 'l', 'o', 'c', 'k', '1'};
constexpr int kLevel = 1;

// The header of each block. The last block of a file is empty.
struct BlockHead {
  std::uint32_t bytes = 0;
  std::uint32_t stored = 0;  // size in the file; less than `bytes` if compressed
  // Hash of both sizes and the stored bytes, seeded with the block's position.
  std::uint64_t hash = 0;
};

std::uint64_t hash_of(const BlockHead& head, const char* stored, std::uint32_t place) {
  const std::uint64_t sizes = std::uint64_t{head.bytes} << 32 | head.stored;
  return XXH3_64bits_withSeed(stored, head.stored, XXH3_64bits_withSeed(&sizes, 8, place));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

// ---------------------------------------------------------------- BlockWriter

core::Result<std::unique_ptr<BlockWriter>> BlockWriter::create(const std::string& path,
                                                               bool compress) {
  const std::string temporary = path + ".new";
  (void)unlink(temporary.c_str());
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  std::unique_ptr<BlockWriter> writer(new BlockWriter(path, fd, compress));
  if (fd < 0) return writer->failed("cannot be created", errno);
  TT_RETURN_IF_ERROR(writer->put(kMagic, sizeof kMagic));
  return writer;
}

BlockWriter::BlockWriter(std::string path, int fd, bool compress)
    : path_(std::move(path)), temporary_(path_ + ".new"), fd_(fd), compress_(compress) {
  block_.reserve(kFileBlock);
}

BlockWriter::~BlockWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  (void)unlink(temporary_.c_str());
}

Status BlockWriter::failed(const char* what, int error) const {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Status(full ? Code::kResourceExhausted : Code::kUnavailable,
                path_ + ": " + what + ": " + std::strerror(error));
}

Status BlockWriter::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  bytes_ += bytes;
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kFileBlock - block_.size());
    block_.insert(block_.end(), from, from + part);
    from += part;
    bytes -= part;
    if (block_.size() == kFileBlock) TT_RETURN_IF_ERROR(put_block());
  }
  return {};
}

Status BlockWriter::put_block() {
  BlockHead head{static_cast<std::uint32_t>(block_.size()),
                 static_cast<std::uint32_t>(block_.size()), 0};
  const char* stored = block_.data();
  if (compress_ && head.bytes > 0 && (pays_ || until_probe_ == 0)) {
    packed_.resize(ZSTD_compressBound(kFileBlock));
    const std::size_t size =
        ZSTD_compress(packed_.data(), packed_.size(), block_.data(), block_.size(), kLevel);
    pays_ = !ZSTD_isError(size) && size < block_.size() / 8 * 5;
    if (pays_) {
      head.stored = static_cast<std::uint32_t>(size);
      stored = packed_.data();
    }
    until_probe_ = kProbe;
  }
  if (until_probe_ > 0) --until_probe_;
  head.hash = hash_of(head, stored, blocks_++);
  TT_RETURN_IF_ERROR(put(&head, sizeof head));
  TT_RETURN_IF_ERROR(put(stored, head.stored));
  block_.clear();
  return {};
}

Status BlockWriter::put(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd_, from, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return failed("cannot be written", errno);
    from += done;
    stored_ += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return {};
}

Status BlockWriter::commit(bool durable) {
  if (!block_.empty()) TT_RETURN_IF_ERROR(put_block());
  TT_RETURN_IF_ERROR(put_block());
  if (durable && fsync(fd_) != 0) return failed("cannot be written", errno);
  if (::close(std::exchange(fd_, -1)) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const Status status = failed("cannot be written", errno);
    (void)unlink(temporary_.c_str());
    return status;
  }
  if (!durable) return {};
  const int error = sync_folder(folder_of(path_));
  return error == 0 ? Status() : failed("its folder cannot be written", error);
}

int sync_folder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  return error;
}

// ---------------------------------------------------------------- BlockReader

core::Result<std::unique_ptr<BlockReader>> BlockReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Status(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  path + ": cannot be read: " + std::strerror(errno));
  }
  std::unique_ptr<BlockReader> reader(new BlockReader(path, fd));
  struct stat facts {};
  if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != geteuid() ||
      (facts.st_mode & 077) != 0) {
    return Status(Code::kPermissionDenied, path + ": not a file that only this user can read");
  }
  char magic[sizeof kMagic];
  TT_RETURN_IF_ERROR(reader->get(magic, sizeof magic));
  if (std::memcmp(magic, kMagic, sizeof magic) != 0) {
    return Status(Code::kDataLoss,
                  path + ": not a file that teletensord wrote: its first bytes are others");
  }
  return reader;
}

BlockReader::BlockReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

BlockReader::~BlockReader() { ::close(fd_); }

Status BlockReader::damaged(const char* what) const {
  return Status(Code::kDataLoss,
                path_ + ": damaged: " + what + ", block " + std::to_string(blocks_));
}

Status BlockReader::get(void* to, std::size_t bytes) {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t done = ::read(fd_, out, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      return Status(Code::kDataLoss, path_ + ": cannot be read: " + std::strerror(errno));
    }
    if (done == 0) return damaged("it is truncated");
    out += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return {};
}

Status BlockReader::next_block() {
  BlockHead head;
  TT_RETURN_IF_ERROR(get(&head, sizeof head));
  if (head.bytes > kFileBlock || head.stored > head.bytes) {
    return damaged("a block has an invalid size");
  }
  const bool packed = head.stored < head.bytes;
  std::vector<char>& stored = packed ? packed_ : block_;
  stored.resize(head.stored);
  TT_RETURN_IF_ERROR(get(stored.data(), stored.size()));
  if (hash_of(head, stored.data(), blocks_) != head.hash) {
    return damaged("a block has a wrong checksum");
  }
  if (packed) {
    block_.resize(head.bytes);
    const std::size_t size =
        ZSTD_decompress(block_.data(), block_.size(), packed_.data(), packed_.size());
    if (ZSTD_isError(size) || size != head.bytes) return damaged("a block cannot be decompressed");
  }
  ++blocks_;
  at_ = 0;
  ended_ = head.bytes == 0;
  return {};
}

Status BlockReader::read(void* to, std::size_t bytes) {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    if (at_ == block_.size()) {
      if (!ended_) TT_RETURN_IF_ERROR(next_block());
      if (ended_) return damaged("it ends too early");
    }
    const std::size_t part = std::min(bytes, block_.size() - at_);
    std::memcpy(out, block_.data() + at_, part);
    at_ += part;
    out += part;
    bytes -= part;
  }
  return {};
}

Status BlockReader::finish() {
  if (at_ != block_.size()) return damaged("it is longer than expected");
  if (!ended_) TT_RETURN_IF_ERROR(next_block());
  return ended_ ? Status() : damaged("it is longer than expected");
}

}  // namespace teletensor::memory
