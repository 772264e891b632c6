// The bytes of a connection between daemons: a TCP socket, with TLS 1.3 and certificates of one
// authority on both sides if the daemons have certificates. Precondition: the process ignores
// SIGPIPE.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "server/access/certificates.h"
#include "server/peer/peer_sockets.h"

namespace teletensor::server {

struct FreeSsl {
  void operator()(SSL* tls) const { SSL_free(tls); }
};
using TlsRef = std::unique_ptr<SSL, FreeSsl>;

// Makes the TLS side of connections. Each connection uses the certificates that are valid when it
// begins. Thread-safe.
class PeerTls {
 public:
  // Null if there is no memory.
  static std::unique_ptr<PeerTls> create(std::shared_ptr<Certificates> certificates);

  // The side that has accepted a connection. Null if there is no memory, as below.
  TlsRef accepting(int socket) const;
  // The side that connects to `peer`. The handshake fails unless the certificate of the other side
  // has this DNS name.
  TlsRef connecting(int socket, const std::string& peer) const;

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  explicit PeerTls(std::shared_ptr<Certificates> certificates)
      : certificates_(std::move(certificates)) {}
  TlsRef begin(int socket) const;

  const std::shared_ptr<Certificates> certificates_;
  std::unique_ptr<SSL_CTX, FreeContext> context_;
};

// One thread at a time may receive, and one may send.
class PeerChannel {
 public:
  // Owns a socket that does not block. `tls` is null without TLS.
  PeerChannel(Socket socket, TlsRef tls) : socket_(std::move(socket)), tls_(std::move(tls)) {}

  int socket() const { return socket_.get(); }
  // Continues the TLS handshake. Returns true if it is complete, and false if it waits for the
  // socket.
  core::Result<bool> handshake();
  // Receives or sends bytes; 0 if the socket is not ready. Unavailable if the connection was cut.
  core::Result<std::size_t> receive(std::span<char> to);
  core::Result<std::size_t> send(std::span<const char> bytes);
  // Ends the connection; the socket then reports an event. Callable from any thread.
  void shut() { shutdown(socket_.get(), SHUT_RDWR); }
  // Returns true if receive() may return more before the socket reports that it is readable.
  bool has_more();
  // Returns true if the channel must write before it can continue the handshake or receive.
  bool wants_to_write();
  // Returns true without TLS, or if the verified certificate of the other side has exactly this DNS
  // name. Precondition: the handshake is complete.
  bool is_certified(const std::string& name);

 private:
  core::Result<std::size_t> result(int outcome, std::size_t bytes) TT_REQUIRES(mutex_);

  const Socket socket_;
  bool full_ = false;  // Whether the last receive() filled its memory. Used by the receiver.
  core::Mutex mutex_;  // Locked during calls of OpenSSL.
  const TlsRef tls_ TT_GUARDED_BY(mutex_);
  bool wants_to_write_ TT_GUARDED_BY(mutex_) = false;
};

}  // namespace teletensor::server
