#include "server/state/shared_tensor_store.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/memory/block_file.h"
#include "server/base/log.h"
#include "server/session/image_codec.h"

namespace teletensor::server {

using core::Status;
using memory::BlockReader;
using memory::BlockWriter;

namespace {

constexpr char kCommonSuffix[] = ".common";
constexpr char kNames[] = "published";
constexpr std::uint32_t kCommonFormat = 1;
// Maximum number of bytes that are copied at once, while no session can write to the storage.
constexpr std::uint64_t kCommonPiece = std::uint64_t{64} << 20;
// If sessions wrote to the storage between two pieces this often, no session can write to it until
// the last piece is copied.
constexpr int kTriesInPieces = 2;

std::string file_of(std::uint64_t id) {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx%s", static_cast<unsigned long long>(id), kCommonSuffix);
  return text;
}

}  // namespace

// ---------------------------------------------------------------- writing

Status SharedTensorStore::write(program::Image& image, const std::string& user,
                                const SessionStore::Terms& terms, SessionStore::Lost& lost,
                                bool* full) {
  for (program::Image::Storage& storage : image.storages) {
    if (storage.common == 0) continue;
    Writing writing{storage, terms};
    const Status status = write_bytes(writing);
    if (status.ok()) continue;
    *full = writing.full == user;
    const bool another = !writing.full.empty() && !*full;
    if (*full || (!another && !terms.spares(status))) return status;
    storage.gone = status.message();
    lost.add(storage.bytes, status);
  }
  if (const std::uint64_t changes = engine_.publications_changed(); changes != names_written_) {
    if (const Status status = write_names(); status.ok()) {
      names_written_ = changes;
    } else if (!terms.spares(status)) {
      return status;
    }
  }
  return {};
}

Status SharedTensorStore::write_bytes(Writing& writing) {
  const std::string file = file_of(writing.storage.common);
  for (int tries = 0;; ++tries) {
    bool changed = false;
    const Status status = write_file(file, writing, tries == kTriesInPieces, changed);
    if (!changed) return writing.full.empty() ? named_file(file, status) : status;
  }
}

// Writes one state of the storage, unless the file has it already. Sessions can write to the
// storage while the disk is busy, unless `hold` is true. *changed is set if a session did so before
// all pieces were copied.
Status SharedTensorStore::write_file(const std::string& file, Writing& writing, bool hold,
                                     bool& changed) {
  program::Image::Storage& storage = writing.storage;
  std::unique_ptr<BlockWriter> writer;
  std::vector<char> piece;
  std::uint64_t at = 0;
  bool complete = false;
  const auto copy_on = [&](const engine::SharedStorage& facts,
                           const std::function<void()>& let_go) -> Status {
    const bool first = writer == nullptr;
    if (first) storage.writes = facts.writes;
    const auto found = written_.find(facts.id);
    complete = first && found != written_.end() && found->second == facts.writes;
    changed = facts.writes != storage.writes;
    if (complete || changed) return {};
    piece.resize(std::min(facts.bytes, kCommonPiece));
    do {
      TT_RETURN_IF_ERROR(writing.terms.check());
      const std::uint64_t part = std::min<std::uint64_t>(piece.size(), facts.bytes - at);
      if (part > 0) TT_RETURN_IF_ERROR(engine_.read_storage(storage, at, piece.data(), part));
      at += part;
      complete = at == facts.bytes;
      if (!hold || complete) let_go();
      if (writer == nullptr) TT_RETURN_IF_ERROR(begin_file(file, facts, writer));
      if (part > 0) TT_RETURN_IF_ERROR(writer->write(piece.data(), part));
      if (complete) TT_RETURN_IF_ERROR(writer->end_block());
      const Status fits = use_.fits(file, facts.user, writer->stored());
      if (!fits.ok()) writing.full = facts.user;
      TT_RETURN_IF_ERROR(fits);
    } while (hold && !complete);
    if (!complete) return {};
    TT_RETURN_IF_ERROR(writer->commit());
    use_.set(file, facts.user, store_->size_of(file));
    written_[facts.id] = facts.writes;
    return {};
  };
  while (!complete && !changed) {
    const auto since = SessionStore::Terms::Time::clock::now();
    const auto check = [&]() -> Status {
      TT_RETURN_IF_ERROR(writing.terms.check());
      if (writing.terms.may_wait(since)) return {};
      return Status(core::Code::kDeadlineExceeded,
                    "sessions use it, and there is no time left to wait for them");
    };
    TT_RETURN_IF_ERROR(engine_.hold(storage, check, copy_on));
  }
  return {};
}

Status SharedTensorStore::begin_file(const std::string& file, const engine::SharedStorage& facts,
                                     std::unique_ptr<BlockWriter>& writer) {
  auto created = BlockWriter::create(store_->path_of(file));
  if (!created.ok()) return created.status();
  writer = std::move(*created);
  v1::SavedCommon head;
  head.set_format(kCommonFormat);
  head.set_id(facts.id);
  head.set_device(number_of(facts.device));
  head.set_bytes(facts.bytes);
  head.set_writes(facts.writes);
  head.set_owner(facts.owner);
  head.set_user(facts.user);
  TT_RETURN_IF_ERROR(put_message(*writer, head));
  return writer->end_block();
}

Status SharedTensorStore::write_names() {
  v1::SavedNames names;
  for (const engine::Publication& each : engine_.publications()) {
    v1::SavedName& name = *names.add_names();
    name.set_id(each.id);
    name.set_name(each.name);
    name.set_user(each.user);
    name.set_users(each.users);
    name.set_owner(each.owner);
    name.set_dtype(static_cast<v1::DType>(each.dtype));
    name.set_device(number_of(each.device));
    for (const std::int64_t size : each.shape) name.add_shape(size);
    name.set_writable(each.writable);
    name.set_bytes(each.bytes);
    name.set_common(each.common);
  }
  return write_message_file(store_->path_of(kNames), names);
}

void SharedTensorStore::held_by(const std::string& file, std::vector<std::uint64_t> shared_ids) {
  if (shared_ids.empty()) {
    holders_.erase(file);
  } else {
    holders_[file] = std::move(shared_ids);
  }
}

void SharedTensorStore::sweep() {
  std::set<std::uint64_t> held;
  for (const auto& [file, shared_ids] : holders_) held.insert(shared_ids.begin(), shared_ids.end());
  std::erase_if(written_, [&](const auto& each) {
    if (held.contains(each.first)) return false;
    store_->remove(file_of(each.first));
    use_.forget(file_of(each.first));
    return true;
  });
}

// ---------------------------------------------------------------- restoring

void SharedTensorStore::restore(const Limits& limits) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(store_->path_of(""), error)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(kCommonSuffix)) continue;
    std::uint64_t id = 0;
    (void)std::from_chars(file.data(), file.data() + file.size(), id, 16);
    if (id == 0 || file != file_of(id)) continue;
    written_[id] = 0;
  }
  sweep();
  for (const auto& [id, writes] : written_) {
    const Status status = named_file(file_of(id), restore_one(id, limits));
    if (!status.ok()) {
      log_error("published_not_restored", {{"reason", status.message()}});
    }
  }
  restore_names();
}

