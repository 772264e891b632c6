#include "engine/runtime/groups/group_memory.h"

#include <utility>

namespace teletensor::runtime {

using collective::Buffer;
using collective::Job;
using collective::Slice;

void GroupMemory::hold(const Slice& slice, Held& held) const {
  const Buffer& buffer = slice.buffer;
  char*& address = held.addresses[buffer];
  if (address != nullptr) return;
  if (buffer.kind == Buffer::Kind::kStaging) {
    held.staging.push_back(staging_.at(buffer));
    address = static_cast<char*>(held.staging.back()->data());
    return;
  }
  if (buffer.kind == Buffer::Kind::kSent || buffer.kind == Buffer::Kind::kReceived) {
    const std::shared_ptr<Part>& part = transfers_.at(buffer.index).part;
    held.parts.push_back(part);
    address = (buffer.kind == Buffer::Kind::kSent ? part->operand : part->result).data();
    return;
  }
  const std::shared_ptr<Parts>& parts = parts_.at(buffer.number);
  held.parts.push_back(parts);
  const Part& part = parts->at(static_cast<collective::Rank>(buffer.index));
  address = (buffer.kind == Buffer::Kind::kOperand ? part.operand : part.result).data();
}

void GroupMemory::hold(const Job& job, Held& held) const {
  for (const Job::Source& source : job.sources) hold(source.at, held);
  for (const Job::Output& output : job.outputs) {
    for (const Slice& to : output.to) hold(to, held);
  }
}

void GroupMemory::add(collective::Number number, collective::Rank rank, Part part) {
  std::shared_ptr<Parts>& parts = parts_[number];
  if (!parts) parts = std::make_shared<Parts>();
  parts->insert_or_assign(rank, std::move(part));
}

void GroupMemory::finished(collective::Number number) {
  parts_.erase(parts_.begin(), parts_.upper_bound(number));
}

std::uint64_t GroupMemory::add_transfer(collective::Rank rank, std::shared_ptr<Part> part) {
  transfers_[++tokens_] = {rank, std::move(part)};
  return tokens_;
}

std::optional<collective::Rank> GroupMemory::end_transfer(std::uint64_t token) {
  const auto found = transfers_.find(token);
  if (found == transfers_.end()) return std::nullopt;
  const collective::Rank rank = found->second.rank;
  transfers_.erase(found);
  return rank;
}

void GroupMemory::reserve(const Buffer& buffer, std::size_t bytes) {
  auto storage = adder_.allocate(bytes);
  lacks_ |= !storage;
  if (storage) staging_.insert_or_assign(buffer, std::move(storage));
}

void GroupMemory::clear() {
  parts_.clear();
  transfers_.clear();
  staging_.clear();
}

}  // namespace teletensor::runtime
