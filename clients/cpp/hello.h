// Hello in the bytes of session.proto, for a client without protobuf.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "clients/session/session.h"

namespace teletensor::client {

struct HelloAsked {
  std::string version, instance, name;
  std::uint64_t memory = 0, lease_seconds = 0;
  // Of this process, for people.
  std::string user, host, program;
  std::uint64_t pid = 0;
};
std::string encode_hello(const HelloAsked& asked, const ops::Catalog& catalog);

struct HelloAnswer {
  std::string server_version, token, name;
  std::uint64_t lease_seconds = 0, epoch = 0;
  std::chrono::milliseconds restart{0};  // to wait for a daemon that is gone without a word
  bool snapshots = false;                // the daemon writes the session down from time to time
  SessionLimits limits;
  std::size_t chunk_bytes = 1 << 20;
  std::vector<std::string> devices;
};
core::Status decode_hello(std::string_view bytes, HelloAnswer& answer);

struct AttachAsked {
  std::string instance;
  std::uint64_t attach = 0, epoch = 0, progress_upto = 0, completed_upto = 0, uploads = 0,
                replay_from = 0;
};
std::string encode_attach(const AttachAsked& asked);
struct AttachAnswer {
  std::uint64_t epoch = 0, received_upto = 0;
  // The session is older than the client: what Session::replay() takes.
  bool replay = false;
  std::uint64_t credit_upto = 0, credit_bytes = 0, bytes_received = 0;
  // The address of the daemon that has the session now; then nothing else is set. "": this one.
  std::string moved_to;
};
core::Status decode_attach(std::string_view bytes, AttachAnswer& answer);

// A publication of PublishedReply.
struct PublishedAnswer {
  std::string name;
  program::Published described;
};
std::string encode_published(std::string_view name);
core::Result<std::vector<PublishedAnswer>> decode_published(std::string_view bytes);

}  // namespace teletensor::client
