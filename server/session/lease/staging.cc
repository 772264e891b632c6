#include "server/session/lease/staging.h"

#include <string>
#include <utility>

#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

using core::Clock;
using core::Code;
using core::MutexLock;
using core::Status;

Status Staged::fenced(const void* writer) const {
  if (writer_ == writer) return {};
  return Status(Code::kAborted, "upload: a later call has replaced this one");
}

Status Staged::write(const void* writer, engine::Session& session, std::string_view data) {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(fenced(writer));
  TT_RETURN_IF_ERROR(session.uploads().write(upload, received_, data));
  received_ += data.size();
  return {};
}

Status Staged::finish(const void* writer, engine::Session& session) {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(fenced(writer));
  return session.uploads().finish(upload);
}

StagedRef Staging::find(std::uint64_t key) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

StagedRef Staging::begin(std::uint64_t key, std::uint64_t upload, core::Device device,
                         std::uint64_t bytes, const void* writer) {
  auto staged = std::make_shared<Staged>(upload, device, bytes, writer);
  if (key == 0) return staged;
  give_up(key);
  MutexLock lock(mutex_);
  entries_.insert_or_assign(key, staged);
  return staged;
}

core::Result<StagedRef> Staging::go_on(std::uint64_t key, core::Device device, std::uint64_t bytes,
                                       std::uint64_t offset, const void* writer) {
  StagedRef staged = find(key);
  if (staged == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "upload: the daemon has no data of this upload to resume");
  }
  MutexLock lock(staged->mutex_);
  if (staged->writer_ != nullptr || staged->received_ != offset || staged->bytes != bytes ||
      !(staged->device == device)) {
    return Status(Code::kFailedPrecondition,
                  "upload: cannot be resumed at " + std::to_string(offset) + " of " +
                      std::to_string(bytes) + " bytes: " + std::to_string(staged->received_) +
                      " of " + std::to_string(staged->bytes) + " were received");
  }
  staged->writer_ = writer;
  return staged;
}

std::uint64_t Staging::received(std::uint64_t key) {
  const StagedRef staged = find(key);
  if (staged == nullptr) return 0;
  MutexLock lock(staged->mutex_);
  staged->writer_ = nullptr;
  staged->left_ = Clock::now();
  return staged->received_;
}

void Staging::leave(std::uint64_t key, const StagedRef& staged, const void* writer, bool keep) {
  {
    MutexLock lock(staged->mutex_);
    if (staged->writer_ != writer) return;
    staged->writer_ = nullptr;
    staged->left_ = Clock::now();
  }
  if (keep) return;
  forget(key, staged);
  abort(staged->upload);
}

void Staging::forget(std::uint64_t key, const StagedRef& staged) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second == staged) entries_.erase(found);
}

void Staging::give_up(std::uint64_t key) {
  const StagedRef staged = find(key);
  if (staged == nullptr) return;
  (void)received(key);
  forget(key, staged);
  abort(staged->upload);
}

void Staging::finished(std::uint64_t key, const StagedRef& staged) {
  if (key == 0) return;
  forget(key, staged);
  std::uint64_t earlier = 0;
  {
    MutexLock lock(mutex_);
    for (auto& [known, number] : complete_) {
      if (known == key) earlier = std::exchange(number, staged->upload);
    }
    if (earlier == 0) complete_.emplace_back(key, staged->upload);
    if (complete_.size() > kMaxComplete) complete_.pop_front();
  }
  if (earlier != 0) abort(earlier);
}

wire::StagedAnswer Staging::answer(std::uint64_t key, bool give_up) {
  wire::StagedAnswer answer;
  answer.received = received(key);
  {
    MutexLock lock(mutex_);
    for (const auto& [known, number] : complete_) {
      if (known == key) answer.upload = number;
    }
  }
  if (!give_up) return answer;
  this->give_up(key);
  if (answer.upload != 0) abort(answer.upload);
  return {};
}

void Staging::abort(std::uint64_t upload) {
  const HeldSession::User user(session_);
  if (user.session() != nullptr) user.session()->uploads().abort(upload);
}

void Staging::save(v1::SavedBody& body) const {
  MutexLock lock(mutex_);
  for (const auto& [key, upload] : complete_) {
    v1::SavedUploadKey& item = *body.add_upload_keys();
    item.set_key(key);
    item.set_upload(upload);
  }
}

void Staging::restore(const v1::SavedBody& body) {
  MutexLock lock(mutex_);
  for (const v1::SavedUploadKey& item : body.upload_keys()) {
    complete_.emplace_back(item.key(), item.upload());
  }
}

void Staging::drop(Clock::time_point before) {
  std::vector<StagedRef> dropped;
  {
    MutexLock lock(mutex_);
    for (auto at = entries_.begin(); at != entries_.end();) {
      const StagedRef& staged = at->second;
      MutexLock inner(staged->mutex_);
      const bool orphan = staged->writer_ == nullptr && staged->left_ < before;
      if (orphan) dropped.push_back(staged);
      at = orphan ? entries_.erase(at) : std::next(at);
    }
  }
  for (const StagedRef& staged : dropped) abort(staged->upload);
}

}  // namespace teletensor::server
