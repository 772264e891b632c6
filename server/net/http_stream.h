// HttpStream is one connection of the HTTP server. It bounds what its peer may send and how long
// that may take, because the library reads a request without a limit on its lines, its headers, the
// chunks of its body or its time.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <string>

#include "engine/core/clock.h"

namespace teletensor::server {

// The bounds on every request. A request that exceeds them is refused with 414, 431, 413 or 408.
struct HttpLimits {
  std::size_t line = 8 << 10;   // Bytes of the request line, and of each header.
  std::size_t head = 16 << 10;  // Bytes of all headers together.
  std::size_t headers = 100;    // Number of headers.
  std::size_t body = 64 << 10;  // Bytes of the body as they are sent, with the frames of chunks.
  // Time until the first byte of a request, and for a TLS handshake.
  std::chrono::milliseconds idle{5'000};
  std::chrono::milliseconds request{10'000};  // Time of a whole request from its first byte on.
  std::chrono::milliseconds answer{10'000};   // Time until the peer has taken the whole answer.
  // Time and bytes for which the rest of a refused request is read, so that the peer sees why.
  std::chrono::milliseconds linger{1'000};
  std::size_t rest = 128 << 10;
};

class HttpStream final : public httplib::Stream {
 public:
  static constexpr int kEnded = -1;

  // Precondition: `socket` does not block, and the other arguments outlive the stream. `tls` is
  // null without TLS. While the stream waits for its peer, `waits_since` is the begin of the
  // present phase (idle, request or answer); otherwise it is time_point::max().
  HttpStream(int socket, SSL* tls, const HttpLimits& limits,
             std::atomic<core::Clock::time_point>& waits_since);

  // Returns false if the TLS handshake fails.
  bool handshake();
  // Receives the first line and the headers of the next request, and rewrites them for the library:
  // the line with a path as its target, the host of an absolute target as Host, and without the
  // headers that cost more than they are worth. Returns 0, the HTTP status with which to refuse the
  // request, or kEnded if there is no request.
  int receive_head();
  // Whether the request says that a body follows.
  bool has_body() const { return has_body_; }
  // Whether the connection ended or its peer exceeded a bound.
  bool over() const { return over_; }
  // Answers with the status; nothing can be read or written afterwards.
  void refuse(int status);
  // The status with which a request was refused. 0 if none was.
  int refused() const { return refused_; }
  // Reads what the peer still sends, within bounds. Otherwise the system would reset the
  // connection, and the peer could lose the answer.
  void linger();

  // For the library: the head that was received, then the body.
  ssize_t read(char* data, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  bool is_readable() const override { return !over_; }
  bool is_writable() const override { return !over_; }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  // Moves the next line with its end into `line`. Returns 0, `too_long` for a line over the limit,
  // another status, or kEnded.
  int receive_line(std::size_t limit, int too_long, std::string& line);
  // Adds a header line to the head. Returns 0 or the status with which to refuse it.
  int add_header(const std::string& line);
  // Receives at least one byte. Returns false at the end of the connection or of the time.
  bool receive();
  bool send(const char* data, std::size_t size);
  // Waits after the transport returned `result`, over plain TCP for `events`. Returns false at the
  // end of the connection or of the time.
  bool wait_after(int result, short events);
  void begin(std::chrono::milliseconds time);

  const int socket_;
  SSL* const tls_;
  const HttpLimits& limits_;
  std::atomic<core::Clock::time_point>& waits_since_;
  core::Clock::time_point began_, until_;  // The present phase: idle, request, answer or linger.
  std::string received_;                   // Bytes that were received and not yet read.
  std::string head_;                       // The head of the request, from `head_read_` on unread.
  std::string host_;                       // Host of an absolute target, until it is in the head.
  std::size_t head_read_ = 0, headers_ = 0, body_read_ = 0;
  int refused_ = 0;
  bool has_body_ = false, answering_ = false, over_ = false, late_ = false;
};

}  // namespace teletensor::server
