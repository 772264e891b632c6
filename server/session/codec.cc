#include "server/session/codec.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "proto/wire/protocol.h"
#include "server/base/text.h"

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

constexpr int kMaxOps = 8192;
constexpr std::size_t kMaxName = 64;

// Returns true if a name is suitable for logs and tables: printable ASCII without quotes and
// backslashes.
bool good_name(std::string_view name) {
  return name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [](char c) {
           return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\';
         });
}

void fill_limits(const Limits& limits, const program::Amounts& amounts, v1::Limits& out) {
  out.set_credit_upto(limits.credit_instructions);
  out.set_credit_bytes(limits.credit_bytes);
  out.set_max_frame_bytes(static_cast<std::uint32_t>(limits.frame.bytes));
  out.set_max_frame_commands(static_cast<std::uint32_t>(limits.frame.commands));
  out.set_max_frame_items(static_cast<std::uint32_t>(limits.frame.items));
  out.set_inline_bytes(static_cast<std::uint32_t>(limits.frame.inline_bytes));
  out.set_max_chunk_bytes(static_cast<std::uint32_t>(limits.chunk_bytes));
  out.set_programs(amounts.programs);
  out.set_program_steps(amounts.program_steps);
  out.set_program_bytes(amounts.program_bytes);
  out.set_kept(amounts.kept);
  out.set_handles(amounts.handles);
}

std::string described(const v1::ClientDescription& client) {
  std::string out = readable(client.user(), kMaxName);
  const auto add = [&](std::string_view before, std::string_view text) {
    if (text.empty()) return;
    if (!out.empty()) out += before;
    out += readable(text, kMaxName);
  };
  add(" on ", client.host());
  add(", ", client.pid() == 0 ? "" : "pid " + std::to_string(client.pid()));
  add(", ", client.program());
  return out;
}

std::string range_of(std::uint32_t low, std::uint32_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
}

// Returns the highest protocol that client and daemon have in common, or an error with both ranges.
core::Result<std::uint32_t> choose_protocol(const v1::HelloRequest& request,
                                            const ServerFacts& facts) {
  const std::uint32_t low = request.protocol_min(), high = request.protocol_max();
  if (low > high) {
    return core::invalid("Hello: protocol_min is " + std::to_string(low) +
                         ", above protocol_max, which is " + std::to_string(high));
  }
  const std::uint32_t chosen = wire::common_protocol(low, high);
  if (chosen != 0) return chosen;
  const std::string_view cure = low > wire::kProtocol
                                    ? "install a newer daemon, or a client of an earlier version"
                                    : "install a newer client";
  return Status(Code::kFailedPrecondition, "the client speaks protocol " + range_of(low, high) +
                                               ", server " + facts.version + " speaks " +
                                               range_of(wire::kProtocolMin, wire::kProtocol) +
                                               ": " + std::string(cure));
}

template <class Reply>
void fill_devices(engine::Engine& engine, Reply& reply) {
  for (const engine::MemoryUse& use : engine.memory()) {
    v1::Device& device = *reply.add_devices();
    device.set_name(core::to_string(use.device));
    device.set_memory(use.device_total);
  }
  for (const engine::Accelerator& each : engine.accelerators()) {
    for (v1::Device& device : *reply.mutable_devices()) {
      if (device.name() != core::to_string(each.device)) continue;
      device.set_model(each.model);
      device.set_capability(static_cast<std::uint32_t>(each.capability));
      device.set_multiprocessors(static_cast<std::uint32_t>(each.multiprocessors));
      device.set_whole_memory(each.memory);
    }
  }
}

}  // namespace

core::Result<Hello> read_hello(const v1::HelloRequest& request, const ops::Catalog& catalog,
                               const Limits& limits, const ServerFacts& facts) {
  const core::Result<std::uint32_t> protocol = choose_protocol(request, facts);
  if (!protocol.ok()) return protocol.status();
  if (!good_name(request.session_name()) || !good_name(request.client_version())) {
    return core::invalid("session name and client version: at most " + std::to_string(kMaxName) +
                         " printable ASCII characters without quotes");
  }
  if (request.instance_id().size() > kMaxName) return core::invalid("instance id: too long");
  if (request.ops_size() == 0) return core::invalid("Hello has no table of operators");
  if (request.ops_size() > kMaxOps) {
    return core::invalid("Hello has more operators than a client may list");
  }

  Hello hello;
  hello.client.name = request.session_name();
  hello.client.named = !hello.client.name.empty();
  hello.client.instance = request.instance_id();
  hello.client.takes_over = request.take_over() && hello.client.named;
  hello.client.lease = limits.lease;
  if (request.lease_seconds() != 0) {
    hello.client.lease = std::min(limits.lease, std::chrono::seconds(request.lease_seconds()));
  }
  hello.client.version = request.client_version();
  hello.client.thin = request.thin();
  hello.client.protocol = *protocol;
  hello.client.description = described(request.client());
  hello.client.attach_counter = request.attach_counter();
  for (const v1::Op& op : request.ops()) {
    if (!good_name(op.name())) return core::invalid("Hello has an invalid operator name");
    const ops::OpDef* def = catalog.find(op.name());
    const bool known = def && static_cast<std::uint32_t>(def->revision) == op.revision();
    hello.client.ops.push_back(known ? catalog.id(*def) : wire::FrameReader::kNoOp);
    std::string name = op.name() + " (revision " + std::to_string(op.revision()) + ")";
    if (!known) hello.unsupported.push_back(name);
    hello.client.op_names.push_back(std::move(name));
  }
  return hello;
}

