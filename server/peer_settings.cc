#include "server/peer_settings.h"

#include "server/base/os/listen.h"
#include "server/peer/peer_codec.h"

namespace teletensor::server {

using core::Result;
using core::Status;

namespace {

Status check_together(const Config& config) {
  if (config.peer_name.empty()) {
    for (const auto& [set, what] :
         {std::pair(!config.peer_listen.empty(), "peer_listen (--peer-listen)"),
          std::pair(!config.peers.empty(), "peers (--peers)"),
          std::pair(!config.peer_cert.empty(), "peer_cert (--peer-cert)"),
          std::pair(!config.peer_key.empty(), "peer_key (--peer-key)"),
          std::pair(!config.peer_ca.empty(), "peer_ca (--peer-ca)"),
          std::pair(!config.move_from.empty(), "move_from (--move-from)"),
          std::pair(!config.advertise.empty(), "advertise (--advertise)")}) {
      if (set) return core::invalid(std::string(what) + ": needs the daemon's name (--peer-name)");
    }
    return {};
  }
  if (!good_peer_name(config.peer_name)) {
    return core::invalid("peer_name (--peer-name): expected at most 64 letters, digits and ._-");
  }
  if (config.peer_listen.empty()) {
    return core::invalid(
        "peer_name (--peer-name): needs the address where peers reach the daemon "
        "(--peer-listen)");
  }
  if (config.peers.empty()) {
    return core::invalid("peer_name (--peer-name): needs the list of peers (--peers)");
  }
  const bool none = config.peer_cert.empty() && config.peer_key.empty() && config.peer_ca.empty();
  if (!none && (config.peer_cert.empty() || config.peer_key.empty() || config.peer_ca.empty())) {
    return core::invalid(
        "TLS between peers needs a certificate, its key and the authority "
        "(--peer-cert, --peer-key and --peer-ca)");
  }
  return {};
}

Status check_loopback(const std::string& what, const std::string& address, bool tls) {
  if (tls || is_loopback(address)) return {};
  return core::invalid(what + ": \"" + address +
                       "\" is not a loopback address; there peers need TLS (--peer-cert, "
                       "--peer-key, --peer-ca)");
}

Status add_peer(const std::string& text, PeerOptions& options) {
  const std::string what = "peers (--peers)";
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (equals == std::string::npos || !good_peer_name(name)) {
    return core::invalid(what + ": \"" + text +
                         "\" is not NAME=HOST:PORT, with a name of at most 64 letters, digits and "
                         "._-");
  }
  const std::string address = text.substr(equals + 1);
  TT_RETURN_IF_ERROR(check_address(what, address));
  if (name > options.name && address.ends_with(":0")) {
    return core::invalid(what + ": the daemon calls \"" + name +
                         "\", whose port is 0; the daemon whose name is smaller calls");
  }
  TT_RETURN_IF_ERROR(check_loopback(what, address, options.tls.on()));
  if (!options.peers.emplace(name, address).second) {
    return core::invalid(what + ": \"" + name + "\" twice");
  }
  return {};
}

}  // namespace

Result<PeerOptions> peer_options(const Config& config) {
  TT_RETURN_IF_ERROR(check_together(config));
  PeerOptions options;
  options.name = config.peer_name;
  if (options.name.empty()) return options;
  options.listen = config.peer_listen;
  options.tls = {config.peer_cert, config.peer_key, config.peer_ca};
  options.patience =
      std::chrono::milliseconds(static_cast<std::int64_t>(config.peer_patience_seconds * 1000));
  TT_RETURN_IF_ERROR(check_address("peer_listen (--peer-listen)", options.listen));
  TT_RETURN_IF_ERROR(
      check_loopback("peer_listen (--peer-listen)", options.listen, options.tls.on()));
  for (const std::string& each : config.peers) TT_RETURN_IF_ERROR(add_peer(each, options));
  options.peers.erase(options.name);
  if (options.peers.empty()) {
    return core::invalid("peers (--peers): names no daemon but \"" + options.name + "\" itself");
  }
  for (const std::string& each : config.move_from) {
    if (!options.peers.contains(each)) {
      return core::invalid("move_from (--move-from): \"" + each + "\" is not in --peers");
    }
  }
  if (!config.advertise.empty()) {
    std::string address = config.advertise;
    if (address.starts_with("tls://")) address = address.substr(6);
    TT_RETURN_IF_ERROR(check_address("advertise (--advertise)", address));
  }
  if (options.peers.size() > kMaxPeers) {
    return core::invalid("peers (--peers): the maximum is " + std::to_string(kMaxPeers));
  }
  return options;
}

}  // namespace teletensor::server
