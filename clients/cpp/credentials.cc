#include "clients/cpp/credentials.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "proto/wire/target.h"

namespace teletensor::client {

namespace {

constexpr std::size_t kMaxPath = 107, kMaxToken = 1000;
constexpr double kMaxSeconds = 1e9;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file.is_open() || file.bad()) refuse(path + ": " + std::strerror(errno));
  return text;
}

std::string pem(const std::string& given, const char* name) {
  const std::string path = given.empty() ? variable(name) : given;
  return path.empty() ? "" : contents(path);
}

bool is_loopback(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host == "localhost") return true;
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 &&
         std::memcmp(&six, &in6addr_loopback, sizeof six) == 0;
}

std::string token_of(std::string token) {
  if (token.empty()) token = variable("TELETENSOR_TOKEN");
  if (token.empty()) {
    if (const std::string path = variable("TELETENSOR_TOKEN_FILE"); !path.empty()) {
      token = contents(path);
    }
  }
  const auto space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!token.empty() && space(token.back())) token.pop_back();
  token.erase(token.begin(), std::find_if_not(token.begin(), token.end(), space));
  // gRPC logs an invalid header and treats it as a programming error that ends the process.
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (token.size() > kMaxToken || !std::all_of(token.begin(), token.end(), printable)) {
    refuse("a token is printable ASCII on one line, at most 1,000 characters");
  }
  return token;
}

void check_scheme(const std::string& address, const std::string& target) {
  const std::size_t end = target.find("://");
  if (end == std::string::npos) return;
  const std::string scheme = target.substr(0, end);
  if (scheme == "http" || scheme == "https") {
    refuse(
        "address \"" + address.substr(0, 200) +
        "\": a client does not speak HTTP, which is for the dashboard (--http); give the address "
        "of --listen, which teletensord prints as tcp= when it is ready");
  }
  refuse("address \"" + address.substr(0, 200) + "\": an address does not begin with " +
         scheme.substr(0, 20) +
         "://; write host:port (TLS unless the host is this machine) or tls://host:port");
}

void check_port(const std::string& address, const std::string& target) {
  const std::size_t colon = target.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0) {
    const char* const end = target.data() + target.size();
    const auto [stop, error] = std::from_chars(target.data() + colon + 1, end, port);
    if (error != std::errc() || stop != end) port = 0;
  }
  if (port < 1 || port > 65535 || address.find('\0') != std::string::npos) {
    refuse("address \"" + address.substr(0, 200) +
           "\": expected host:port (1 to 65535), tls://host:port, unix:/path or a path");
  }
}

struct Place {
  std::string target;                // The daemon's address in gRPC's notation.
  bool socket = false, tls = false;  // `socket`: a UNIX socket. `tls`: the address requires TLS.
};

Place place_of(const std::string& address) {
  if (address.starts_with('/') || address.starts_with("unix:")) {
    const std::string path = address.starts_with('/') ? address : address.substr(5);
    if (!wire::is_socket_path(path) || path.size() > kMaxPath) {
      refuse("address \"" + address.substr(0, 200) +
             "\": the path of a UNIX socket has 1 to 107 bytes, not " +
             std::to_string(path.size()) + ", and neither a comma nor a NUL byte");
    }
    return {wire::socket_target(path), true, false};
  }
  const bool tls = address.starts_with("tls://");
  const std::string target = tls ? address.substr(6) : address;
  check_scheme(address, target);
  check_port(address, target);
  return {target, false, tls};
}

// Returns true if the connection stays on this machine.
bool is_here(const std::string& target) {
  return target.starts_with("unix:") || is_loopback(target.substr(0, target.rfind(':')));
}

bool is_encrypted(const Place& place, const Credentials& with) {
  return !place.socket && (place.tls || !is_here(place.target) || !with.authorities.empty() ||
                           !with.certificate.empty());
}

}  // namespace

Credentials credentials_of(const std::string& address, const Options& options) {
  if (!(options.timeout > 0 && options.timeout <= kMaxSeconds)) {
    refuse("timeout: expected a number of seconds above 0, at most 1e9");
  }
  Credentials found;
  found.token = token_of(options.token);
  const Place place = place_of(address);
  found.target = place.target;
  if (place.socket) return found;
  found.authorities = pem(options.ca, "TELETENSOR_CA");
  found.certificate = pem(options.certificate, "TELETENSOR_CERT");
  found.key = pem(options.key, "TELETENSOR_KEY");
  found.tls = is_encrypted(place, found);
  return found;
}

Credentials Credentials::at(const std::string& address) const {
  const Place place = place_of(address);
  if (is_here(place.target) && !is_here(target)) {
    refuse(address + " is an address of this machine, and the session was on another one: its " +
           "daemon needs --advertise");
  }
  Credentials next = *this;
  next.target = place.target;
  if (!place.socket && next.authorities.empty()) next.authorities = pem("", "TELETENSOR_CA");
  next.tls = is_encrypted(place, next);
  return next;
}

}  // namespace teletensor::client
