// Certificates: the PEM files of TLS, taken again when they have changed, so that a renewed
// certificate needs no restart. Each new connection looks; those that are there go on with what
// they began with. Files that do not fit together leave the last good ones in force, and the log
// says so once. Thread-safe.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

// PEM files. Empty: no TLS. With `client_ca` a peer without a certificate of it gets no further
// than the handshake.
struct TlsFiles {
  std::string certificate, key, client_ca;
  bool on() const { return !certificate.empty(); }
};

class Certificates {
 public:
  // What the files hold. `version` is another one with each change.
  struct Pem {
    std::string certificate, key, client_ca;
    std::uint64_t version = 0;
  };

  // Says what is wrong with the files; a key that others can read is refused.
  static core::Result<std::shared_ptr<Certificates>> open(const TlsFiles& files);

  // Of this moment, never null.
  std::shared_ptr<const Pem> current();
  bool asks_clients() const { return !files_.client_ca.empty(); }

 private:
  // What tells that a file is another one.
  using Stamp = std::array<std::int64_t, 6>;
  using Stamps = std::array<Stamp, 3>;

  explicit Certificates(TlsFiles files) : files_(std::move(files)) {}
  Stamps stamps() const;
  core::Result<Pem> read() const;

  const TlsFiles files_;
  core::Mutex mutex_;
  Stamps looked_ TT_GUARDED_BY(mutex_){};  // at the files that were taken or refused last
  std::shared_ptr<const Pem> pem_ TT_GUARDED_BY(mutex_);
};

// For gRPC. What it returns outlives the server that uses it.
std::shared_ptr<grpc::ServerCredentials> credentials(std::shared_ptr<Certificates> certificates);
// For HTTP: each handshake on `context`, which `certificates` outlives, uses what is current.
bool use(SSL_CTX& context, Certificates& certificates);
// The common name of the client certificate that was verified; "" without one, or with several.
std::string name_of_peer(const SSL* ssl);

}  // namespace teletensor::server
