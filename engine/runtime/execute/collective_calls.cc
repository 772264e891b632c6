#include "engine/runtime/execute/collective_calls.h"

#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "engine/core/memory/reserve.h"
#include "engine/runtime/execute/value_storage.h"

namespace teletensor::runtime {

using collective::Call;
using collective::Op;
using collective::Reduction;
using core::Status;
using program::Instruction;
using program::Operand;

namespace {

constexpr std::string_view kSendTo = "send_to", kReceiveFrom = "receive_from",
                           kAwaitSends = "await_sends";

bool is_transfer(const ops::OpDef& op) { return op.name == kSendTo || op.name == kReceiveFrom; }

Reduction reduction_of(std::string_view name) {
  static constexpr std::pair<std::string_view, Reduction> kNames[] = {
      {"product", Reduction::kProduct}, {"min", Reduction::kMin}, {"max", Reduction::kMax},
      {"and", Reduction::kAnd},         {"or", Reduction::kOr},   {"xor", Reduction::kXor}};
  for (const auto& [known, reduction] : kNames) {
    if (known == name) return reduction;
  }
  return Reduction::kSum;
}

// Checks that the call fits the group, which the ops' inference cannot know.
Status check(const Call& call, std::int64_t named, collective::Rank ranks) {
  if (named == static_cast<std::int64_t>(ranks)) return {};
  return core::invalid(core::to_string(call.shape) + " is for " + std::to_string(named) +
                       " ranks, and the group has " + std::to_string(ranks));
}

Status no_rank(std::int64_t rank, collective::Rank ranks) {
  return core::invalid("there is no rank " + std::to_string(rank) + " in a group of " +
                       std::to_string(ranks));
}

// Reads the attributes of a send or a receive.
Status transfer_of(const core::Attributes& attributes, collective::Rank ranks, Call* call) {
  const std::int64_t peer = attributes.integer(1);
  const bool any = call->op == Op::kRecv && peer == -1;
  if (!any && (peer < 0 || peer >= static_cast<std::int64_t>(ranks))) {
    return no_rank(peer, ranks);
  }
  call->peer = any ? collective::kNoRank : static_cast<collective::Rank>(peer);
  call->tag = attributes.integer(2);
  return {};
}

// A broadcast from rank -1 of an elastic group is from its lowest rank that is not lost.
core::Result<Call> call_of(const Instruction& i, const ops::OpDef& op,
                           const Groups::Member& member) {
  const collective::Rank ranks = member.ranks();
  const Operand& x = i.operands[0];
  const core::Attributes& attributes = *i.attributes;
  Call call;
  call.site = attributes.text(attributes.size() - 1);
  call.dtype = x.dtype;
  call.shape = x.geometry->shape;
  const std::int64_t elements = x.geometry->numel();
  const auto averages = [&] { return attributes.boolean(1) ? Reduction::kAvg : Reduction::kSum; };
  if (op.name == "all_reduce" || op.name == "all_combine") {
    call.op = Op::kAllReduce;
    call.reduction = op.name == "all_reduce" ? averages() : reduction_of(attributes.text(1));
    call.count = elements;
  } else if (op.name == "reduce_to" || op.name == "broadcast_from") {
    call.op = op.name == "reduce_to" ? Op::kReduce : Op::kBroadcast;
    call.count = elements;
    const std::int64_t root = attributes.integer(1);
    const bool lowest = call.op == Op::kBroadcast && member.elastic() && root == -1;
    if (lowest) {
      call.root = collective::kNoRank;
      return call;
    }
    if (root < 0 || root >= static_cast<std::int64_t>(ranks)) {
      return no_rank(root, ranks);
    }
    call.root = static_cast<collective::Rank>(root);
  } else if (op.name == "all_gather") {
    call.op = Op::kAllGather;
    TT_RETURN_IF_ERROR(check(call, attributes.integer(1), ranks));
    call.counts.assign(ranks, elements);
  } else if (op.name == "reduce_scatter") {
    call.op = Op::kReduceScatter;
    call.reduction = averages();
    TT_RETURN_IF_ERROR(check(call, call.shape[0], ranks));
    call.counts.assign(ranks, elements / static_cast<std::int64_t>(ranks));
  } else if (is_transfer(op)) {
    call.op = op.name == kSendTo ? Op::kSend : Op::kRecv;
    call.count = elements;
    TT_RETURN_IF_ERROR(transfer_of(attributes, ranks, &call));
  } else {
    call.op = Op::kAllToAll;
    const auto sends = attributes.ints(1), receives = attributes.ints(2);
    TT_RETURN_IF_ERROR(check(call, static_cast<std::int64_t>(sends.size()), ranks));
    std::int64_t row = 1;
    for (int d = 1; d < call.shape.size(); ++d) row *= call.shape[d];
    for (const std::int64_t size : sends) call.sends.push_back(size * row);
    for (const std::int64_t size : receives) call.receives.push_back(size * row);
  }
  return call;
}

void write_sender(const Groups::Outcome& outcome, memory::Storage& storage) {
  const std::int64_t sender = outcome.sender;
  std::memcpy(storage.data(), &sender, sizeof sender);
}

}  // namespace

// ---------------------------------------------------------------- the rank

core::Result<std::shared_ptr<Groups::Member>> CollectiveCalls::member_of(
    const Instruction& instruction) const {
  const auto number = static_cast<std::uint64_t>(instruction.attributes->integer(0));
  if (const auto* const member = groups_.find(number)) return *member;
  return Status(core::Code::kDeadlineExceeded,
                context_.catalog.at(instruction.op).name + ": the session is not in its group " +
                    std::to_string(number) +
                    ": it has left the group, or the daemon has restarted since it joined");
}

const Groups::Member* CollectiveCalls::meets(const Instruction& instruction) const {
  const ops::OpDef& op = context_.catalog.at(instruction.op);
  if (!op.collective || is_transfer(op) || op.name == kAwaitSends) return nullptr;
  const auto member = member_of(instruction);
  return member.ok() ? member->get() : nullptr;
}

void CollectiveCalls::decline(const Instruction& instruction, const Status& why) {
  const ops::OpDef& op = context_.catalog.at(instruction.op);
  if (!op.collective) return;
  if (forming_.member) {
    forming_.member->give_up("has stopped: " + why.message());
    const Open forming = std::exchange(forming_, {});
    (void)forming.member->take(forming.ticket);
  }
  auto member = member_of(instruction);
  if (!member.ok() || op.name == kAwaitSends) return;
  auto call = call_of(instruction, op, **member);
  // A transfer with a rank that does not exist concerns no other rank.
  if (!call.ok() && is_transfer(op)) return;
  (*member)->decline(call.ok() ? std::move(*call) : Call(), why);
}

Status CollectiveCalls::start(Instruction& instruction, const ops::OpDef& op, std::size_t device,
                              StorageRef* result, StorageRef* sender) {
  Open open;
  Status status;
  try {
    const core::UsesReserve forbidden(false);
    status = deposit(instruction, op, device, &open);
  } catch (const std::bad_alloc&) {
    status =
        Status(core::Code::kResourceExhausted, op.name + ": the daemon process is out of memory");
  }
  if (!status.ok()) {
    const bool again =
        context_.memory.has_starved(status) || context_.lock_wait.blocked() || waits_for_ranks();
    if (!again) decline(instruction, status);
    return status;
  }
  // If it has not ended when its operand is deposited, it stays open, and later instructions run.
  if (!open.member->ended(open.ticket)) {
    opened_ = std::move(open);
    return Status(core::Code::kUnavailable, op.name + ": waits for other ranks");
  }
  const Groups::Outcome outcome = open.member->take(open.ticket);
  TT_RETURN_IF_ERROR(outcome.status);
  *result = open.result.ref();
  instruction.results[0].value->received = true;
  if (!open.source) return {};
  write_sender(outcome, *open.source);
  *sender = std::move(open.source);
  return {};
}

Status CollectiveCalls::close(Instruction& instruction, Open open) {
  const Groups::Outcome outcome = open.member->take(open.ticket);
  TT_RETURN_IF_ERROR(outcome.status);
  instruction.results[0].value->contents = open.result.ref();
  instruction.results[0].value->received = true;
  if (open.source) {
    write_sender(outcome, *open.source);
    instruction.results[1].value->contents = std::move(open.source);
  }
  describe_results(instruction);
  return {};
}

bool CollectiveCalls::may_share(const Instruction& instruction) const {
  if (instruction.op != context_.copy || instruction.results.size() != 1) return false;
  const program::ResultSlot& result = instruction.results[0];
  const Operand &old = instruction.operands[0], &source = instruction.operands[1];
  const core::Geometry& region = *result.geometry;
  return result.overwrites == 0 && !result.value->through && !source.value->through &&
         source.dtype == source.value->dtype && source.dtype == result.value->dtype &&
         old.dtype == result.value->dtype && source.value->device == result.value->device &&
         *source.geometry == region && region.contiguous() && region.offset == 0 &&
         region.numel() == result.value->elements && region.numel() == source.value->elements;
}

void CollectiveCalls::share(Instruction& instruction) {
  instruction.results[0].value->contents = instruction.operands[1].value->contents;
  describe_results(instruction);
}

// Waits until all ranks of the group have joined.
Status CollectiveCalls::begin(const std::shared_ptr<Groups::Member>& member, const ops::OpDef& op) {
  if (forming_.member && forming_.member->ended(forming_.ticket)) {
    const Open forming = std::exchange(forming_, {});
    (void)forming.member->take(forming.ticket);
  }
  if (!forming_.member) {
    const auto ticket = member->begin();
    if (!ticket) return {};
    forming_.member = member;
    forming_.ticket = *ticket;
  }
  return Status(core::Code::kUnavailable, op.name + ": waits for the group's ranks");
}

Status CollectiveCalls::deposit(Instruction& instruction, const ops::OpDef& op, std::size_t device,
                                Open* open) {
  if (device != kHostIndex) {
    return core::unimplemented(op.name + ": not supported for tensors on " +
                               core::to_string(context_.devices.at(device).id()));
  }
  auto member = member_of(instruction);
  if (!member.ok()) return member.status();
  TT_RETURN_IF_ERROR(begin(*member, op));
  Groups::Part part;
  const bool waits_only = op.name == kAwaitSends;
  if (!waits_only) {
    auto call = call_of(instruction, op, **member);
    if (!call.ok()) return Status(call.status().code(), op.name + ": " + call.status().message());
    if ((*member)->elastic() && !collective::replicated(call->op)) {
      return core::invalid(op.name +
                           ": an elastic group has only all_reduce, all_gather, broadcast and "
                           "barrier, whose results are equal on all ranks");
    }
    part.call = std::move(*call);
  }
  TT_RETURN_IF_ERROR(
      transfers_.pack(instruction.operands[0], op.name, instruction.seq, &part.operand));
  const program::Value& value = *instruction.results[0].value;
  StorageRef storage, source;
  part.result.bytes = bytes_of(value.elements, value.dtype);
  TT_RETURN_IF_ERROR(
      context_.memory.allocate(device, op.name, part.result.bytes, instruction.seq, &storage));
  part.result.storage = memory::Pinned(std::move(storage));
  if (instruction.results.size() > 1) {
    TT_RETURN_IF_ERROR(
        context_.memory.allocate(device, op.name, sizeof(std::int64_t), instruction.seq, &source));
  }
  open->member = *member;
  open->bytes = part.operand.bytes + part.result.bytes;
  open->operand = part.operand;
  open->result = part.result.storage;
  open->source = std::move(source);
  if (waits_only) {
    std::memcpy(part.result.data(), part.operand.data(), part.result.bytes);
    open->ticket = (*member)->await_sends();
    return {};
  }
  const bool elsewhere = part.call.op == Op::kReduce && part.call.root != (*member)->rank();
  if (elsewhere) std::memset(part.result.data(), 0, part.result.bytes);
  open->ticket = (*member)->deposit(std::move(part));
  return {};
}

}  // namespace teletensor::runtime
