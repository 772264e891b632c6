#include "server/session/lease/saved_client.h"

#include <algorithm>
#include <map>
#include <string>

#include "proto/wire/frame.h"
#include "server/session/image_codec.h"

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

constexpr std::uint32_t kUnnamedProtocol = 2;

// Files of daemons that spoke one protocol only do not name it.
std::uint32_t protocol_of(const v1::SavedBody& body) {
  return body.protocol() == 0 ? kUnnamedProtocol : body.protocol();
}

}  // namespace

void save_client(const ClientInfo& client, v1::SavedHead& head, v1::SavedBody& body) {
  head.set_id(client.id);
  head.set_name(client.name);
  head.set_named(client.named);
  head.set_user(client.user);
  body.set_instance(client.instance);
  body.set_client_version(client.version);
  body.set_by_socket(client.by_socket);
  body.set_thin(client.thin);
  body.set_protocol(client.protocol);
  body.set_memory_quota(client.memory_asked);
  for (const program::AmountField& each : program::kAmountFields) {
    body.add_limits(client.limits.*each.field);
  }
  body.set_lease_seconds(static_cast<std::uint64_t>(client.lease.count()));
  for (const std::string& name : client.op_names) body.add_op_names(name);
}

core::Result<ClientInfo> saved_client(const v1::SavedHead& head, const v1::SavedBody& body,
                                      const Limits& limits, const ops::Catalog& catalog) {
  ClientInfo client;
  client.protocol = protocol_of(body);
  if (wire::common_protocol(client.protocol, client.protocol) == 0) {
    return Status(Code::kFailedPrecondition, "the session's client speaks protocol " +
                                                 std::to_string(client.protocol) +
                                                 ", which this daemon does not");
  }
  client.name = head.name();
  client.named = head.named();
  client.version = body.client_version();
  client.instance = body.instance();
  client.user = head.user();
  client.by_socket = body.by_socket();
  client.thin = body.thin();
  client.id = head.id();
  client.attach_counter = body.attach();
  const UserLimits user = limits_of(limits, head.user());
  client.memory_asked = body.memory_quota();
  client.memory_quota = user.quota(client.memory_asked);
  // The limits that its client knows, which may differ from those of this daemon.
  client.limits = user.amounts;
  for (int i = 0; i < std::min<int>(body.limits_size(), program::kAmountFields.size()); ++i) {
    client.limits.*program::kAmountFields[static_cast<std::size_t>(i)].field = body.limits(i);
  }
  client.lease = std::chrono::seconds(body.lease_seconds());
  std::map<std::string, program::OpId> known;
  for (std::size_t id = 0; id < catalog.size(); ++id) {
    const auto op = static_cast<program::OpId>(id);
    known.emplace(op_title(catalog.at(op)), op);
  }
  for (const std::string& name : body.op_names()) {
    const auto found = known.find(name);
    client.ops.push_back(found == known.end() ? wire::FrameReader::kNoOp : found->second);
    client.op_names.push_back(name);
  }
  return client;
}

}  // namespace teletensor::server
