#include "server/settings_check.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "server/testing.h"

namespace teletensor::server {
namespace {

constexpr const char* kWords[] = {"teletensord"};
const SettingSources kFlags(1, kWords, "");

void refused(const Config& config, const std::string& part) {
  const core::Status status = check_settings(config, kFlags);
  EXPECT_EQ(status.code(), core::Code::kInvalidArgument);
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(SettingsCheck, AddressesAndPaths) {
  const testing::Folder folder;
  Config config;
  config.listen = "127.0.0.1:0";
  EXPECT_TRUE(check_settings(config, kFlags).ok());
  for (const char* bad : {"bogus", "127.0.0.1:99999", "127.0.0.1:abc", ":1"}) {
    config.listen = bad;
    refused(config, "--listen: \"" + std::string(bad) + "\" is not HOST:PORT");
    config.listen.clear();
    config.http = bad;
    refused(config, "--http: \"" + std::string(bad) + "\" is not HOST:PORT");
    config.http.clear();
  }
  config.listen = "0.0.0.0:0";
  refused(config, "--listen: \"0.0.0.0:0\" is not a loopback address");
  config.listen = "127.0.0.1:0";
  config.proxy_socket = folder.path + "/none/x";
  refused(config, "--proxy-socket: ");
  config.proxy_socket.clear();
  config.tls_cert = folder.path + "/none";
  refused(config, "--tls-cert: TLS needs a certificate and its key");
  config.tls_key = config.tls_cert;
  refused(config, "--tls-cert: " + folder.path + "/none: No such file");
  config.tls_cert = config.tls_key = folder.path;
  refused(config, "is a directory");
  config = Config();
  config.tls_client_ca = "x";
  refused(config, "--tls-client-ca: needs TLS");
  config = Config();
  config.tls_users = true;
  refused(config, "--tls-users: needs client certificates");
  config = Config();
  config.socket = "";
  refused(config, "neither an address");
}

TEST(SettingsCheck, TheSourceIsNamed) {
  const char* const words[] = {"teletensord", "--drain=3", "--http", "x"};
  const SettingSources sources(4, words, "/etc/t.toml");
  EXPECT_EQ(sources.of("drain"), "--drain");
  EXPECT_EQ(sources.of("http"), "--http");
  EXPECT_EQ(sources.of("http_name"), "/etc/t.toml: http_name");
  ASSERT_EQ(setenv("TELETENSOR_HTTP_NAME", "x", 1), 0);
  EXPECT_EQ(sources.of("http_name"), "TELETENSOR_HTTP_NAME");
  unsetenv("TELETENSOR_HTTP_NAME");
}

}  // namespace
}  // namespace teletensor::server
