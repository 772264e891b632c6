// Encodes and decodes Hello, Attach and Published in the format of session.proto, for a client
// without protobuf.
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
  // Description of this process, for people.
  std::string user, host, program;
  std::uint64_t pid = 0;
};
std::string encode_hello(const HelloAsked& asked, const ops::Catalog& catalog);

struct HelloAnswer {
  std::string server_version, token, name;
  // Number of the session, and its secret for requests on this machine, or an empty string.
  std::uint64_t session = 0;
  std::string ticket;
  std::uint64_t lease_seconds = 0, epoch = 0;
  std::chrono::milliseconds restart{0};  // Maximum time to wait for a daemon that has disappeared.
  bool snapshots = false;  // Whether the daemon writes snapshots of the session periodically.
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
  // Whether the session is in an earlier state than the client; the next three values are for
  // CommandStream::replay().
  bool replay = false;
  std::uint64_t credit_upto = 0, credit_bytes = 0, bytes_received = 0;
  // Address of the daemon that has the session now; if it is set, nothing else is. Empty if it is
  // this daemon.
  std::string moved_to;
};
core::Status decode_attach(std::string_view bytes, AttachAnswer& answer);

// One publication of a PublishedReply.
struct PublishedAnswer {
  std::string name;
  program::Published described;
};
std::string encode_published(std::string_view name);
core::Result<std::vector<PublishedAnswer>> decode_published(std::string_view bytes);

}  // namespace teletensor::client
