#include "engine/session/queue_sink.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace teletensor::session {

using core::Code;
using core::Status;

QueueSink::QueueSink(const Parts& parts, std::string user, const std::string& name,
                     std::uint64_t max_published)
    : parts_(parts),
      user_(std::move(user)),
      who_(name.empty() ? "a session without a name" : "session \"" + name + "\""),
      max_published_(max_published) {}

Status QueueSink::constant(std::uint64_t seq, program::Constant constant, program::ValueRef value) {
  if (devices().find(constant.device) < 0) return devices().missing("constant", constant.device);
  parts_.back.queue().constant(seq, constant.shape, std::move(constant.bytes), std::move(value));
  return {};
}

// An upload that is missing or does not match fails only this command: the session's other values
// do not depend on it.
Status QueueSink::uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                           program::ValueRef value) {
  if (devices().find(uploaded.device) < 0) return devices().missing("upload", uploaded.device);
  auto storage = parts_.uploads.take(uploaded, runtime::bytes_of(value->elements, uploaded.dtype));
  if (storage.ok()) {
    (*storage)->described().set(uploaded.dtype, uploaded.shape);
    parts_.back.queue().uploaded(seq, std::move(*storage), std::move(value));
  } else {
    parts_.back.queue().failed(seq, storage.status(), std::move(value));
  }
  return {};
}

void QueueSink::fetch(std::uint64_t seq, bool bulk, program::Operand operand) {
  parts_.back.queue().fetch(seq, bulk, std::move(operand));
}

runtime::FailureRef QueueSink::refused(std::uint64_t seq, const Status& status) {
  return parts_.back.queue().failed(
      seq, status, core::make_ref<program::Value>(core::DType::kF32, core::Device{}, 0));
}

void QueueSink::fetch_refused(std::uint64_t seq, bool bulk, const Status& status,
                              std::uint64_t root) {
  if (bulk) {
    runtime::FetchResult result;
    result.seq = seq;
    result.bulk = true;
    result.status = status;
    result.root = root;
    return parts_.downloads.bind(std::move(result));
  }
  engine::Fetched fetched;
  fetched.seq = seq;
  fetched.status = status;
  fetched.root = root;
  fetched.description = engine::Fetched::Description{};  // not in its turn
  parts_.listener.on_fetched(std::move(fetched));
}

void QueueSink::described(std::uint64_t seq, const core::Layout& layout, bool requires_grad) {
  engine::Fetched fetched;
  fetched.seq = seq;
  fetched.dtype = layout.dtype;
  fetched.shape = layout.geometry.shape;
  fetched.description = engine::Fetched::Description{};
  fetched.description->device = layout.device;
  fetched.description->strides = layout.geometry.strides;
  fetched.description->requires_grad = requires_grad;
  parts_.listener.on_fetched(std::move(fetched));
}

namespace {

constexpr char kNobody[] =
    "publish: needs an authenticated user: connect through the daemon's Unix socket or with a "
    "token";

}  // namespace

void QueueSink::publish(std::uint64_t seq, program::Publish publish, program::Operand operand,
                        program::ValueRef value) {
  runtime::Publications::Facts facts;
  facts.name = std::move(publish.name);
  facts.user = user_;
  facts.users = std::move(publish.users);
  facts.writable = publish.writable;
  facts.most = max_published_;
  if (value) {
    facts.dtype = operand.dtype;
    facts.device = value->device;
    facts.shape = operand.geometry->shape;
  }
  parts_.back.queue().publish_tensor(seq, std::move(facts), std::move(operand), std::move(value));
}

void QueueSink::published(std::uint64_t seq, const program::Published& published,
                          program::ValueRef value) {
  auto storage =
      user_.empty()
          ? core::Result<core::Ref<memory::Storage>>(Status(Code::kPermissionDenied, kNobody))
          : parts_.publications.take(published, user_);
  if (!storage.ok()) {
    (void)parts_.back.queue().failed(seq, storage.status(), std::move(value));
    return;
  }
  parts_.back.queue().uploaded(seq, std::move(*storage), std::move(value));
}

std::vector<runtime::Publications::Facts> QueueSink::find_published(std::string_view name) const {
  if (user_.empty()) return {};
  return parts_.publications.find_all(name, user_);
}

runtime::Groups::Join QueueSink::rank_of(program::Join as) const {
  runtime::Groups::Join join;
  join.user = user_;
  join.name = std::move(as.name);
  join.rank = as.rank;
  join.ranks = as.ranks;
  join.elastic = as.elastic;
  constexpr std::uint64_t kMaxMs = 1000ull * 3600 * 24 * 365;
  join.timeout = std::chrono::milliseconds(std::min(as.timeout_ms, kMaxMs));
  join.who = who_;
  join.attended = [&listener = parts_.listener] { return listener.has_client(); };
  join.on_lost = [&listener = parts_.listener, group = as.group](const auto& lost) {
    listener.on_rank_lost({group, lost.rank, lost.why});
  };
  return join;
}

void QueueSink::join(std::uint64_t seq, program::Join join) {
  const std::uint64_t group = join.group;
  parts_.back.queue().change_group(seq, group, rank_of(std::move(join)));
}

void QueueSink::leave(std::uint64_t seq, std::uint64_t group) {
  parts_.back.queue().change_group(seq, group, std::nullopt);
}

void QueueSink::restore_group(const program::Image::Group& group) {
  parts_.back.groups().restore(
      rank_of({group.number, group.name, group.rank, group.ranks, group.timeout_ms, group.elastic}),
      group);
}

Status QueueSink::call(std::uint64_t seq, program::Invocation invocation) {
  for (const program::Literal& literal : invocation.program->literals) {
    const core::Device device = invocation.program->values[literal.value].device;
    if (devices().find(device) < 0) return devices().missing("call", device);
  }
  runtime::QueueWriter& queue = parts_.back.queue();
  if (!queue.planned().is_new(*invocation.program)) {
    queue.call(seq, std::move(invocation));
    return {};
  }
  if (Status refusal = parts_.bookkeeping.may_plan(*invocation.program); !refusal.ok()) {
    queue.failed_call(seq, std::move(refusal), std::move(invocation));
    return {};
  }
  queue.call(seq, std::move(invocation));
  parts_.bookkeeping.count_plans();
  return {};
}

}  // namespace teletensor::session
