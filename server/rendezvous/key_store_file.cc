#include "server/rendezvous/key_store_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <vector>

#include "server/base/log.h"
#include "server/base/os/private_files.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

constexpr std::uint64_t kMagic = 0x31726f7473747474;  // The bytes "tttstor1".
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 31;

// The header of a record; the key and the value follow.
struct Record {
  std::uint64_t hash;  // Hash of everything after this field, and of the position in the file.
  std::uint64_t client, number;
  std::int64_t answer;
  std::uint32_t kind, key_bytes, value_bytes, zero;
};
static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) == 48);

std::uint64_t hash_of(const char* record, std::size_t bytes, std::uint64_t place) {
  constexpr std::size_t kFrom = sizeof(Record::hash);
  return XXH3_64bits_withSeed(record + kFrom, bytes - kFrom, place ^ kMagic);
}

// Appends the record of a change that will be at the position `place` of the file.
void put(std::string& out, const KeyStoreFile::Change& change, std::uint64_t place) {
  Record record{0,
                change.client,
                change.number,
                change.answer,
                static_cast<std::uint32_t>(change.kind),
                static_cast<std::uint32_t>(change.key.size()),
                static_cast<std::uint32_t>(change.value.size()),
                0};
  const std::size_t at = out.size();
  out.append(reinterpret_cast<const char*>(&record), sizeof record);
  out.append(change.key).append(change.value);
  record.hash = hash_of(out.data() + at, out.size() - at, place);
  std::memcpy(out.data() + at, &record.hash, sizeof record.hash);
}

std::string records(std::span<const KeyStoreFile::Change> changes, std::uint64_t place) {
  std::string out;
  for (const KeyStoreFile::Change& change : changes) put(out, change, place + out.size());
  return out;
}

// Reads the record at `at`, and sets `next` to the position after it. Returns false if there is no
// complete record.
bool get(std::string_view all, std::size_t at, KeyStoreFile::Change& out, std::size_t& next) {
  Record record{};
  if (all.size() - at < sizeof record) return false;
  std::memcpy(&record, all.data() + at, sizeof record);
  const std::uint64_t bytes =
      sizeof record + std::uint64_t{record.key_bytes} + std::uint64_t{record.value_bytes};
  if (all.size() - at < bytes) return false;
  if (hash_of(all.data() + at, bytes, at) != record.hash) return false;
  out.kind = static_cast<KeyStoreFile::Kind>(record.kind);
  out.client = record.client;
  out.number = record.number;
  out.answer = record.answer;
  out.key = all.substr(at + sizeof record, record.key_bytes);
  out.value = all.substr(at + sizeof record + record.key_bytes, record.value_bytes);
  next = at + bytes;
  return true;
}

KeyStoreFile::Change head_change(const KeyStoreFile::Head& head) {
  return {KeyStoreFile::Kind::kHead, head.generation, 0, 0, head.user, head.name};
}

class File {
 public:
  File(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

Status failed(const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Status(full ? Code::kResourceExhausted : Code::kUnavailable,
                "the store cannot be written down: " + path.substr(path.rfind('/') + 1) + ": " +
                    std::strerror(error));
}

Status write_at(const std::string& path, int fd, std::string_view bytes, std::uint64_t place) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return failed(path);
    bytes.remove_prefix(static_cast<std::size_t>(done));
    place += static_cast<std::uint64_t>(done);
  }
  return {};
}

Result<std::string> read_all(const std::string& path) {
  const File file(path, O_RDONLY);
  struct stat info {};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0) return failed(path);
  if (!S_ISREG(info.st_mode) || static_cast<std::uint64_t>(info.st_size) > kMaxFile) {
    return Status(Code::kDataLoss, "not the file of a store");
  }
  std::string all(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t at = 0;
  while (at < all.size()) {
    const ssize_t done = pread(file.fd(), all.data() + at, all.size() - at, static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return failed(path);
    if (done == 0) break;
    at += static_cast<std::size_t>(done);
  }
  all.resize(at);
  return all;
}

}  // namespace

Result<std::unique_ptr<KeyStoreFile>> KeyStoreFile::create(const std::string& path,
                                                           const Head& head) {
  std::unique_ptr<KeyStoreFile> made(new KeyStoreFile(path, 0));
  TT_RETURN_IF_ERROR(made->replace(head, {}));
  return made;
}

Result<std::unique_ptr<KeyStoreFile>> KeyStoreFile::load(const std::string& path, Head& head,
                                                         const Visit& visit) {
  TT_RETURN_IF_ERROR(private_file(path));
  const Result<std::string> all = read_all(path);
  if (!all.ok()) return all.status();
  Change change;
  std::size_t at = 0;
  if (!get(*all, 0, change, at) || change.kind != Kind::kHead) {
    return Status(Code::kDataLoss, "not the file of a store, or its beginning is damaged");
  }
  head = {std::string(change.key), std::string(change.value), change.client};
  while (get(*all, at, change, at)) visit(change);
  if (at < all->size() && truncate(path.c_str(), static_cast<off_t>(at)) != 0) return failed(path);
  return std::unique_ptr<KeyStoreFile>(new KeyStoreFile(path, at));
}

Status KeyStoreFile::append(std::span<const Change> changes) {
  const std::string bytes = records(changes, bytes_);
  const File file(path_, O_WRONLY);
  if (file.fd() < 0) return failed(path_);
  const Status status = write_at(path_, file.fd(), bytes, bytes_);
  // If the truncation fails as well, the rest of the file contains no complete record.
  if (!status.ok()) {
    if (ftruncate(file.fd(), static_cast<off_t>(bytes_)) != 0) {
      log_warn("store_not_cut", {{"reason", std::strerror(errno)}});
    }
    return status;
  }
  bytes_ += bytes.size();
  return {};
}

Status KeyStoreFile::replace(const Head& head, std::span<const Change> changes) {
  const std::string next = path_ + ".new";
  std::vector<Change> all{head_change(head)};
  all.insert(all.end(), changes.begin(), changes.end());
  const std::string bytes = records(all, 0);
  Status status;
  {
    unlink(next.c_str());
    const File file(next, O_WRONLY | O_CREAT | O_EXCL);
    status = file.fd() < 0 ? failed(next) : write_at(next, file.fd(), bytes, 0);
  }
  if (status.ok() && rename(next.c_str(), path_.c_str()) != 0) status = failed(path_);
  if (!status.ok()) {
    unlink(next.c_str());
    return status;
  }
  bytes_ = bytes.size();
  return {};
}

void KeyStoreFile::remove() const {
  if (unlink(path_.c_str()) != 0 && errno != ENOENT) {
    log_warn("store_not_removed", {{"reason", std::strerror(errno)}});
  }
}

}  // namespace teletensor::server
