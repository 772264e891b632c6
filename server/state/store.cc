#include "server/state/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/memory/block_file.h"
#include "server/base/log.h"
#include "server/base/os/private_files.h"
#include "server/base/secrets.h"

namespace teletensor::server {

using core::Code;
using core::Status;
using memory::BlockReader;
using memory::BlockWriter;

namespace {

constexpr char kSuffix[] = ".session";
constexpr char kLosses[] = "losses";
constexpr std::size_t kPiece = std::size_t{1} << 20;
// Maximum size of a protobuf message.
constexpr std::uint64_t kMaxMessage = std::uint64_t{1} << 31;
// Version of the file format. Version 3: the contents of shared storages are in separate files.
// Version 2: the contents of a storage are stored in pieces, each preceded by its size; kGone and a
// reason end the contents of a storage whose rest is lost. Version 1: without either.
constexpr std::uint32_t kFormat = 3;
constexpr std::uint64_t kGone = ~std::uint64_t{0};
constexpr std::uint64_t kMaxReason = 1 << 16;
constexpr std::uint64_t kReason = 256;  // Estimated size of an error text in a file, in bytes.

Status format_known(const v1::SavedHead& head) {
  if (head.format() >= 1 && head.format() <= kFormat) return {};
  return Status(Code::kUnimplemented, "written by another version of teletensord");
}

}  // namespace

Status put_message(BlockWriter& writer, const google::protobuf::MessageLite& message) {
  const std::uint64_t size = message.ByteSizeLong();
  if (size >= kMaxMessage) {
    return Status(Code::kResourceExhausted,
                  "the session has too many tensors and recorded operations for one file");
  }
  TT_RETURN_IF_ERROR(writer.write(&size, sizeof size));
  return writer.write(message.SerializeAsString());
}

Status get_message(BlockReader& reader, google::protobuf::MessageLite& message) {
  std::uint64_t size = 0;
  TT_RETURN_IF_ERROR(reader.read(&size, sizeof size));
  if (size >= kMaxMessage) return Status(Code::kDataLoss, "a size in the file is wrong");
  // Reads in pieces, so that a wrong size does not allocate more than the file has.
  std::string bytes;
  while (bytes.size() < size) {
    const std::size_t at = bytes.size(), part = std::min<std::size_t>(size - at, kPiece);
    bytes.resize(at + part);
    TT_RETURN_IF_ERROR(reader.read(bytes.data() + at, part));
  }
  return message.ParseFromString(bytes)
             ? Status()
             : Status(Code::kDataLoss, "a message in the file cannot be decoded");
}

Status named_file(const std::string& file, const Status& status) {
  if (status.ok()) return status;
  std::string text = status.message();
  if (const std::size_t colon = text.find(file + ": "); colon != std::string::npos) {
    text = text.substr(colon + file.size() + 2);
  }
  return Status(status.code(), "sessions/" + file + ": " + text);
}

Status write_message_file(const std::string& path, const google::protobuf::MessageLite& message) {
  auto writer = BlockWriter::create(path);
  if (!writer.ok()) return writer.status();
  TT_RETURN_IF_ERROR(put_message(**writer, message));
  return (*writer)->commit();
}

void SessionStore::Lost::add(std::uint64_t lost_bytes, const Status& status) {
  if (storages++ == 0) why = status;
  bytes += lost_bytes;
}

core::Result<std::unique_ptr<SessionStore>> SessionStore::open(const std::string& state_dir) {
  const std::string folder = state_dir + "/sessions";
  TT_RETURN_IF_ERROR(private_state(state_dir));
  TT_RETURN_IF_ERROR(private_folder(folder));
  const int lock =
      ::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock < 0) {
    return Status(Code::kUnavailable, folder + ": cannot be used: " + std::strerror(errno));
  }
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock);
    return Status(Code::kUnavailable, folder + ": another daemon keeps its sessions there");
  }
  return std::unique_ptr<SessionStore>(new SessionStore(folder, lock));
}

SessionStore::~SessionStore() { ::close(lock_); }

std::string SessionStore::new_name() const {
  unsigned long long next = 0;
  char text[32];
  do {
    std::snprintf(text, sizeof text, "%016llx%s",
                  static_cast<unsigned long long>(random_number().value_or(++next)), kSuffix);
  } while (exists(text));
  return text;
}

bool SessionStore::exists(const std::string& file) const {
  std::error_code error;
  return std::filesystem::exists(path_of(file), error);
}

std::uint64_t SessionStore::size_of(const std::string& file) const {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path_of(file), error);
  return error ? 0 : size;
}

std::vector<SessionStore::Found> SessionStore::list() const {
  std::vector<Found> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with(".new")) {
      std::error_code ignored;
      std::filesystem::remove(entry.path(), ignored);
    }
    if (!file.ends_with(kSuffix)) continue;
    Found& found = all.emplace_back();
    found.file = file;
    auto reader = BlockReader::open(path_of(file));
    found.status = reader.ok() ? get_message(**reader, found.head) : reader.status();
    if (found.status.ok()) found.status = format_known(found.head);
    if (!found.status.ok()) {
      found.status = named_file(file, found.status);
      found.head.Clear();
    }
  }
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.file < b.file; });
  return all;
}

