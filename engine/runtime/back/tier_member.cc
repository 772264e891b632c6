#include "engine/runtime/back/tier_member.h"

#include <chrono>
#include <utility>

namespace teletensor::runtime {

using program::Operand;

namespace {

constexpr std::chrono::milliseconds kUsedAt{10};  // resolution of Storage::used_at()

}  // namespace

void TierMember::join(const std::string& user) {
  if (tiers_ == nullptr) return;
  executor_.memory().set_patient(true);
  tiers_->join(this, user);
  joined_ = true;
}

bool TierMember::leave() { return std::exchange(joined_, false) && tiers_->leave(this); }

void TierMember::begin_run(Tiers::Clock::time_point now) {
  if (tiers_ == nullptr) return;
  active(now);
  executor_.memory().set_now(static_cast<std::uint32_t>(now.time_since_epoch() / kUsedAt));
}

bool TierMember::yield(bool starved) {
  if (!starved) return tiers_->yielded(this);
  Tiers::Need need = executor_.memory().take_need();
  add_prefetches(need);
  return tiers_->wait(this, std::move(need));
}

// Adds the operands of the next queue entries that were moved away.
void TierMember::add_prefetches(Tiers::Need& need) const {
  std::unordered_set<const void*> known;
  for (const auto& storage : need.operands) known.insert(storage.get());
  const auto add_value = [&](const program::ValueRef& value) {
    if (!value || !value->contents) return;
    auto* const storage = static_cast<memory::Storage*>(value->contents.get());
    if (storage->data() != nullptr || !known.insert(storage).second) return;
    need.prefetch.emplace_back(storage);
  };
  const auto add = [&](const Operand& operand) { add_value(operand.value); };
  std::size_t left = Backlog::kWindowEntries;
  for (Chunk* chunk = backlog_.chunks(); chunk != nullptr && left > 0; chunk = chunk->next) {
    for (std::size_t at = chunk->taken(); at < chunk->filled() && left > 0; ++at, --left) {
      const Entry& entry = chunk->entry(at);
      for (const Operand& operand : entry.instruction.operands) add(operand);
      if (entry.repetition) {
        for (const program::ValueRef& input : entry.repetition->inputs) add_value(input);
        for (const program::ValueRef& input : entry.repetition->results) add_value(input);
      }
      if (!entry.call) continue;
      for (const Operand& operand : entry.call->inputs()) add(operand);
    }
  }
}

void TierMember::thaw() {
  if (state_.thaw(backlog_)) lanes_.ready(task_);
}

void TierMember::go_on(bool room, std::vector<std::uint64_t> granted) {
  if (!room) executor_.memory().set_last_chance();
  executor_.memory().grant(std::move(granted));
  lanes_.ready(task_);
}

void TierMember::hurry() {
  if (tiers_ != nullptr) tiers_->hurry(this);
}

void TierMember::allocate(std::size_t device, std::size_t bytes, std::uint64_t seq,
                          std::function<void(core::Ref<memory::Storage>)> done) {
  core::Ref<memory::Storage> storage = pool(device).allocate_shared(bytes, seq);
  if (storage || !executor_.memory().moves(device)) return done(std::move(storage));
  tiers_->allocate(this, device, bytes, seq, std::move(done));
}

core::Ref<memory::Storage> TierMember::allocate_now(std::size_t device, std::size_t bytes,
                                                    std::uint64_t seq) {
  core::Ref<memory::Storage> storage = pool(device).allocate_shared(bytes, seq);
  if (storage || !executor_.memory().moves(device)) return storage;
  return tiers_->allocate(this, device, bytes, seq);
}

}  // namespace teletensor::runtime
