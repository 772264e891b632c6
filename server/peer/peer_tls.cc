#include "server/peer/peer_tls.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <string_view>

#include "server/base/os/private_files.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr std::size_t kReadAhead = 64 << 10;  // Bytes that OpenSSL receives at once.

Status cut() { return Status(Code::kUnavailable, "the peer closed the connection"); }

// The reason of the last failed call of OpenSSL in this thread.
Status tls_error() {
  const unsigned long error = ERR_peek_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  if (reason == nullptr) return cut();
  return Status(Code::kUnavailable, std::string("TLS: ") + reason);
}

// X509_check_host() ignores case, and accepts all names below a domain that begins with a dot.
bool has_dns_name(const X509& certificate, const std::string& name) {
  struct FreeNames {
    void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
  };
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const each = sk_GENERAL_NAME_value(names.get(), i);
    if (each->type != GEN_DNS) continue;
    const ASN1_STRING* const text = each->d.dNSName;
    if (std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                         static_cast<std::size_t>(ASN1_STRING_length(text))) == name) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::unique_ptr<PeerTls> PeerTls::create(std::shared_ptr<Certificates> certificates) {
  std::unique_ptr<PeerTls> tls(new PeerTls(std::move(certificates)));
  tls->context_.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = tls->context_.get();
  if (context == nullptr || !use(*context, *tls->certificates_) ||
      SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1) {
    return nullptr;
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  // The rest of a message may be sent later, from another address.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
  return tls;
}

TlsRef PeerTls::begin(int socket) const {
  TlsRef tls(SSL_new(context_.get()));
  // The side that connects verifies the other side before it is asked for its own certificate.
  if (!tls || SSL_set_fd(tls.get(), socket) != 1 || !use(*tls, *certificates_)) return nullptr;
  return tls;
}

TlsRef PeerTls::accepting(int socket) const {
  TlsRef tls = begin(socket);
  if (tls) SSL_set_accept_state(tls.get());
  return tls;
}

TlsRef PeerTls::connecting(int socket, const std::string& peer) const {
  TlsRef tls = begin(socket);
  if (!tls || SSL_set1_host(tls.get(), peer.c_str()) != 1) return nullptr;
  SSL_set_hostflags(tls.get(), X509_CHECK_FLAG_NO_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  SSL_set_connect_state(tls.get());
  return tls;
}

// The result of a call of OpenSSL that has transferred `bytes` bytes if it has succeeded.
Result<std::size_t> PeerChannel::result(int outcome, std::size_t bytes) {
  wants_to_write_ = false;
  if (outcome > 0) return bytes;
  switch (SSL_get_error(tls_.get(), outcome)) {
    case SSL_ERROR_WANT_WRITE:
      wants_to_write_ = true;
      return std::size_t{0};
    case SSL_ERROR_WANT_READ:
      return std::size_t{0};
    default:
      return tls_error();
  }
}

Result<bool> PeerChannel::handshake() {
  MutexLock lock(mutex_);
  if (!tls_) return true;
  ERR_clear_error();
  const Result<std::size_t> done = result(SSL_do_handshake(tls_.get()), 1);
  if (!done.ok()) return done.status();
  return *done > 0;
}

Result<std::size_t> PeerChannel::receive(std::span<char> to) {
  {
    MutexLock lock(mutex_);
    if (tls_) {
      ERR_clear_error();
      std::size_t got = 0;
      const int outcome = SSL_read_ex(tls_.get(), to.data(), to.size(), &got);
      return result(outcome, got);
    }
  }
  ssize_t got = 0;
  do {
    got = recv(socket_.get(), to.data(), to.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  full_ = got == static_cast<ssize_t>(to.size());
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && errno == EAGAIN) return std::size_t{0};
  return got == 0 ? cut() : system_error("the connection was cut");
}

Result<std::size_t> PeerChannel::send(std::span<const char> bytes) {
  {
    MutexLock lock(mutex_);
    if (tls_) {
      ERR_clear_error();
      std::size_t sent = 0;
      const int outcome = SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &sent);
      return result(outcome, sent);
    }
  }
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno == EAGAIN) return std::size_t{0};
  return system_error("the connection was cut");
}

bool PeerChannel::has_more() {
  MutexLock lock(mutex_);
  return tls_ ? SSL_has_pending(tls_.get()) == 1 : full_;
}

bool PeerChannel::wants_to_write() {
  MutexLock lock(mutex_);
  return wants_to_write_;
}

bool PeerChannel::is_certified(const std::string& name) {
  MutexLock lock(mutex_);
  if (!tls_) return true;
  const X509* const certificate = SSL_get0_peer_certificate(tls_.get());
  return certificate != nullptr && SSL_get_verify_result(tls_.get()) == X509_V_OK &&
         has_dns_name(*certificate, name);
}

}  // namespace teletensor::server