Status SharedTensorStore::restore_one(std::uint64_t id, const Limits& limits) {
  auto reader = BlockReader::open(store_->path_of(file_of(id)));
  v1::SavedCommon head;
  Status status = reader.ok() ? get_message(**reader, head) : reader.status();
  if (status.ok() && (head.format() != kCommonFormat || head.id() != id)) {
    status = Status(core::Code::kDataLoss,
                    "the file has another tensor than its name says, or is of another version");
  }
  if (status.ok()) use_.set(file_of(id), head.user(), store_->size_of(file_of(id)));
  const engine::SharedStorage facts{
      id, device_from(head.device()), head.bytes(), head.writes(), head.owner(), head.user()};
  std::uint64_t left = head.bytes();
  const auto read = [&](void* to, std::size_t bytes, Status&) -> Status {
    TT_RETURN_IF_ERROR(status);
    TT_RETURN_IF_ERROR((*reader)->read(to, bytes));
    return (left -= bytes) == 0 ? (*reader)->finish() : Status();
  };
  if (status.ok() && left == 0) status = (*reader)->finish();
  if (!status.ok()) return status;
  status = engine_.restore_common(facts, limits_of(limits, head.user()).memory, read);
  if (status.ok()) written_[id] = head.writes();
  return status;
}

void SharedTensorStore::restore_names() {
  if (!store_->exists(kNames)) return;
  auto reader = BlockReader::open(store_->path_of(kNames));
  v1::SavedNames names;
  Status status = reader.ok() ? get_message(**reader, names) : reader.status();
  if (status.ok()) status = (*reader)->finish();
  if (!status.ok()) {
    log_error("names_not_restored", {{"reason", named_file(kNames, status).message()}});
    return;
  }
  for (const v1::SavedName& name : names.names()) {
    const auto dtype = core::dtype_from_number(static_cast<std::uint64_t>(name.dtype()));
    if (!dtype || name.shape_size() > core::kMaxRank) continue;
    engine::Publication publication;
    publication.id = name.id();
    publication.name = name.name();
    publication.user = name.user();
    publication.users = name.users();
    publication.owner = name.owner();
    publication.dtype = *dtype;
    publication.device = device_from(name.device());
    for (const std::int64_t size : name.shape()) publication.shape.push_back(size);
    publication.writable = name.writable();
    publication.bytes = name.bytes();
    publication.common = name.common();
    engine_.restore_publication(std::move(publication));
  }
}

}  // namespace teletensor::server
