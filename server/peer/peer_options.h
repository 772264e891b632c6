// PeerOptions: the checked settings of a daemon that works together with other daemons.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "server/access/certificates.h"

namespace teletensor::server {

struct PeerOptions {
  std::string name;                            // of this daemon; "": it has no peers
  std::string listen;                          // "HOST:PORT"
  std::map<std::string, std::string> peers;    // the others' names and addresses
  TlsFiles tls;                                // `client_ca`: the authority of both sides
  std::chrono::milliseconds patience{30'000};  // a peer that cannot be reached is lost after it
};

}  // namespace teletensor::server
