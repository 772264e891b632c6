// The validated settings of a daemon that works together with peers.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "server/access/certificates.h"

namespace teletensor::server {

struct PeerOptions {
  std::string name;                          // Name of this daemon. Empty if it has no peers.
  std::string listen;                        // Address "HOST:PORT" for peers.
  std::map<std::string, std::string> peers;  // Names and addresses of the peers.
  TlsFiles tls;  // `client_ca` is the authority for the certificates of both sides.
  // Time after which an unreachable peer is considered lost.
  std::chrono::milliseconds patience{30'000};
};

}  // namespace teletensor::server
