// The settings of a daemon that works together with others, checked.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "server/certificates.h"
#include "server/config.h"

namespace teletensor::server {

struct PeerOptions {
  std::string name;                            // of this daemon; "": it has no peers
  std::string listen;                          // "HOST:PORT"
  std::map<std::string, std::string> peers;    // the others' names and addresses
  TlsFiles tls;                                // `client_ca`: the authority of both sides
  std::chrono::milliseconds patience{30'000};  // a peer that cannot be reached is lost after it
};

// InvalidArgument names the setting that is wrong or missing.
core::Result<PeerOptions> peer_options(const Config& config);

}  // namespace teletensor::server