namespace {

void fill_start(const engine::TakenOver& start, const Lease& lease, v1::HelloReply& reply) {
  reply.set_taken_over(true);
  reply.set_next_seq(start.next_seq);
  reply.set_next_id(start.next_id);
  reply.set_completed_upto(lease.outbox().completed_upto());
  reply.mutable_limits()->set_credit_upto(lease.outbox().credits().upto);
  v1::Inventory& inventory = *reply.mutable_inventory();
  for (const program::Inventory::Item& item : start.inventory.items) {
    v1::Inventory::Tensor& tensor = *inventory.add_tensors();
    tensor.set_id(item.id);
    tensor.set_base(item.base);
    tensor.set_grad(item.grad);
    tensor.set_dtype(static_cast<v1::DType>(item.layout.dtype));
    tensor.set_device(core::to_string(item.layout.device));
    for (std::int64_t size : item.layout.geometry.shape) tensor.add_shape(size);
    for (std::int64_t stride : item.layout.geometry.strides) tensor.add_strides(stride);
    tensor.set_offset(item.layout.geometry.offset);
    tensor.set_cell(item.cell);
    tensor.set_clock(item.clock);
    tensor.set_elements(item.elements);
    tensor.set_made(item.made);
    tensor.set_requires_grad(item.flag);
    tensor.set_read_only(item.read_only);
  }
  for (const auto& [name, id] : start.inventory.names) {
    v1::Inventory::Name& entry = *inventory.add_names();
    entry.set_name(name);
    entry.set_id(id);
  }
}

}  // namespace

void fill_hello_reply(const Lease& lease, const std::vector<std::string>& unsupported,
                      engine::Engine& engine, const Limits& limits, const ServerFacts& facts,
                      bool shares, v1::HelloReply& reply) {
  reply.set_protocol(lease.client.protocol);
  reply.set_server_version(facts.version);
  reply.set_server_epoch(facts.epoch);
  reply.set_token(lease.token);
  reply.set_session_name(lease.client.name);
  reply.set_lease_seconds(static_cast<std::uint32_t>(lease.client.lease.count()));
  fill_limits(limits, lease.client.limits, *reply.mutable_limits());
  fill_devices(engine, reply);
  for (const std::string& name : unsupported) reply.add_unsupported_ops(name);
  reply.set_memory_quota(lease.client.memory_quota);
  if (lease.start) fill_start(*lease.start, lease, reply);
  reply.set_session_id(lease.client.id);
  if (lease.client.survives()) {
    reply.set_restart_ms(static_cast<std::uint32_t>(facts.restart.count()));
    reply.set_snapshot_ms(static_cast<std::uint32_t>(facts.every.count()));
  }
  reply.set_sites_ms(static_cast<std::uint32_t>(limits.sites.count()));
  if (shares) reply.set_share_ticket(lease.ticket);
  reply.set_thin(lease.client.thin);
}

namespace {

// Returns true if the result may be written to operand 0. That is no list, and the op takes shape
// and device from it: an op with an attribute of either creates a tensor (full, arange, linspace).
bool has_inplace_form(const ops::OpDef& def) {
  using Type = ops::Parameter::Type;
  if (def.infer == nullptr || !def.mutates.empty() || def.results != 1) return false;
  if (def.operand_parameters == 0 || def.parameters[0].type == Type::kTensorList) return false;
  return std::none_of(def.parameters.begin(), def.parameters.end(),
                      [](const ops::Parameter& each) { return each.type == Type::kDevice; });
}

void fill_op(const ops::OpDef& def, bool declaration, v1::Op& op) {
  op.set_name(def.name);
  op.set_revision(static_cast<std::uint32_t>(def.revision));
  if (!declaration) return;
  op.set_signature(std::string(def.signature));
  op.set_results(def.results);
  op.set_differentiable(def.not_differentiable.empty() &&
                        (def.vjp != nullptr || def.view != nullptr));
  op.set_random(def.random);
  op.set_internal(def.internal);
  op.set_inplace(has_inplace_form(def));
  op.set_view(def.view != nullptr);
  for (const int parameter : def.mutates) {
    op.add_updates(def.parameters[static_cast<std::size_t>(parameter)].name);
  }
}

}  // namespace

