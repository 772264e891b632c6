// Checks of the settings that need no device, no file of the daemon and no open socket.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/config.h"

namespace teletensor::server {

// Finds out where a setting comes from: the command line, the environment or the file.
class SettingSources {
 public:
  SettingSources(int argc, const char* const* argv, std::string file)
      : words_(argv + 1, argv + argc), file_(std::move(file)) {}

  // "--tls-cert", "TELETENSOR_TLS_CERT" or "/etc/t.toml: tls_cert" for the key "tls_cert".
  std::string of(std::string_view key) const;

 private:
  std::vector<std::string> words_;
  std::string file_;
};

// Returns INVALID_ARGUMENT, with the name of a setting and its source, if an address or a path can
// not be used, or if settings do not fit together. Opens and creates nothing.
core::Status check_settings(const Config& config, const SettingSources& sources);

}  // namespace teletensor::server