namespace {

// Writes an error that ends the contents of a storage whose rest is lost.
Status write_reason(BlockWriter& writer, const program::Image::Storage& storage,
                    const Status& lost) {
  const std::string why =
      lost.code() == Code::kDataLoss
          ? lost.message()
          : "a tensor of " + std::to_string(storage.bytes) + " bytes, made by command " +
                std::to_string(storage.seq) +
                ", was not written when the daemon was shut down: " + lost.message();
  const std::uint64_t gone[] = {kGone, std::min<std::uint64_t>(why.size(), kMaxReason)};
  TT_RETURN_IF_ERROR(writer.write(gone, sizeof gone));
  return writer.write(std::string_view(why).substr(0, gone[1]));
}

Status write_storage(BlockWriter& writer, const program::Image::Storage& storage,
                     engine::Engine& engine, const SessionStore::Terms& terms,
                     std::vector<char>& piece, Status& lost) {
  if (terms.room != SessionStore::kEndless) {
    TT_RETURN_IF_ERROR(writer.end_block());
    if (storage.bytes > kReason && writer.stored() + storage.bytes > terms.room) {
      lost = Status(Code::kResourceExhausted, "there was no room for it on the disk");
      return write_reason(writer, storage, lost);
    }
  }
  for (std::uint64_t at = 0; at < storage.bytes; at += piece.size()) {
    const std::uint64_t part = std::min<std::uint64_t>(piece.size(), storage.bytes - at);
    lost = terms.check();
    if (lost.ok()) lost = engine.read_storage(storage, at, piece.data(), part);
    if (!lost.ok()) return terms.spares(lost) ? write_reason(writer, storage, lost) : lost;
    TT_RETURN_IF_ERROR(writer.write(&part, sizeof part));
    TT_RETURN_IF_ERROR(writer.write(piece.data(), part));
    TT_RETURN_IF_ERROR(terms.fits(writer.stored()));
  }
  return {};
}

}  // namespace

Status SessionStore::write(const std::string& file, const v1::SavedHead& head,
                           const v1::SavedBody& body, const program::Image& image,
                           engine::Engine& engine, const Terms& terms, Lost& lost) const {
  auto writer = BlockWriter::create(path_of(file));
  const auto work = [&]() -> Status {
    if (!writer.ok()) return writer.status();
    v1::SavedHead first = head;
    first.set_format(head.commons().empty() ? 2 : kFormat);
    TT_RETURN_IF_ERROR(put_message(**writer, first));
    TT_RETURN_IF_ERROR((*writer)->end_block());
    TT_RETURN_IF_ERROR(put_message(**writer, body));
    std::vector<char> piece(kPiece);
    for (const program::Image::Storage& storage : image.storages) {
      if (storage.common != 0) continue;
      Status gone;
      TT_RETURN_IF_ERROR(write_storage(**writer, storage, engine, terms, piece, gone));
      if (!gone.ok()) lost.add(storage.bytes, gone);
    }
    TT_RETURN_IF_ERROR((*writer)->end_block());
    TT_RETURN_IF_ERROR(terms.fits((*writer)->stored()));
    if (const Status status = terms.check(); !status.ok() && !terms.spares(status)) return status;
    return (*writer)->commit();
  };
  const Status status = work();
  if (writer.ok()) lost.stored = (*writer)->stored();
  return named_file(file, status);
}

void SessionStore::remove(const std::string& file) const {
  std::error_code error;
  std::filesystem::remove(path_of(file), error);
  if (error) {
    log_warn("state_not_removed", {{"file", file}, {"reason", error.message()}});
  }
}

SessionStore::Reading::~Reading() = default;

Status SessionStore::Reading::read(void* to, std::size_t bytes, Status& lost) {
  if (head.format() == 1) return reader_->read(to, bytes);
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    if (left_ == 0) TT_RETURN_IF_ERROR(next_piece(lost));
    if (!lost.ok()) return {};
    const std::size_t part = std::min<std::uint64_t>(left_, bytes);
    TT_RETURN_IF_ERROR(reader_->read(out, part));
    out += part;
    bytes -= part;
    left_ -= part;
  }
  return {};
}

Status SessionStore::Reading::next_piece(Status& lost) {
  TT_RETURN_IF_ERROR(reader_->read(&left_, sizeof left_));
  if (left_ == 0) return Status(Code::kDataLoss, "a size in the file is wrong");
  if (left_ != kGone) return {};
  TT_RETURN_IF_ERROR(reader_->read(&left_, sizeof left_));
  const std::uint64_t size = std::exchange(left_, 0);
  if (size > kMaxReason) return Status(Code::kDataLoss, "a size in the file is wrong");
  std::string why(static_cast<std::size_t>(size), '\0');
  TT_RETURN_IF_ERROR(reader_->read(why.data(), why.size()));
  lost = Status(Code::kDataLoss, std::move(why));
  return {};
}

Status SessionStore::Reading::finish() { return reader_->finish(); }

core::Result<std::unique_ptr<SessionStore::Reading>> SessionStore::read(
    const std::string& file) const {
  auto reader = BlockReader::open(path_of(file));
  if (!reader.ok()) return named_file(file, reader.status());
  auto reading = std::make_unique<Reading>();
  reading->reader_ = std::move(*reader);
  Status status = get_message(*reading->reader_, reading->head);
  if (status.ok()) status = format_known(reading->head);
  if (status.ok()) status = get_message(*reading->reader_, reading->body);
  if (!status.ok()) return named_file(file, status);
  return reading;
}

Status SessionStore::write_losses(const v1::SavedLosses& losses) {
  return write_message_file(path_of(kLosses), losses);
}

v1::SavedLosses SessionStore::take_losses() {
  v1::SavedLosses losses;
  if (!exists(kLosses)) return losses;
  auto reader = BlockReader::open(path_of(kLosses));
  const Status status = reader.ok() ? get_message(**reader, losses) : reader.status();
  if (!status.ok()) {
    log_warn("state_damaged", {{"file", kLosses}, {"reason", status.message()}});
    losses.Clear();
  }
  remove(kLosses);
  return losses;
}

}  // namespace teletensor::server
