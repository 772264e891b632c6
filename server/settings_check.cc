#include "server/settings_check.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "server/base/os/listen.h"
#include "server/settings.h"

namespace teletensor::server {

using core::Status;

namespace {

Status check_listen(const std::string& what, const std::string& address, const Config& config) {
  if (address.empty()) return {};
  TT_RETURN_IF_ERROR(check_address(what, address));
  if (is_loopback(address) || !config.tls_cert.empty()) return {};
  return core::invalid(what + ": \"" + address +
                       "\" is not a loopback address; there the daemon needs TLS (--tls-cert, "
                       "--tls-key) and a token (teletensord --create-token); or reach it on "
                       "loopback through an SSH tunnel");
}

Status check_file(const std::string& what, const std::string& path) {
  if (path.empty()) return {};
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return core::invalid(what + ": " + path + " is a directory");
  }
  if (access(path.c_str(), R_OK) == 0) return {};
  return core::invalid(what + ": " + path + ": " + std::strerror(errno));
}

Status check_socket(const std::string& what, const std::string& path) {
  if (path.empty()) return {};
  const Status status = check_socket_path(path);
  return status.ok() ? status : core::invalid(what + ": " + status.message());
}

Status check_tls(const Config& config, const SettingSources& from) {
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    const char* const given = config.tls_cert.empty() ? "tls_key" : "tls_cert";
    return core::invalid(from.of(given) +
                         ": TLS needs a certificate and its key (--tls-cert and --tls-key)");
  }
  if (!config.tls_client_ca.empty() && config.tls_cert.empty()) {
    return core::invalid(from.of("tls_client_ca") + ": needs TLS (--tls-cert and --tls-key)");
  }
  if (config.tls_users && config.tls_client_ca.empty()) {
    return core::invalid(from.of("tls_users") + ": needs client certificates (--tls-client-ca)");
  }
  return {};
}

}  // namespace

std::string SettingSources::of(std::string_view key) const {
  const std::string flag = flag_of(key), variable = variable_of(key);
  for (const std::string& word : words_) {
    if (word == flag || word.starts_with(flag + "=")) return flag;
  }
  if (std::getenv(variable.c_str()) != nullptr) return variable;
  return file_.empty() ? flag : file_ + ": " + std::string(key);
}

Status check_settings(const Config& config, const SettingSources& sources) {
  TT_RETURN_IF_ERROR(check_tls(config, sources));
  TT_RETURN_IF_ERROR(check_listen(sources.of("listen"), config.listen, config));
  TT_RETURN_IF_ERROR(check_listen(sources.of("http"), config.http, config));
  for (const auto& [key, path] :
       {std::pair("tls_cert", &config.tls_cert), std::pair("tls_key", &config.tls_key),
        std::pair("tls_client_ca", &config.tls_client_ca),
        std::pair("peer_cert", &config.peer_cert), std::pair("peer_key", &config.peer_key),
        std::pair("peer_ca", &config.peer_ca)}) {
    TT_RETURN_IF_ERROR(check_file(sources.of(key), *path));
  }
  TT_RETURN_IF_ERROR(check_socket(sources.of("proxy_socket"), config.proxy_socket));
  if (config.socket) TT_RETURN_IF_ERROR(check_socket(sources.of("socket"), *config.socket));
  if (config.listen.empty() && config.proxy_socket.empty() && config.socket == "") {
    return core::invalid("neither an address (--listen) nor a socket (--socket) to listen on");
  }
  return {};
}

}  // namespace teletensor::server
