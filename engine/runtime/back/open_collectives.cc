#include "engine/runtime/back/open_collectives.h"

#include <algorithm>
#include <utility>

namespace teletensor::runtime {

using core::Status;
using program::Instruction;
using program::Operand;

void OpenCollectives::add(Instruction instruction, bool of_program) {
  OpenCollective& added = collectives_.emplace_back();
  added.instruction = std::move(instruction);
  keep_geometry(added, added.instruction);
  // The attributes of a program's step belong to the call as well.
  if (executor_.origin() != nullptr) added.origin = *executor_.origin();
  if (of_program) {
    added.attributes = std::make_unique<core::Attributes>(*added.instruction.attributes);
    added.instruction.attributes = added.attributes.get();
  }
  added.open = executor_.collectives().take_opened();
  added.group = executor_.collectives().meets(added.instruction);
  added.kept = std::make_unique<Groups::Kept>(*groups_, added.open.bytes);
  // The group has the contents of the operand.
  const Operand& operand = added.instruction.operands[0];
  added.operand_dtype = operand.dtype;
  added.operand_shape = operand.geometry->shape;
  added.instruction.operands.clear();
  executor_.memory().set_open(true);
  const std::uint64_t seq = added.instruction.seq;
  {
    core::MutexLock lock(mu_);
    members_.emplace(seq, added.open.member);
  }
  observer_.opened(*added.open.member, seq);
}

// The geometry of a program's step belongs to the call, which may end earlier.
void OpenCollectives::keep_geometry(OpenCollective& open, Instruction& instruction) {
  for (program::ResultSlot& result : instruction.results) {
    if (result.geometry != nullptr) {
      result.geometry = &open.geometries.emplace_back(*result.geometry);
    }
  }
}

void OpenCollectives::close_ended() {
  for (auto at = collectives_.begin(); at != collectives_.end();) {
    if (!at->open.member->ended(at->open.ticket)) {
      ++at;
      continue;
    }
    {
      core::MutexLock lock(mu_);
      const auto [first, last] = members_.equal_range(at->instruction.seq);
      members_.erase(std::find_if(
          first, last, [&](const auto& known) { return known.second == at->open.member; }));
    }
    Status status = CollectiveCalls::close(at->instruction, std::move(at->open));
    if (!status.ok() && !at->origin.empty()) status = Executor::located(status, at->origin);
    if (status.ok()) {
      for (Instruction& copy : at->copies) CollectiveCalls::share(copy);
    } else {
      fail(*at, status);
    }
    at = collectives_.erase(at);
  }
  executor_.memory().set_open(!collectives_.empty());
}

// A collective that was ended by an interrupt fails like an instruction that the interrupt
// prevented.
void OpenCollectives::fail(OpenCollective& ended, const Status& status) {
  const std::uint64_t seq = ended.instruction.seq;
  bool root = true;
  const FailureRef failure = executor_.interrupts().reaches(seq)
                                 ? failures_.interrupted(seq, &root)
                                 : executor_.failures().make(seq, status);
  executor_.fail(ended.instruction, failure);
  failures_.record(ended.instruction, failure, root);
  for (Instruction& copy : ended.copies) {
    executor_.fail(copy, failure);
    failures_.record(copy, failure, false);
  }
}

OpenCollective* OpenCollectives::find(const Operand& operand) {
  if (!operand.value || operand.value->contents || operand.value->failure) return nullptr;
  const auto makes = [&](const Instruction& instruction) {
    return std::any_of(instruction.results.begin(), instruction.results.end(),
                       [&](const auto& result) { return result.value == operand.value; });
  };
  for (OpenCollective& each : collectives_) {
    if (makes(each.instruction) || std::any_of(each.copies.begin(), each.copies.end(), makes)) {
      return &each;
    }
  }
  return nullptr;  // made by a step of the same loop
}

OpenCollective* OpenCollectives::find(std::span<const Operand> operands) {
  if (collectives_.size() >= kMaxOpen) return &collectives_.front();
  for (const Operand& operand : operands) {
    if (OpenCollective* const found = find(operand)) return found;
  }
  return nullptr;
}

OpenCollective* OpenCollectives::find(const Entry& entry) {
  if (entry.kind == Entry::Kind::kGroup && !collectives_.empty() &&
      (!entry.group->join || joined_.known(entry.group->number) == nullptr)) {
    return &collectives_.front();
  }
  if (entry.call) return find(std::span(entry.call->inputs()));
  return find(std::span(entry.instruction.operands));
}

// A rank that runs ahead must leave memory to slower ranks. It may always run ahead by one
// collective in each group, so groups that are used in different orders do not block each other.
OpenCollective* OpenCollectives::find_memory_blocker(const Instruction& instruction) {
  const std::uint64_t total = executor_.pool(kHostIndex).device().budget().total();
  if (groups_->kept() < total / kOpenPart) return nullptr;
  const Groups::Member* const group = executor_.collectives().meets(instruction);
  if (group == nullptr) return nullptr;
  const auto found = std::find_if(collectives_.begin(), collectives_.end(),
                                  [&](const auto& each) { return each.group == group; });
  return found == collectives_.end() ? nullptr : &*found;
}

bool OpenCollectives::stop_for(OpenCollective* found) {
  if (found->open.member->ended(found->open.ticket)) {
    close_ended();
    return false;
  }
  blocker_ = found;
  return true;
}

bool OpenCollectives::ready(std::span<const Operand> operands) {
  while (OpenCollective* const found = find(operands)) {
    if (stop_for(found)) return false;
  }
  return true;
}

OpenCollectives::Next OpenCollectives::next(Entry& entry) {
  if (entry.kind == Entry::Kind::kRun) return next(entry.instruction, entry.refused != nullptr);
  while (OpenCollective* const found = find(entry)) {
    if (stop_for(found)) return Next::kStop;
  }
  return Next::kRun;
}

OpenCollectives::Next OpenCollectives::next(Instruction& instruction, bool refused) {
  const auto& operands = instruction.operands;
  refused = refused || executor_.interrupts().has(instruction.seq);
  while (OpenCollective* const found = refused ? nullptr : find_memory_blocker(instruction)) {
    if (stop_for(found)) return Next::kStop;
  }
  while (OpenCollective* const found = find(std::span(operands))) {
    if (found->open.member->ended(found->open.ticket)) {
      close_ended();
      continue;
    }
    if (!refused && operands.size() == 2 &&
        operands[1].value == found->instruction.results[0].value && find(operands[0]) == nullptr &&
        executor_.collectives().may_share(instruction)) {
      keep_geometry(*found, found->copies.emplace_back(std::move(instruction)));
      return Next::kRan;
    }
    blocker_ = found;
    return Next::kStop;
  }
  return Next::kRun;
}

void OpenCollectives::clear() {
  std::multimap<std::uint64_t, SessionGroups::MemberRef> members;
  {
    core::MutexLock lock(mu_);
    members.swap(members_);
  }
  collectives_.clear();
}

bool OpenCollectives::none() const {
  core::MutexLock lock(mu_);
  return members_.empty();
}

std::vector<SessionGroups::MemberRef> OpenCollectives::members_upto(std::uint64_t seq) const {
  std::vector<SessionGroups::MemberRef> members;
  core::MutexLock lock(mu_);
  for (const auto& [at, member] : members_) {
    if (at <= seq) members.push_back(member);
  }
  return members;
}

}  // namespace teletensor::runtime
