#include "server/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "server/base/os/listen.h"
#include "server/peer_settings.h"
#include "server/testing.h"

namespace teletensor::server {
namespace {

Parsed parse(std::vector<const char*> words) {
  words.insert(words.begin(), "teletensord");
  words.push_back(nullptr);  // as the system ends the arguments of main()
  return parse_command_line(static_cast<int>(words.size()) - 1, words.data(), "9.9");
}

// Sets an environment variable for the duration of a test.
struct Variable {
  Variable(const char* name, const char* value) : name(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name); }
  const char* name;
};

std::string file_with(const testing::Folder& folder, const std::string& text) {
  const std::string path = folder.path + "/config.toml";
  std::ofstream(path) << text;
  return path;
}

TEST(Config, Bytes) {
  EXPECT_EQ(*parse_bytes("1048576"), 1048576u);
  EXPECT_EQ(*parse_bytes("64MiB"), 64u << 20);
  EXPECT_EQ(*parse_bytes("1.5 GB"), 1'500'000'000u);
  EXPECT_EQ(*parse_bytes("2K"), 2048u);
  for (const char* bad : {"", "-1", "MiB", "1 parsec", "nan", "inf", "9e18", "1e30GiB", "0x10"}) {
    EXPECT_FALSE(parse_bytes(bad).ok()) << bad;
  }
}

TEST(Config, DefaultsAndFlags) {
  const Config defaults = parse({}).config;
  EXPECT_EQ(defaults.listen, "");
  EXPECT_FALSE(defaults.allow_anonymous);
  EXPECT_TRUE(parse({"--allow-anonymous"}).config.allow_anonymous);
  EXPECT_FALSE(defaults.socket.has_value());
  const Config config =
      parse({"--listen", "127.0.0.1:0", "--socket=/x", "--host-memory", "2GiB", "--session-memory",
             "64MiB", "--lease", "0", "--lanes", "3", "--sim-devices", "2", "--log-level", "warn"})
          .config;
  EXPECT_EQ(config.listen, "127.0.0.1:0");
  EXPECT_EQ(*config.socket, "/x");
  EXPECT_EQ(config.host_memory, 2ull << 30);
  EXPECT_EQ(config.session_memory, 64ull << 20);
  EXPECT_EQ(config.lanes, 3);
  EXPECT_EQ(config.sim_devices, 2);
  EXPECT_EQ(config.log_level, "warn");
}

TEST(Config, UsersOfTheFile) {
  const testing::Folder folder;
  const std::string path = file_with(folder,
                                     "[users.alice]\nmemory = \"8GiB\"\nguaranteed = \"2GiB\"\n"
                                     "weight = 3\nsessions = 4\n[users.\"bob@lab\"]\n"
                                     "session_memory = 1048576\n");
  const Config config = parse({"--config", path.c_str()}).config;
  ASSERT_EQ(config.users.size(), 2u);
  const UserConfig& alice = config.users.at("alice");
  EXPECT_EQ(alice.memory, 8ull << 30);
  EXPECT_EQ(alice.guaranteed, 2ull << 30);
  EXPECT_EQ(alice.sessions, 4);
  EXPECT_EQ(alice.weight, 3);
  EXPECT_FALSE(alice.session_memory.has_value());
  EXPECT_EQ(config.users.at("bob@lab").session_memory, 1ull << 20);
  for (const char* bad :
       {"users = 3\n", "[users]\nalice = 3\n", "[users.\"a b\"]\n", "[users.a]\nmemroy = 3\n",
        "[users.a]\nweight = 0\n", "[users.a]\nweight = 1001\n", "[users.a]\nsessions = \"x\"\n",
        "[users.a]\nmemory = 1\nguaranteed = 2\n",
        "user_memory = 1\n[users.a]\nguaranteed = 2\n"}) {
    const std::string wrong = file_with(folder, bad);
    const Parsed parsed = parse({"--config", wrong.c_str()});
    EXPECT_EQ(parsed.exit_code, 2) << bad;
    EXPECT_NE(parsed.text.find("users"), std::string::npos) << parsed.text;
  }
}

TEST(Config, EmbeddedHasNoTcpUnlessAsked) {
  EXPECT_EQ(parse({"--embedded"}).config.listen, "");
  EXPECT_EQ(parse({"--embedded", "--listen", "127.0.0.1:0"}).config.listen, "127.0.0.1:0");
}

TEST(Config, FlagsOverEnvironmentOverFile) {
  const testing::Folder folder;
  const std::string path =
      file_with(folder, "lanes = 1\nlisten = \"127.0.0.1:1\"\nhost_memory = \"1GiB\"\n");
  const Variable listen("TELETENSOR_LISTEN", "127.0.0.1:2");
  const Variable lanes("TELETENSOR_LANES", "2");
  const Config config = parse({"--config", path.c_str(), "--lanes", "3"}).config;
  EXPECT_EQ(config.lanes, 3);
  EXPECT_EQ(config.listen, "127.0.0.1:2");
  EXPECT_EQ(config.host_memory, 1ull << 30);
}

TEST(Config, FileByEnvironment) {
  const testing::Folder folder;
  const std::string path = file_with(folder, "lanes = 7\n");
  const Variable file("TELETENSOR_CONFIG", path.c_str());
  EXPECT_EQ(parse({}).config.lanes, 7);
}

TEST(Config, MistakesAreSaidAndEndTheProgram) {
  const testing::Folder folder;
  const auto refused = [](const Parsed& parsed, const std::string& part) {
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_NE(parsed.text.find(part), std::string::npos) << parsed.text;
  };
  refused(parse({"--lanes", "many"}), "--lanes");
  refused(parse({"--unknown"}), "--unknown");
  refused(parse({"--config"}), "--config");  // its value is missing
  refused(parse({"--host-memory", "1 parsec"}), "not a number of bytes");
  refused(parse({"--lease", "-1"}), "--lease");
  refused(parse({"--lease", "1000000000"}), "--lease");
  refused(parse({"--config", "/no/such/file"}), "/no/such/file");
  // A path to a directory is refused and not treated as an empty file.
  refused(parse({"--config", folder.path.c_str()}), "is a directory");
  const auto with = [&](const std::string& text) {
    return parse({"--config", file_with(folder, text).c_str()});
  };
  refused(with("\nlane = 1\n"), ":2: lane: unknown key");
  refused(with("lanes = \"two\"\n"), "expected a whole number");
  refused(with("lanes = \n"), ":1:");
  refused(with("lease = 900000\n"), "lease");
  refused(with("log_level = \"loud\"\n"),
          "config.toml: log_level: trace, debug, info, warn, error or off");
  refused(with("embedded = true\n"), ":1: embedded: unknown key");
  refused(with("drain = 0\n"), "config.toml: drain: expected a number above 0, at most 10000000");
  // Values that the command line refuses are refused in the file, too.
  refused(with("lanes = 1000000\n"), "config.toml: lanes: expected a number from 0 to 1024");
  refused(with("max_sessions = 0\n"), "max_sessions");
  refused(with("session_queue = 1\n"), "session_queue");
  refused(with("drain = inf\n"), "config.toml: drain: expected a number above 0, at most 10000000");
  refused(with("restart = 1e300\n"), "config.toml: restart: expected a number from 0 to 10000000");
  refused(parse({"--stall", "nan"}), "stall");
  refused(parse({"--snapshot-every", "1e12"}), "--snapshot-every");
}

TEST(Config, AUserLeavesAQuarterOfTheSessionsToOthers) {
  const auto most = [](std::vector<const char*> words) {
    const Parsed parsed = parse(std::move(words));
    EXPECT_EQ(parsed.exit_code, -1) << parsed.text;
    return max_user_sessions(parsed.config);
  };
  EXPECT_EQ(most({"--listen=127.0.0.1:0"}), 48);
  EXPECT_EQ(most({"--listen=127.0.0.1:0", "--max-sessions=400"}), 300);
  EXPECT_EQ(most({"--listen=127.0.0.1:0", "--max-sessions=1"}), 1);
  EXPECT_EQ(most({"--socket-users"}), 48);
  EXPECT_EQ(most({"--proxy-socket=/tmp/p.sock"}), 48);
  // Only the daemon's own user opens sessions here.
  EXPECT_EQ(most({}), 0);
  EXPECT_EQ(most({"--embedded"}), 0);
  EXPECT_EQ(most({"--http=127.0.0.1:0"}), 0);
  // A setting replaces the default; 0 is no limit.
  EXPECT_EQ(most({"--user-sessions=3"}), 3);
  EXPECT_EQ(most({"--listen=127.0.0.1:0", "--user-sessions=0"}), 0);
  const testing::Folder folder;
  const std::string file = file_with(folder, "listen = \"127.0.0.1:0\"\nuser_sessions = 7\n");
  EXPECT_EQ(most({"--config", file.c_str()}), 7);
}

TEST(Config, TheFilesOfAUserHaveNoLimitUnlessItIsSet) {
  const auto set = [](std::vector<const char*> words) {
    const Parsed parsed = parse(std::move(words));
    EXPECT_EQ(parsed.exit_code, -1) << parsed.text;
    return parsed.config;
  };
  EXPECT_EQ(set({}).user_state_memory, std::nullopt);
  EXPECT_EQ(set({"--user-state-memory=0"}).user_state_memory, 0u);
  EXPECT_EQ(set({"--user-state-memory=2MiB"}).user_state_memory, 2u << 20);
  const testing::Folder folder;
  const std::string file = file_with(
      folder, "user_state_memory = \"1MiB\"\n[users.ann]\nstate_memory = \"3MiB\"\n[users.bob]\n");
  const Config config = set({"--config", file.c_str()});
  EXPECT_EQ(config.user_state_memory, 1u << 20);
  EXPECT_EQ(config.users.at("ann").state_memory, 3u << 20);
  EXPECT_EQ(config.users.at("bob").state_memory, std::nullopt);
}

TEST(Config, Peers) {
  const testing::Folder folder;
  const std::string path =
      file_with(folder,
                "peer_name = \"b\"\npeer_listen = \"127.0.0.1:7421\"\n"
                "peers = [\"a=127.0.0.1:0\", \"b=127.0.0.1:7421\"]\npeer_patience = 2.5\n");
  for (const Parsed& parsed :
       {parse({"--config", path.c_str()}),
        parse({"--peer-name=b", "--peer-listen=127.0.0.1:7421", "--peer-patience=2.5",
               "--peers=a=127.0.0.1:0,b=127.0.0.1:7421"})}) {
    ASSERT_EQ(parsed.exit_code, -1) << parsed.text;
    const auto options = peer_options(parsed.config);
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(options->name, "b");
    EXPECT_EQ(options->listen, "127.0.0.1:7421");
    EXPECT_EQ(options->peers, (std::map<std::string, std::string>{{"a", "127.0.0.1:0"}}));
    EXPECT_EQ(options->patience, std::chrono::milliseconds(2500));
    EXPECT_FALSE(options->tls.on());
  }
  EXPECT_TRUE(peer_options(Config())->name.empty());
}

TEST(Config, PeersThatDoNotFitTogether) {
  const auto refused = [](std::vector<const char*> words, const std::string& part) {
    const Parsed parsed = parse(std::move(words));
    EXPECT_EQ(parsed.exit_code, 2) << part;
    EXPECT_NE(parsed.text.find(part), std::string::npos) << parsed.text;
  };
  const char *name = "--peer-name=b", *listen = "--peer-listen=127.0.0.1:0",
             *peers = "--peers=a=127.0.0.1:1";
  refused({listen}, "needs the daemon's name (--peer-name)");
  refused({peers}, "needs the daemon's name (--peer-name)");
  refused({"--peer-ca=x"}, "needs the daemon's name (--peer-name)");
  refused({name, peers}, "--peer-listen");
  refused({name, listen}, "needs the list of peers (--peers)");
  refused({"--peer-name=a b", listen, peers}, "letters, digits");
  refused({name, listen, "--peers=b=127.0.0.1:1"}, "names no daemon but \"b\" itself");
  refused({name, listen, "--peers=a"}, "\"a\" is not NAME=HOST:PORT");
  refused({name, listen, "--peers=a=127.0.0.1"}, "is not HOST:PORT");
  refused({name, listen, "--peers=a=127.0.0.1:1,a=127.0.0.1:2"}, "\"a\" twice");
  refused({name, listen, "--peers=c=127.0.0.1:0"}, "port is 0");
  refused({name, listen, peers, "--peer-cert=x", "--peer-key=y"}, "--peer-ca");
  refused({name, listen, peers, "--peer-patience=0"}, "--peer-patience");
  refused({name, listen, peers, "--peer-patience=1e9"},
          "--peer-patience: expected a number above 0, at most");
  // Outside the loopback interface TLS is required.
  refused({name, "--peer-listen=0.0.0.0:7421", peers}, "there peers need TLS");
  refused({name, listen, "--peers=a=192.0.2.1:7421"}, "there peers need TLS");
  EXPECT_EQ(parse({name, "--peer-listen=0.0.0.0:7421", "--peers=a=192.0.2.1:7421", "--peer-cert=x",
                   "--peer-key=y", "--peer-ca=z"})
                .exit_code,
            -1);
  std::string many = "--peers=a0=127.0.0.1:1";
  for (int i = 1; i <= 256; ++i) many += ",a" + std::to_string(i) + "=127.0.0.1:1";
  refused({name, listen, many.c_str()}, "the maximum is 256");
}

TEST(Config, HelpAndVersion) {
  const Parsed help = parse({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.text.find("--session-memory"), std::string::npos);
  EXPECT_NE(parse({"--version"}).text.find("teletensord 9.9"), std::string::npos);
}

// Parses help lines such as "--snapshot-every FLOAT ... (Env:TELETENSOR_SNAPSHOT_EVERY)": a setting
// has the same name everywhere.
TEST(Config, EachFlagWithAVariableIsAKeyOfTheFile) {
  const testing::Folder folder;
  std::istringstream help(parse({"--help"}).text);
  int seen = 0;
  for (std::string line; std::getline(help, line);) {
    const std::size_t flag = line.find("--"), variable = line.find("(Env:TELETENSOR_");
    if (flag == std::string::npos || variable == std::string::npos) continue;
    std::string key = line.substr(flag + 2, line.find(' ', flag) - flag - 2);
    if (key == "config") continue;
    std::replace(key.begin(), key.end(), '-', '_');
    // A table is invalid for every setting, so a known key gives another error than an unknown one.
    const std::string file = file_with(folder, key + " = {}\n");
    EXPECT_EQ(parse({"--config", file.c_str()}).text.find("unknown key"), std::string::npos) << key;
    std::transform(key.begin(), key.end(), key.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    EXPECT_EQ(line.substr(variable), "(Env:TELETENSOR_" + key + ")");
    ++seen;
  }
  EXPECT_GT(seen, 40);
}

TEST(Listen, LoopbackOnly) {
  for (const char* good : {"127.0.0.1:0", "localhost:7420", "[::1]:65535", "127.1.2.3:1"}) {
    EXPECT_TRUE(check_address("listen", good).ok() && is_loopback(good)) << good;
  }
  for (const char* bad : {"0.0.0.0:7420", "10.0.0.1:7420", "[::]:7420", "127.0.0.1.example.org:1",
                          "127.evil.org:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000",
                          "127.0.0.1:7x", ":7420", "127.0.0.256:1", "127.0.0:1"}) {
    EXPECT_FALSE(check_address("listen", bad).ok() && is_loopback(bad)) << bad;
  }
}

TEST(Listen, SocketPaths) {
  const testing::Folder folder;
  EXPECT_TRUE(prepare_socket(folder.path + "/new.sock").ok());
  EXPECT_FALSE(prepare_socket(folder.path + "/none/new.sock").ok());
  EXPECT_FALSE(prepare_socket(folder.path + "/" + std::string(120, 'x')).ok());
  const std::string file = file_with(folder, "");
  EXPECT_EQ(prepare_socket(file).code(), core::Code::kAlreadyExists);
}

}  // namespace
}  // namespace teletensor::server
