// The validated settings of a daemon that works together with peers.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "server/certificates.h"
#include "server/config.h"

namespace teletensor::server {

struct PeerOptions {
  std::string name;                          // Name of this daemon. Empty if it has no peers.
  std::string listen;                        // Address "HOST:PORT" for peers.
  std::map<std::string, std::string> peers;  // Names and addresses of the peers.
  TlsFiles tls;  // `client_ca` is the authority for the certificates of both sides.
  // Time after which an unreachable peer is considered lost.
  std::chrono::milliseconds patience{30'000};
};

// Validates the settings. An InvalidArgument error names the setting that is wrong or missing.
core::Result<PeerOptions> peer_options(const Config& config);

}  // namespace teletensor::server
