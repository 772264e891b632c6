#include "server/state/move_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/memory/block_file.h"
#include "server/base/log.h"
#include "server/base/os/private_files.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

constexpr char kMoved[] = ".moved", kArrival[] = ".arrival", kArriving[] = ".arriving";

Status failed(const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Status(full ? Code::kResourceExhausted : Code::kUnavailable,
                std::filesystem::path(path).filename().string() + ": " + std::strerror(error));
}

// Reads the records in the folder whose names end with this suffix.
template <class Message>
std::vector<Message> records(const SessionStore& store, const std::string& suffix) {
  std::vector<Message> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(store.path_of(""), error)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(suffix)) continue;
    Message message;
    auto reader = memory::BlockReader::open(store.path_of(file));
    Status status = reader.ok() ? get_message(**reader, message) : reader.status();
    if (status.ok()) status = (*reader)->finish();
    if (status.ok() && file == message.id() + suffix) {
      all.push_back(std::move(message));
    } else {
      log_error("state_damaged", {{"file", file}, {"reason", status.message()}});
    }
  }
  return all;
}

}  // namespace

Result<std::unique_ptr<MoveFile>> MoveFile::make(const std::string& path) {
  const auto made = new_private_file(path);
  if (!made.ok()) return made.status();
  return std::unique_ptr<MoveFile>(new MoveFile(path, *made, 0));
}

Result<std::unique_ptr<MoveFile>> MoveFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return failed(path, errno);
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) {
    const int error = errno;
    close(descriptor);
    return failed(path, error);
  }
  return std::unique_ptr<MoveFile>(
      new MoveFile(path, descriptor, static_cast<std::uint64_t>(facts.st_size)));
}

MoveFile::~MoveFile() { close(descriptor_); }

Status MoveFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed(path_, written < 0 ? errno : ENOSPC);
    size_ += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status MoveFile::sync() { return fsync(descriptor_) == 0 ? Status() : failed(path_, errno); }

Result<std::string> MoveFile::read(std::uint64_t at, std::size_t bytes) {
  std::string out(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t part =
        pread(descriptor_, out.data() + done, bytes - done, static_cast<off_t>(at + done));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return failed(path_, errno);
    if (part == 0) return Status(Code::kDataLoss, "the session's file has become shorter");
    done += static_cast<std::size_t>(part);
  }
  return out;
}

std::vector<Tokens::Hashed> tokens_of(const v1::SavedArrival& arrival) {
  std::vector<Tokens::Hashed> tokens;
  for (const v1::SavedToken& each : arrival.tokens()) {
    tokens.push_back({each.id(), each.hash(), each.created(), each.expires()});
  }
  return tokens;
}

Status MoveFiles::save(const v1::SavedMove& move) const {
  return write_message_file(store_.path_of(move.id() + kMoved), move);
}

Status MoveFiles::save(const v1::SavedArrival& arrival) const {
  return write_message_file(store_.path_of(arrival.id() + kArrival), arrival);
}

void MoveFiles::forget_move(const std::string& id) const { store_.remove(id + kMoved); }

void MoveFiles::forget_arrival(const std::string& id) const {
  store_.remove(id + kArrival);
  store_.remove(id + kArriving);
}

Status MoveFiles::take(const std::string& id) const {
  const std::string from = store_.path_of(arriving(id)), to = store_.path_of(session(id));
  if (std::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) return failed(to, errno);
  const std::string folder = store_.path_of("");
  const int error = memory::sync_folder(folder);
  return error == 0 ? Status() : failed(folder, error);
}

std::vector<v1::SavedMove> MoveFiles::moves() const {
  return records<v1::SavedMove>(store_, kMoved);
}

std::vector<v1::SavedArrival> MoveFiles::arrivals() const {
  std::vector<v1::SavedArrival> whole;
  for (v1::SavedArrival& each : records<v1::SavedArrival>(store_, kArrival)) {
    if (store_.exists(arriving(each.id()))) {
      whole.push_back(std::move(each));
    } else {  // The file became a session's file just before the daemon ended.
      store_.remove(each.id() + kArrival);
    }
  }
  std::error_code error;
  std::vector<std::string> parts;
  for (const auto& entry : std::filesystem::directory_iterator(store_.path_of(""), error)) {
    const std::string file = entry.path().filename().string();
    const std::string id = file.substr(0, file.rfind('.'));
    if (file.ends_with(kArriving) && !store_.exists(id + kArrival)) parts.push_back(file);
  }
  for (const std::string& file : parts) store_.remove(file);
  return whole;
}

}  // namespace teletensor::server
