#include "server/access/certificates.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "server/base/log.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using X509Ref = std::unique_ptr<X509, Freed<X509_free>>;
using KeyRef = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using StoreRef = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;

Result<std::string> contents(const std::string& path, bool secret) {
  struct stat info {};
  std::ifstream file(path, std::ios::binary);
  if (!file || stat(path.c_str(), &info) != 0) {
    return Status(Code::kNotFound, "cannot read " + path + ": " + std::strerror(errno));
  }
  // A file that belongs to root may be readable for this process's group, like mounted secrets.
  const bool mounted = info.st_uid == 0 && geteuid() != 0;
  if (secret && (info.st_mode & (mounted ? 037u : 077u)) != 0) {
    return Status(Code::kPermissionDenied, path + " can be opened by others (chmod 600)");
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// All certificates in the text, in their order.
std::vector<X509Ref> chain_of(const std::string& pem) {
  std::vector<X509Ref> chain;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    chain.emplace_back(next);
  }
  ERR_clear_error();
  return chain;
}

KeyRef key_of(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // The daemon cannot ask for a passphrase.
  const auto none = [](char*, int, int, void*) { return 0; };
  KeyRef key(PEM_read_bio_PrivateKey(bio.get(), nullptr, none, nullptr));
  ERR_clear_error();
  return key;
}

Status check(const Certificates::Pem& pem, const TlsFiles& files) {
  const std::vector<X509Ref> chain = chain_of(pem.certificate);
  if (chain.empty()) return core::invalid("tls: no certificate in " + files.certificate);
  const KeyRef key = key_of(pem.key);
  if (!key) return core::invalid("tls: no key without a passphrase in " + files.key);
  const bool fit = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!fit) return core::invalid("tls: " + files.key + " is not the key of " + files.certificate);
  if (!files.client_ca.empty() && chain_of(pem.client_ca).empty()) {
    return core::invalid("tls: no certificate in " + files.client_ca);
  }
  return {};
}

// Server credentials that check the certificates at every handshake. gRPC makes these calls one at
// a time for each port.
class Reloading final : public grpc::ServerCredentials {
 public:
  explicit Reloading(std::shared_ptr<Certificates> certificates)
      : certificates_(std::move(certificates)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                certificates_->asks_clients()
                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                &Reloading::fetch, this))) {}
  ~Reloading() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& here = *static_cast<Reloading*>(self);
    const auto pem = here.certificates_->current();
    if (pem->version == here.given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    here.given_ = pem->version;
    const grpc_ssl_pem_key_cert_pair pair{pem->key.c_str(), pem->certificate.c_str()};
    // gRPC 1.51 requires root certificates even if no client certificate is requested.
    const std::string& roots = pem->client_ca.empty() ? pem->certificate : pem->client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<Certificates> certificates_;
  grpc_server_credentials* const credentials_;
  std::uint64_t given_ = 0;  // Protected by a lock that gRPC holds during the call.
};

// Sets the certificate, key and authority of one handshake.
int set(SSL* ssl, void* certificates) {
  const auto pem = static_cast<Certificates*>(certificates)->current();
  const std::vector<X509Ref> chain = chain_of(pem->certificate);
  const KeyRef key = key_of(pem->key);
  if (chain.empty() || SSL_use_certificate(ssl, chain.front().get()) != 1 ||
      SSL_use_PrivateKey(ssl, key.get()) != 1 || SSL_clear_chain_certs(ssl) != 1) {
    return 0;
  }
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (SSL_add1_chain_cert(ssl, chain[i].get()) != 1) return 0;
  }
  if (pem->client_ca.empty()) return 1;
  const StoreRef store(X509_STORE_new());
  for (const X509Ref& authority : chain_of(pem->client_ca)) {
    if (X509_STORE_add_cert(store.get(), authority.get()) != 1) return 0;
  }
  return static_cast<int>(SSL_set1_verify_cert_store(ssl, store.get()));
}

}  // namespace

Result<std::shared_ptr<Certificates>> Certificates::open(const TlsFiles& files) {
  if (files.key.empty()) return core::invalid("tls: a certificate needs its key (--tls-key)");
  std::shared_ptr<Certificates> made(new Certificates(files));
  MutexLock lock(made->mutex_);
  made->looked_ = made->stamps();
  Result<Pem> pem = made->read();
  if (!pem.ok()) return pem.status();
  pem->version = 1;
  made->pem_ = std::make_shared<const Pem>(std::move(*pem));
  return made;
}

std::shared_ptr<const Certificates::Pem> Certificates::current() {
  MutexLock lock(mutex_);
  // The stamps are taken before the files are read, so that a file which changes meanwhile is read
  // again.
  if (const Stamps now = stamps(); now != looked_) {
    looked_ = now;
    Result<Pem> pem = read();
    if (pem.ok()) {
      pem->version = pem_->version + 1;
      pem_ = std::make_shared<const Pem>(std::move(*pem));
      log_info("certificates_taken", {{"version", pem_->version}});
    } else {
      log_error("certificates_refused", {{"reason", pem.status().message()}});
    }
  }
  return pem_;
}

Certificates::Stamps Certificates::stamps() const {
  Stamps all{};
  const std::string* const paths[] = {&files_.certificate, &files_.key, &files_.client_ca};
  for (std::size_t i = 0; i < all.size(); ++i) {
    struct stat info {};
    if (paths[i]->empty() || stat(paths[i]->c_str(), &info) != 0) continue;
    all[i] = {static_cast<std::int64_t>(info.st_ino),
              info.st_size,
              info.st_mtim.tv_sec,
              info.st_mtim.tv_nsec,
              info.st_ctim.tv_sec,
              info.st_ctim.tv_nsec};
  }
  return all;
}

Result<Certificates::Pem> Certificates::read() const {
  Pem pem;
  const std::pair<const std::string*, std::string*> files[] = {
      {&files_.certificate, &pem.certificate},
      {&files_.key, &pem.key},
      {&files_.client_ca, &pem.client_ca}};
  for (const auto& [path, text] : files) {
    if (path->empty()) continue;
    Result<std::string> read = contents(*path, text == &pem.key);
    if (!read.ok()) return read.status();
    *text = std::move(*read);
  }
  TT_RETURN_IF_ERROR(check(pem, files_));
  return pem;
}

std::shared_ptr<grpc::ServerCredentials> credentials(std::shared_ptr<Certificates> certificates) {
  return std::make_shared<Reloading>(std::move(certificates));
}

bool use(SSL_CTX& context, Certificates& certificates) {
  SSL_CTX_set_options(&context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_cert_cb(&context, &set, &certificates);
  if (certificates.asks_clients()) {
    SSL_CTX_set_verify(&context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION) == 1;
}

bool use(SSL& connection, Certificates& certificates) {
  return set(&connection, &certificates) == 1;
}

std::string name_of_peer(const SSL* ssl) {
  if (ssl == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) return "";
  const X509Ref peer(SSL_get1_peer_certificate(ssl));
  if (!peer) return "";
  const X509_NAME* const subject = X509_get_subject_name(peer.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0) return "";
  const ASN1_STRING* const name = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(name)),
          static_cast<std::size_t>(ASN1_STRING_length(name))};
}

}  // namespace teletensor::server
