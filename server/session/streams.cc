#include "server/session/streams.h"

#include <charconv>

#include "server/access/auth.h"

namespace teletensor::server {

namespace {
// Status texts are sent in headers, for which clients accept 8 KiB.
constexpr std::size_t kMaxText = 2000;
}  // namespace

grpc::Status to_grpc(const core::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message().substr(0, kMaxText)};
}

Answer::~Answer() {
  if (reactor_ == nullptr) return;
  give(core::Status(core::Code::kResourceExhausted, "the daemon is out of memory for a call"));
}

void Answer::give(const core::Status& status) noexcept {
  const core::UsesReserve reserve;
  std::exchange(reactor_, nullptr)->Finish(to_grpc(status));
}

core::Result<LeaseRef> lease_of(grpc::CallbackServerContext& context, const Leases& leases,
                                const core::Result<Caller>& caller) {
  if (!caller.ok()) return caller.status();
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("teletensor-token");
  if (it == metadata.end()) {
    return core::Status(core::Code::kInvalidArgument, "the call has no teletensor-token metadata");
  }
  std::string word;
  auto lease = leases.table().find({it->second.data(), it->second.size()}, &word);
  if (!lease.ok()) context.AddTrailingMetadata(kReasonKey, word);
  if (lease.ok() && (*lease)->client.user != caller->user) {
    return core::Status(core::Code::kNotFound, "no session has this token");
  }
  return lease;
}

core::Result<std::uint64_t> number_of(const grpc::CallbackServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::uint64_t{0};
  if (metadata.count(key) > 1) {
    return core::invalid("the metadata " + std::string(key) + " is there more than once");
  }
  const std::string_view text(found->second.data(), found->second.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return core::invalid("the metadata " + std::string(key) + " is not a number below 2^64");
  }
  return number;
}

}  // namespace teletensor::server
