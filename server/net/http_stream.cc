#include "server/net/http_stream.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "server/net/http_syntax.h"

namespace teletensor::server {

using core::Clock;

namespace {

constexpr std::size_t kPiece = 4 << 10;  // Bytes that are received at once.

const char* text_of(int status) {
  switch (status) {
    case 408:
      return "408 Request Timeout";
    case 413:
      return "413 Payload Too Large";
    case 414:
      return "414 URI Too Long";
    case 421:
      return "421 Misdirected Request";
    case 431:
      return "431 Request Header Fields Too Large";
    case 501:
      return "501 Not Implemented";
    case 505:
      return "505 HTTP Version Not Supported";
    default:
      return "400 Bad Request";
  }
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 127; }

}  // namespace

HttpStream::HttpStream(int socket, SSL* tls, const HttpLimits& limits,
                       std::atomic<Clock::time_point>& waits_since)
    : socket_(socket), tls_(tls), limits_(limits), waits_since_(waits_since) {
  waits_since_ = Clock::time_point::max();
}

void HttpStream::begin(std::chrono::milliseconds time) {
  began_ = Clock::now();
  until_ = began_ + time;
  late_ = false;
}

bool HttpStream::handshake() {
  if (tls_ == nullptr) return true;
  begin(limits_.idle);
  while (true) {
    ERR_clear_error();
    const int result = SSL_accept(tls_);
    if (result == 1) return true;
    if (!wait_after(result, POLLIN)) return false;
  }
}

int HttpStream::receive_head() {
  head_.clear();
  head_read_ = headers_ = body_read_ = 0;
  has_body_ = answering_ = false;
  begin(limits_.idle);
  if (received_.empty() && !receive()) return kEnded;
  begin(limits_.request);
  std::string line;
  if (const int status = receive_line(limits_.line, 414, line); status != 0) return status;
  // An empty line may precede a request: some clients send one behind a body.
  if (line == "\r\n") {
    if (const int status = receive_line(limits_.line, 414, line); status != 0) return status;
  }
  RequestLine parsed;
  if (const int status = parse_request_line(std::string_view(line).substr(0, line.size() - 2),
                                            tls_ != nullptr ? "https" : "http", parsed);
      status != 0) {
    return status;
  }
  head_ = parsed.method + " " + parsed.target + (parsed.old ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n");
  host_ = std::move(parsed.host);
  std::size_t left = limits_.head;
  while (true) {
    if (const int status = receive_line(std::min(left, limits_.line), 431, line); status != 0)
      return status;
    left -= line.size();
    if (line == "\r\n") break;
    if (const int status = add_header(line); status != 0) return status;
  }
  // HTTP/1.0 needs no Host.
  if (!host_.empty() && parsed.old) head_ += "Host: " + std::exchange(host_, "") + "\r\n";
  head_ += line;
  return 0;
}

int HttpStream::receive_line(std::size_t limit, int too_long, std::string& line) {
  std::size_t searched = 0, end = std::string::npos;
  while ((end = received_.find('\n', searched)) == std::string::npos) {
    searched = received_.size();
    if (searched > limit) return too_long;
    if (!receive()) return late_ ? 408 : kEnded;
  }
  if (end + 1 > limit) return too_long;
  line = received_.substr(0, end + 1);
  received_.erase(0, end + 1);
  // Line feeds alone end no line: the library does not accept them.
  if (!line.ends_with("\r\n")) return 400;
  return std::any_of(line.begin(), line.end() - 2, is_control) ? 400 : 0;
}

int HttpStream::add_header(const std::string& line) {
  if (++headers_ > limits_.headers) return 431;
  const std::size_t colon = line.find(':');
  const std::string_view name = std::string_view(line).substr(0, colon);
  if (colon == std::string::npos || !is_header_name(name)) return 400;
  // The library sends every range that a request names, overlapping ones too, so that 6 KB of
  // request cost 400 MB of answer.
  if (equals_ignoring_case(name, "Range")) return 0;
  // Its compression with brotli takes a second for the largest file of the dashboard.
  if (equals_ignoring_case(name, "Accept-Encoding")) {
    if (line.find("gzip") != line.npos) head_ += "Accept-Encoding: gzip\r\n";
    return 0;
  }
  const bool framing = equals_ignoring_case(name, "Content-Length") ||
                       equals_ignoring_case(name, "Transfer-Encoding");
  // The library drops headers without a value, so that a second Host or length would not be seen.
  if ((framing || equals_ignoring_case(name, "Host")) &&
      line.find_first_not_of(" \t\r\n", colon + 1) == line.npos) {
    return 400;
  }
  // The host of an absolute target replaces the first Host. A second one stays, and is refused.
  if (equals_ignoring_case(name, "Host") && !host_.empty()) {
    head_ += "Host: " + std::exchange(host_, "") + "\r\n";
    return 0;
  }
  if (equals_ignoring_case(name, "Transfer-Encoding")) has_body_ = true;
  if (equals_ignoring_case(name, "Content-Length")) {
    has_body_ |= line.find_first_not_of(" \t0\r\n", colon + 1) != line.npos;
  }
  head_ += line;
  return 0;
}

ssize_t HttpStream::read(char* data, std::size_t size) {
  if (over_) return -1;
  if (head_read_ < head_.size()) {
    const std::size_t count = std::min(size, head_.size() - head_read_);
    std::memcpy(data, head_.data() + head_read_, count);
    head_read_ += count;
    return static_cast<ssize_t>(count);
  }
  if (body_read_ == limits_.body) return refuse(413), -1;
  if (received_.empty() && !receive()) {
    if (late_) refuse(408);
    over_ = true;
    return -1;
  }
  const std::size_t count = std::min({size, received_.size(), limits_.body - body_read_});
  std::memcpy(data, received_.data(), count);
  received_.erase(0, count);
  body_read_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpStream::write(const char* data, std::size_t size) {
  if (over_) return -1;
  if (!answering_) begin(limits_.answer);
  answering_ = true;
  over_ = !send(data, size);
  return over_ ? -1 : static_cast<ssize_t>(size);
}

void HttpStream::refuse(int status) {
  if (over_) return;
  refused_ = status;
  begin(limits_.linger);
  const std::string text = std::string("HTTP/1.1 ") + text_of(status) + "\r\nDate: " + http_date() +
                           "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  send(text.data(), text.size());
  over_ = true;
}

void HttpStream::linger() {
  if (tls_ != nullptr) SSL_shutdown(tls_);
  shutdown(socket_, SHUT_WR);
  begin(limits_.linger);
  for (std::size_t rest = 0; rest < limits_.rest; rest += received_.size()) {
    received_.clear();
    if (!receive()) return;
  }
}

bool HttpStream::receive() {
  char piece[kPiece];
  while (true) {
    ERR_clear_error();
    const auto count = tls_ != nullptr ? SSL_read(tls_, piece, sizeof piece)
                                       : static_cast<int>(recv(socket_, piece, sizeof piece, 0));
    if (count > 0) {
      received_.append(piece, static_cast<std::size_t>(count));
      return true;
    }
    if (!wait_after(count, POLLIN)) return false;
  }
}

bool HttpStream::send(const char* data, std::size_t size) {
  for (std::size_t sent = 0; sent < size;) {
    const std::size_t piece = std::min<std::size_t>(size - sent, 1 << 20);
    ERR_clear_error();
    const auto count = tls_ != nullptr
                           ? SSL_write(tls_, data + sent, static_cast<int>(piece))
                           : static_cast<int>(::send(socket_, data + sent, piece, MSG_NOSIGNAL));
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (!wait_after(count, POLLOUT)) {
      return false;
    }
  }
  return true;
}

bool HttpStream::wait_after(int result, short events) {
  if (tls_ == nullptr) {
    if (result == 0 || (errno != EAGAIN && errno != EINTR)) return false;
  } else {
    const int error = SSL_get_error(tls_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
    events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
  late_ = left.count() <= 0;
  if (late_) return false;
  pollfd wanted{socket_, events, 0};
  waits_since_ = began_;
  const int ready = poll(&wanted, 1, static_cast<int>(left.count()));
  waits_since_ = Clock::time_point::max();
  late_ = ready == 0;
  return ready > 0 || (ready < 0 && errno == EINTR);
}

}  // namespace teletensor::server
