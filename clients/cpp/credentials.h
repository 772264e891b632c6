// How a client reaches a daemon and says who it is: the address, TLS, the token. A connection is
// encrypted unless it stays on this machine and neither an authority nor a certificate is given.
#pragma once

#include <string>

#include "clients/cpp/client.h"

namespace teletensor::client {

[[noreturn]] inline void refuse(const std::string& text) { throw Error(Error::kInvalid, text); }

struct Credentials {
  std::string target;  // as gRPC names it: "host:port" or "unix:/path"
  bool tls = false;
  std::string authorities, certificate, key;  // PEM texts; "": the system's, none
  std::string token;                          // "": none

  // The same for the address to which this one's daemon has moved a session. Throws Error
  // (kInvalid) for what is no address, and where the connection to a daemon elsewhere would become
  // one to this machine, on which another program may listen.
  Credentials at(const std::string& address) const;
};

// Of "host:port", "tls://host:port", "unix:/path" or a path. What `options` leave out is what the
// variables TELETENSOR_TOKEN, TELETENSOR_TOKEN_FILE, TELETENSOR_CA, TELETENSOR_CERT and
// TELETENSOR_KEY say. Throws Error (kInvalid): no text in it holds a token.
Credentials credentials_of(const std::string& address, const Options& options);

}  // namespace teletensor::client
