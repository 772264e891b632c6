#include "engine/session/shares.h"

#include <fcntl.h>

#include <utility>

namespace teletensor::session {

using core::Code;
using core::Result;
using core::Status;

Status Shares::full() const {
  core::MutexLock lock(mu_);
  if (shares_.size() < kMax) return {};
  return Status(Code::kResourceExhausted,
                "share: " + std::to_string(kMax) + " memory regions are already shared");
}

Result<engine::Shared> Shares::keep(memory::Pinned storage, int descriptor, bool open,
                                    std::uint64_t offset, std::uint64_t bytes) {
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return Status(Code::kResourceExhausted, "share: no descriptor is left");
  engine::Shared shared{0, copy, offset, bytes, {}, {}};
  {
    core::MutexLock lock(mu_);
    shared.id = ++last_;
    shares_[shared.id] = {std::move(storage), open};
  }
  shared.hold = std::shared_ptr<void>(this, [weak = weak_from_this(), id = shared.id](void*) {
    if (const auto shares = weak.lock()) shares->end(id);
  });
  return shared;
}

Result<engine::Shared> Shares::add(memory::Pool& pool, memory::Pinned storage, std::uint64_t offset,
                                   std::uint64_t bytes) {
  TT_RETURN_IF_ERROR(full());
  const int descriptor = pool.share(*storage);
  if (descriptor < 0) {
    return Status(Code::kUnimplemented, "share: this memory cannot be mapped by other processes");
  }
  storage->stays();  // a program may keep the mapping for hours
  return keep(std::move(storage), descriptor, false, offset, bytes);
}

Result<engine::Shared> Shares::copy(memory::Pool& pool, backends::Accelerator& gpu,
                                    const runtime::RowMajor& contents, std::uint64_t seq) {
  TT_RETURN_IF_ERROR(full());
  const memory::OnBehalf behalf(contents.storage->owner());
  core::Ref<memory::Storage> storage = pool.allocate_open(contents.bytes, seq);
  if (!storage) {
    TT_RETURN_IF_ERROR(gpu.health());
    return pool.refusal("shared memory", contents.bytes);
  }
  TT_RETURN_IF_ERROR(gpu.copy_now(
      storage->data(), static_cast<const char*>(contents.storage->data()) + contents.offset,
      contents.bytes));
  const int descriptor = storage->descriptor();
  Result<engine::Shared> kept =
      keep(memory::Pinned(std::move(storage)), descriptor, false, 0, contents.bytes);
  if (kept.ok()) kept->gpu = gpu.facts().uuid;
  return kept;
}

Result<engine::Shared> Shares::open(memory::Pool& pool, std::uint64_t bytes, std::uint64_t seq) {
  TT_RETURN_IF_ERROR(full());
  core::Ref<memory::Storage> storage = pool.allocate_open(bytes, seq);
  if (!storage) return pool.refusal("shared memory", bytes);
  const int descriptor = storage->descriptor();
  return keep(memory::Pinned(std::move(storage)), descriptor, true, 0, bytes);
}

core::Ref<memory::Storage> Shares::opened(std::uint64_t id) const {
  core::MutexLock lock(mu_);
  const auto found = shares_.find(id);
  return found == shares_.end() || !found->second.open ? nullptr : found->second.storage.ref();
}

void Shares::end(std::uint64_t id) {
  Share ended;
  core::MutexLock lock(mu_);
  const auto found = shares_.find(id);
  if (found == shares_.end()) return;
  ended = std::move(found->second);
  shares_.erase(found);
}

void Shares::end_open() {
  std::map<std::uint64_t, Share> ended;
  core::MutexLock lock(mu_);
  for (auto it = shares_.begin(); it != shares_.end();) {
    const auto next = std::next(it);
    if (it->second.open) ended.insert(shares_.extract(it));
    it = next;
  }
}

void Shares::clear() {
  std::map<std::uint64_t, Share> ended;
  core::MutexLock lock(mu_);
  ended.swap(shares_);
}

}  // namespace teletensor::session
