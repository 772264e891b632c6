// Certificates loads the PEM files for TLS, and loads them again when they change, so that a
// renewed certificate needs no restart. Each new connection checks the files; existing connections
// keep the certificate that they started with. If the new files do not match each other, the last
// valid ones stay in use, and the log reports it once. Thread-safe.
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

// Paths of PEM files. TLS is off if they are empty. With `client_ca`, a client without a
// certificate of this authority is rejected in the TLS handshake.
struct TlsFiles {
  std::string certificate, key, client_ca;
  bool on() const { return !certificate.empty(); }
};

class Certificates {
 public:
  // The contents of the PEM files. `version` changes whenever the files are loaded again.
  struct Pem {
    std::string certificate, key, client_ca;
    std::uint64_t version = 0;
  };

  // Returns an error that describes what is wrong with the files. A private key file that other
  // users can read is refused.
  static core::Result<std::shared_ptr<Certificates>> open(const TlsFiles& files);

  // The PEM contents that are valid now; never null.
  std::shared_ptr<const Pem> current();
  bool asks_clients() const { return !files_.client_ca.empty(); }

 private:
  // File attributes that change when a file is replaced.
  using Stamp = std::array<std::int64_t, 6>;
  using Stamps = std::array<Stamp, 3>;

  explicit Certificates(TlsFiles files) : files_(std::move(files)) {}
  Stamps stamps() const;
  core::Result<Pem> read() const;

  const TlsFiles files_;
  core::Mutex mutex_;
  Stamps looked_ TT_GUARDED_BY(mutex_){};  // Stamps of the files that were loaded or refused last.
  std::shared_ptr<const Pem> pem_ TT_GUARDED_BY(mutex_);
};

// Credentials for a gRPC server. The returned object must outlive the server.
std::shared_ptr<grpc::ServerCredentials> credentials(std::shared_ptr<Certificates> certificates);
// Makes each TLS handshake on an HTTP server's `context` use the current certificate.
// `certificates` must outlive `context`.
bool use(SSL_CTX& context, Certificates& certificates);
// Makes one connection use the current certificates, before its handshake.
bool use(SSL& connection, Certificates& certificates);
// The common name of the verified client certificate. Empty if there is no certificate or if it has
// several common names.
std::string name_of_peer(const SSL* ssl);

}  // namespace teletensor::server
