#include "engine/session/restored_storages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/memory/pool.h"

namespace teletensor::session {

using core::Code;
using core::Status;
using StorageResult = core::Result<core::Ref<memory::Storage>>;

Status read_into(memory::Storage& storage, runtime::Device& device,
                 const engine::Engine::ReadBytes& read, Status& gone) {
  std::vector<char> buffer(std::min(storage.bytes(), std::size_t{1} << 20));
  const memory::OnBehalf behalf(storage.owner());
  for (std::size_t at = 0; at < storage.bytes(); at += buffer.size()) {
    const std::size_t part = std::min(buffer.size(), storage.bytes() - at);
    TT_RETURN_IF_ERROR(read(buffer.data(), part, gone));
    if (!gone.ok()) break;
    TT_RETURN_IF_ERROR(
        device.backend().copy_in(static_cast<char*>(storage.data()) + at, buffer.data(), part));
  }
  return {};
}

Status RestoredStorages::restore(const engine::SharedStorage& facts, std::uint64_t user_quota,
                                 const engine::Engine::ReadBytes& read) {
  StorageResult made = restore_contents(facts, user_quota, read);
  const Status status = made.status();
  found_.insert_or_assign(facts.id, std::move(made));
  return status;
}

StorageResult RestoredStorages::restore_contents(const engine::SharedStorage& facts,
                                                 std::uint64_t user_quota,
                                                 const engine::Engine::ReadBytes& read) {
  const int found = devices_.find(facts.device);
  if (found < 0) {
    return Status(Code::kFailedPrecondition, "it was on " + core::to_string(facts.device) +
                                                 ", which this daemon does not have");
  }
  runtime::Device& device = devices_.at(static_cast<std::size_t>(found));
  device.pool().enroll(facts.owner, facts.user, user_quota);
  // The pool is deleted with its last storage.
  const memory::PoolHandle pool(memory::Pool::create(device.pool(), facts.owner, 0));
  pool->exempt(true);
  core::Ref<memory::Storage> made = pool->allocate_shared(facts.bytes, 0);
  if (!made) return pool->refusal("restoring a published tensor", facts.bytes);
  Status gone;
  const Status status = read_into(*made, device, read, gone);
  made->unpin();
  TT_RETURN_IF_ERROR(status);
  TT_RETURN_IF_ERROR(gone);
  publications_.restore(facts.id, facts.writes, facts.user, *made);
  return made;
}

void RestoredStorages::restore(engine::Publication publication) {
  const auto found = found_.find(publication.common);
  if (found == found_.end() || !found->second.ok()) return;
  runtime::Publications::Facts facts;
  facts.id = publication.id;
  facts.name = std::move(publication.name);
  facts.user = std::move(publication.user);
  facts.users = std::move(publication.users);
  facts.owner = publication.owner;
  facts.dtype = publication.dtype;
  facts.device = publication.device;
  facts.shape = publication.shape;
  facts.writable = publication.writable;
  facts.bytes = publication.bytes;
  facts.common = publication.common;
  const auto elements = core::checked_numel(facts.shape.span());
  std::uint64_t bytes = 0;
  if (facts.id == 0 || !elements.ok() ||
      __builtin_mul_overflow(static_cast<std::uint64_t>(*elements), core::size_of(facts.dtype),
                             &bytes) ||
      bytes > (*found->second)->bytes() || !(facts.device == (*found->second)->device())) {
    return;
  }
  publications_.restore(std::move(facts), **found->second);
}

StorageResult RestoredStorages::find(const program::Image::Storage& wanted) const {
  const auto found = found_.find(wanted.common);
  const auto lost = [&](const std::string& why) {
    return Status(Code::kDataLoss, "a published tensor of " + std::to_string(wanted.bytes) +
                                       " bytes was not kept: " + why);
  };
  if (found == found_.end()) {
    return lost(wanted.gone.empty() ? "no saved file contains it" : wanted.gone);
  }
  if (!found->second.ok()) return lost(found->second.status().message());
  const memory::Storage& storage = **found->second;
  if (storage.sharing()->writes() < wanted.writes) {
    return lost(wanted.gone.empty() ? "its file is older than the session's" : wanted.gone);
  }
  if (storage.bytes() != wanted.bytes || !(storage.device() == wanted.device)) {
    return lost("its file has a tensor of another size or device");
  }
  return *found->second;
}

}  // namespace teletensor::session
