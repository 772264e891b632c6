// Back's cooperation with the spiller, which moves storages (tiers.h).
#include <unordered_set>
#include <utility>

#include "engine/runtime/back/back.h"

namespace teletensor::runtime {

using program::Operand;

void Back::join_tiers(const std::string& user) {
  if (tiers_ == nullptr) return;
  executor_.memory().set_patient(true);
  tiers_->join(this, user);
  joined_ = true;
}

// Stops the session task before an instruction, without side effects. Returns false if the spiller
// does not take the session.
bool Back::yield_to_spiller(bool starved) {
  if (!starved) return tiers_->yielded(this);
  Tiers::Need need = executor_.memory().take_need();
  add_prefetches(need);
  return tiers_->wait(this, std::move(need));
}

// Adds the operands of the next queue entries that were moved away.
void Back::add_prefetches(Tiers::Need& need) const {
  std::unordered_set<const void*> known;
  for (const auto& storage : need.operands) known.insert(storage.get());
  const auto add = [&](const Operand& operand) {
    if (!operand.value || !operand.value->contents) return;
    auto* const storage = static_cast<memory::Storage*>(operand.value->contents.get());
    if (storage->data() != nullptr || !known.insert(storage).second) return;
    need.prefetch.emplace_back(storage);
  };
  std::size_t left = Backlog::kWindowEntries;
  for (Chunk* chunk = backlog_.chunks(); chunk != nullptr && left > 0; chunk = chunk->next) {
    for (std::size_t at = chunk->taken(); at < chunk->filled() && left > 0; ++at, --left) {
      const Entry& entry = chunk->entry(at);
      for (const Operand& operand : entry.instruction.operands) add(operand);
      if (!entry.call) continue;
      for (const Operand& operand : entry.call->inputs()) add(operand);
    }
  }
}

bool Back::freeze() {
  core::MutexLock lock(mu_);
  if (stopping_) return false;
  if (group_wait_.member && !group_wait_.met && !group_wait_.lent) {
    return group_wait_.lent = true;
  }
  if (lock_wait_.lend()) return true;
  if (scheduled_) return false;
  scheduled_ = true;
  return true;
}

void Back::thaw() {
  {
    core::MutexLock lock(mu_);
    const bool lent = std::exchange(group_wait_.lent, false);
    if (lent && !group_wait_.met) return;
    if (lent) group_wait_ = {};
    const LockWait::Lent locks = lock_wait_.take_back();
    if (locks == LockWait::Lent::kWaits) return;
    const bool more = lent || locks == LockWait::Lent::kOver || woken_ || head_ != nullptr ||
                      !backlog_.empty() || waiting_ != Waiting::kNo ||
                      published_ > completed_.load(std::memory_order_relaxed);
    if (stopping_ || !more) {
      scheduled_ = false;
      idle_.notify_all();
      return;
    }
  }
  lanes_.ready(this);
}

bool Back::has_work() const {
  core::MutexLock lock(mu_);
  if (group_wait_.lent) return group_wait_.met || stopping_;
  const LockWait::Lent locks = lock_wait_.lent();
  if (locks != LockWait::Lent::kNo) return locks == LockWait::Lent::kOver || stopping_;
  return woken_ || head_ != nullptr || waiting_ != Waiting::kNo || stopping_;
}

void Back::go_on(bool room, std::vector<std::uint64_t> granted) {
  if (!room) executor_.memory().set_last_chance();
  executor_.memory().grant(std::move(granted));
  lanes_.ready(this);
}

void Back::allocate(std::size_t device, std::size_t bytes, std::uint64_t seq,
                    std::function<void(core::Ref<memory::Storage>)> done) {
  core::Ref<memory::Storage> storage = pool(device).allocate_shared(bytes, seq);
  if (storage || !executor_.memory().moves(device)) return done(std::move(storage));
  tiers_->allocate(this, device, bytes, seq, std::move(done));
}

core::Ref<memory::Storage> Back::allocate_now(std::size_t device, std::size_t bytes,
                                              std::uint64_t seq) {
  core::Ref<memory::Storage> storage = pool(device).allocate_shared(bytes, seq);
  if (storage || !executor_.memory().moves(device)) return storage;
  return tiers_->allocate(this, device, bytes, seq);
}

}  // namespace teletensor::runtime
