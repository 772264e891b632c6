#include "engine/session/uploads.h"

#include <algorithm>
#include <string>
#include <utility>

namespace teletensor::session {

using core::Code;
using core::Status;
using program::Image;

namespace {

std::string name_of(std::uint64_t upload) { return "upload " + std::to_string(upload); }

}  // namespace

core::Result<Uploads::Claim> Uploads::claim(core::Device device, std::uint64_t bytes) {
  const int found = devices().find(device);
  if (found < 0) return devices().missing("upload", device);
  core::MutexLock lock(mu_);
  if (!broken_.ok()) return broken_;
  if (uploads_.size() >= kMax) {
    return Status(Code::kResourceExhausted,
                  "upload: " + std::to_string(kMax) + " uploads are unfinished or unbound already");
  }
  if (limit_ != 0 && (bytes > limit_ || bytes_ > limit_ - bytes)) {
    return program::over_limit("upload", &program::Amounts::staged_bytes, bytes_, bytes, limit_,
                               "upload less at a time, with a synchronize() in between");
  }
  bytes_ += bytes;
  return Claim{static_cast<std::size_t>(found), bytes, clients_};
}

core::Result<std::uint64_t> Uploads::begin(core::Device device, std::uint64_t bytes) {
  const core::Result<Claim> claimed = claim(device, bytes);
  if (!claimed.ok()) return claimed.status();
  memory::Pool& pool = back_.executor().pool(claimed->device);
  return begin_claimed(*claimed, pool.allocate_shared(bytes, accepted_upto_ + 1));
}

core::Result<std::uint64_t> Uploads::begin_claimed(const Claim& claim,
                                                   core::Ref<memory::Storage> storage) {
  runtime::Device& device = devices().at(claim.device);
  Status status;
  if (!storage) {
    status = device.backend().health();  // a lost device refuses memory as well
    if (status.ok()) status = back_.executor().pool(claim.device).refusal("upload", claim.bytes);
  } else if (auto* const accelerator = device.accelerator()) {
    // The memory may have been freed just now by the session itself.
    status = accelerator->begin_beside(storage->owner());
  }
  const auto upload = std::make_shared<Upload>();
  upload->bytes = claim.bytes;
  {
    core::MutexLock lock(upload->mu);
    upload->storage = std::move(storage);
  }
  core::MutexLock lock(mu_);
  // clear() has subtracted the bytes of earlier clients.
  if (claim.client != clients_) {
    return Status(Code::kAborted, "upload: the session was taken over");
  }
  if (!status.ok()) {
    bytes_ -= claim.bytes;
    return status;
  }
  uploads_[next_] = upload;
  return next_++;
}

void Uploads::admit(core::Device device, std::uint64_t bytes,
                    std::function<void(core::Result<std::uint64_t>)> done) {
  const core::Result<Claim> claimed = claim(device, bytes);
  if (!claimed.ok()) return done(claimed.status());
  back_.tiers().allocate(claimed->device, bytes, accepted_upto_ + 1,
                         [this, claim = *claimed, done](core::Ref<memory::Storage> storage) {
                           done(begin_claimed(claim, std::move(storage)));
                         });
}

std::shared_ptr<Uploads::Upload> Uploads::find(std::uint64_t id) const {
  core::MutexLock lock(mu_);
  const auto found = uploads_.find(id);
  return found == uploads_.end() ? nullptr : found->second;
}

Status Uploads::write(std::uint64_t id, std::uint64_t offset, std::string_view bytes) {
  const std::shared_ptr<Upload> upload = find(id);
  if (!upload) return Status(Code::kNotFound, name_of(id) + " is unknown");
  core::MutexLock lock(upload->mu);
  if (!upload->storage || upload->finished) {
    return Status(Code::kFailedPrecondition, name_of(id) + " is finished");
  }
  if (offset != upload->received) {
    return Status(Code::kOutOfRange, name_of(id) + ": chunk at " + std::to_string(offset) +
                                         ", expected " + std::to_string(upload->received));
  }
  if (bytes.size() > upload->storage->bytes() - offset) {
    return Status(Code::kOutOfRange, name_of(id) + ": more than the declared " +
                                         std::to_string(upload->storage->bytes()) + " bytes");
  }
  runtime::Device& device =
      devices().at(static_cast<std::size_t>(devices().find(upload->storage->device())));
  const memory::OnBehalf behalf(upload->storage->owner(), true);
  TT_RETURN_IF_ERROR(device.backend().copy_in(static_cast<char*>(upload->storage->data()) + offset,
                                              bytes.data(), bytes.size()));
  upload->received += bytes.size();
  return {};
}

Status Uploads::finish(std::uint64_t id) {
  core::MutexLock lock(mu_);
  const auto found = uploads_.find(id);
  if (found == uploads_.end()) return Status(Code::kNotFound, name_of(id) + " is unknown");
  Upload& upload = *found->second;
  core::MutexLock inner(upload.mu);
  if (!upload.storage) return Status(Code::kFailedPrecondition, name_of(id) + " is bound already");
  if (upload.received != upload.storage->bytes()) {
    return core::invalid(name_of(id) + ": " + std::to_string(upload.received) +
                         " of the declared " + std::to_string(upload.storage->bytes()) +
                         " bytes were received");
  }
  if (frozen_) {
    return Status(Code::kUnavailable, name_of(id) + ": the session is paused for a snapshot");
  }
  upload.finished = true;
  return {};
}

void Uploads::abort(std::uint64_t id) {
  std::shared_ptr<Upload> upload;
  core::MutexLock lock(mu_);
  const auto found = uploads_.find(id);
  if (found == uploads_.end()) return;
  upload = std::move(found->second);
  bytes_ -= upload->bytes;
  uploads_.erase(found);
}

core::Result<engine::Shared> Uploads::share_new(std::uint64_t bytes) {
  return shares_.open(host_, bytes, accepted_upto_ + 1);
}

Status Uploads::write_shared(std::uint64_t upload, std::uint64_t offset, std::uint64_t share,
                             std::uint64_t from, std::uint64_t bytes) {
  const core::Ref<memory::Storage> memory = shares_.opened(share);
  if (!memory) return Status(Code::kNotFound, "upload: there is no such shared memory");
  if (from > memory->bytes() || bytes > memory->bytes() - from) {
    return Status(Code::kOutOfRange, "upload: the range lies outside the shared memory");
  }
  // Another process may write there concurrently: each byte is read only once.
  return write(upload, offset, {static_cast<const char*>(memory->data()) + from, bytes});
}

core::Result<core::Ref<memory::Storage>> Uploads::take(const program::Uploaded& uploaded,
                                                       std::uint64_t bytes) {
  const std::shared_ptr<Upload> upload = find(uploaded.upload);
  const std::string name = name_of(uploaded.upload);
  if (!upload) return Status(Code::kNotFound, name + " is unknown");
  core::Ref<memory::Storage> storage;
  {
    core::MutexLock lock(upload->mu);
    if (!upload->finished) return Status(Code::kFailedPrecondition, name + " is not finished");
    if (!upload->storage) return Status(Code::kFailedPrecondition, name + " is bound already");
    if (upload->received != bytes || !(upload->storage->device() == uploaded.device)) {
      return core::invalid(name + " has " + std::to_string(upload->received) + " bytes on " +
                           core::to_string(upload->storage->device()) + ", not a tensor " +
                           core::to_string(uploaded.shape) + " on " +
                           core::to_string(uploaded.device));
    }
    storage = std::move(upload->storage);
  }
  core::MutexLock lock(mu_);
  if (uploads_.erase(uploaded.upload) != 0) bytes_ -= upload->bytes;
  return storage;
}

std::uint64_t Uploads::bytes() const {
  core::MutexLock lock(mu_);
  return bytes_;
}

void Uploads::refuse(const Status& broken) {
  core::MutexLock lock(mu_);
  broken_ = broken;
}

void Uploads::clear() {
  std::map<std::uint64_t, std::shared_ptr<Upload>> ended;
  core::MutexLock lock(mu_);
  ended.swap(uploads_);
  bytes_ = 0;
  ++clients_;
}

void Uploads::freeze(bool frozen) {
  core::MutexLock lock(mu_);
  frozen_ = frozen;
}

void Uploads::save(Image& image, autograd::ImageIndexer& indexer) const {
  core::MutexLock lock(mu_);
  image.next_upload = next_;
  for (const auto& [number, upload] : uploads_) {
    core::MutexLock inner(upload->mu);
    if (!upload->finished || !upload->storage) continue;
    image.uploads.push_back({number, indexer.storage(upload->storage, upload->storage->device())});
  }
}

Status Uploads::restore(const Image& image) {
  core::MutexLock lock(mu_);
  next_ = std::max<std::uint64_t>(image.next_upload, 1);
  for (const Image::Upload& item : image.uploads) {
    if (item.storage >= image.storages.size()) {
      return core::invalid("the session's snapshot is inconsistent: an upload");
    }
    auto upload = std::make_shared<Upload>();
    core::MutexLock inner(upload->mu);
    upload->storage = core::Ref<memory::Storage>(
        static_cast<memory::Storage*>(image.storages[item.storage].contents.get()));
    upload->received = upload->bytes = upload->storage->bytes();
    upload->finished = true;
    bytes_ += upload->bytes;
    uploads_.emplace(item.number, upload);
  }
  return {};
}

}  // namespace teletensor::session
