// Credentials describe how a client reaches a daemon and authenticates: the address, TLS and the
// token. A connection is encrypted unless it stays on this machine and neither an authority nor a
// certificate is given.
#pragma once

#include <string>

#include "clients/cpp/client.h"

namespace teletensor::client {

[[noreturn]] inline void refuse(const std::string& text) { throw Error(Error::kInvalid, text); }

struct Credentials {
  std::string target;  // The daemon's address in gRPC's notation: "host:port" or "unix:/path".
  bool tls = false;
  // Contents of PEM files. Empty for the system's authorities, or for no certificate.
  std::string authorities, certificate, key;
  std::string token;  // The access token. Empty for no token.

  // The same credentials for the address to which the daemon has moved a session. Throws Error
  // (kInvalid) for an invalid address, and if a connection to a remote daemon would become one to
  // this machine, where another program may listen.
  Credentials at(const std::string& address) const;
};

// Credentials for "host:port", "tls://host:port", "unix:/path" or a socket path. The environment
// variables TELETENSOR_TOKEN, TELETENSOR_TOKEN_FILE, TELETENSOR_CA, TELETENSOR_CERT and
// TELETENSOR_KEY supply what `options` leave out. Throws Error (kInvalid); its text never contains
// a token.
Credentials credentials_of(const std::string& address, const Options& options);

}  // namespace teletensor::client