void fill_describe_reply(engine::Engine& engine, const Limits& limits, const ServerFacts& facts,
                         std::size_t sessions, bool declarations, v1::DescribeReply& reply) {
  reply.set_server_version(facts.version);
  reply.set_protocol_min(wire::kProtocolMin);
  reply.set_protocol_max(wire::kProtocol);
  reply.set_server_epoch(facts.epoch);
  reply.set_uptime_seconds(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - facts.started).count()));
  fill_devices(engine, reply);
  const ops::Catalog& catalog = engine.catalog();
  for (std::size_t id = 0; id < catalog.size(); ++id) {
    fill_op(catalog.at(static_cast<program::OpId>(id)), declarations, *reply.add_ops());
  }
  fill_limits(limits, limits.amounts, *reply.mutable_limits());
  reply.set_sessions(static_cast<std::uint32_t>(sessions));
  reply.set_max_sessions(static_cast<std::uint32_t>(limits.sessions));
}

std::vector<std::string> declarations(const ops::Catalog& catalog) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::vector<std::string> lines(catalog.size());
  for (std::size_t id = 0; id < catalog.size(); ++id) {
    v1::Op op;
    fill_op(catalog.at(static_cast<program::OpId>(id)), true, op);
    (void)google::protobuf::util::MessageToJsonString(op, &lines[id], options);
  }
  return lines;
}

void fill_publication(const engine::Publication& from, v1::Publication& to) {
  to.set_id(from.id);
  to.set_name(from.name);
  to.set_user(from.user);
  to.set_users(from.users);
  to.set_dtype(static_cast<v1::DType>(from.dtype));
  to.set_device(core::to_string(from.device));
  for (const std::int64_t size : from.shape) to.add_shape(size);
  to.set_writable(from.writable);
  to.set_bytes(from.bytes);
}

core::Result<CommandHistory::Sites> read_sites(const v1::SitesReport& report) {
  constexpr std::size_t kMaxSite = 200;
  if (report.sites_size() > static_cast<int>(CommandHistory::kMaxSites)) {
    return core::invalid("sites: at most " + std::to_string(CommandHistory::kMaxSites) +
                         " at once");
  }
  CommandHistory::Sites sites;
  for (const v1::Site& site : report.sites()) {
    sites.emplace_back(site.seq(), readable(site.text(), kMaxSite));
  }
  return sites;
}

void fill_profile_reply(const program::Timeline& timeline, const ops::Catalog& catalog,
                        v1::ProfileReply& reply) {
  reply.set_now(timeline.now);
  reply.set_dropped(timeline.dropped);
  reply.set_more(timeline.more);
  for (const program::Span& span : timeline.spans) {
    v1::ProfileReply::Span& out = *reply.add_spans();
    out.set_begin(span.begin);
    out.set_ns(span.ns);
    out.set_seq(span.seq);
    out.set_steps(span.steps);
    out.set_lane(span.lane);
    if (span.steps > 0) out.set_op(catalog.at(span.op).name);
  }
  for (const program::Arrival& arrival : timeline.arrivals) {
    v1::ProfileReply::Arrival& out = *reply.add_arrivals();
    out.set_at(arrival.at);
    out.set_first_seq(arrival.first_seq);
    out.set_commands(arrival.commands);
  }
}

wire::FetchedValue to_wire(engine::Fetched fetched, const Limits& limits) {
  wire::FetchedValue value;
  value.seq = fetched.seq;
  value.status = std::move(fetched.status);
  value.root = fetched.root;
  if (!value.status.ok()) {
    // A description is refused before its turn.
    if (fetched.description) value.description = wire::FetchedValue::Description{};
    return value;
  }
  if (fetched.bytes.size() > limits.frame.inline_bytes) {
    value.status = core::invalid("fetch: " + std::to_string(fetched.bytes.size()) +
                                 " bytes, at most " + std::to_string(limits.frame.inline_bytes) +
                                 " travel inline; ask with `bulk`");
    value.root = value.seq;
    return value;
  }
  value.dtype = fetched.dtype;
  value.shape = fetched.shape;
  if (fetched.description) {
    value.description = wire::FetchedValue::Description{};
    value.description->device = core::to_string(fetched.description->device);
    value.description->strides = fetched.description->strides;
    value.description->requires_grad = fetched.description->requires_grad;
    return value;
  }
  value.data = std::move(fetched.bytes);
  return value;
}

}  // namespace teletensor::server
