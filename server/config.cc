#include "server/config.h"

#include <stdexcept>

// The TOML parser asserts on some malformed lines. This function replaces its assertions, so that
// such lines are refused.
constexpr void refuse_unless(bool right) {
  if (!right) throw std::invalid_argument("malformed");
}
#define TOML_ASSERT(what) refuse_unless(static_cast<bool>(what))
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "server/access/tokens.h"
#include "server/base/os/users.h"
#include "server/peer_settings.h"
#include "server/settings_check.h"

namespace teletensor::server {

using core::Status;

namespace {

constexpr int kMaxLease = 864'000;  // Maximum lease: ten days, in seconds.
// A client holds some credits back, so a smaller queue would stall it.
constexpr int kMinQueue = 256;
// Maximum number of seconds in a setting, small enough to be added to any clock.
constexpr double kMaxSeconds = 1e7;

// Assigns one TOML value to a setting of the corresponding type.
Status assign(const toml::node& node, std::string& out) {
  const auto value = node.value_exact<std::string>();
  if (!value) return core::invalid("expected a string");
  out = *value;
  return {};
}
Status assign(const toml::node& node, bool& out) {
  const auto value = node.value_exact<bool>();
  if (!value) return core::invalid("expected true or false");
  out = *value;
  return {};
}
Status assign(const toml::node& node, int& out) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < 0 || *value > 1'000'000) {
    return core::invalid("expected a whole number from 0 to 1000000");
  }
  out = static_cast<int>(*value);
  return {};
}
Status assign(const toml::node& node, double& out) {
  const auto value = node.value<double>();
  if (!value || !(*value > 0)) return core::invalid("expected a number above 0");
  out = *value;
  return {};
}
Status assign(const toml::node& node, std::uint64_t& out) {
  std::string text;
  if (const auto number = node.value_exact<std::int64_t>()) {
    text = std::to_string(*number);
  } else if (const auto value = node.value_exact<std::string>()) {
    text = *value;
  } else {
    return core::invalid("expected bytes: a number, or text such as \"2GiB\"");
  }
  const core::Result<std::uint64_t> bytes = parse_bytes(text);
  if (!bytes.ok()) return bytes.status();
  out = *bytes;
  return {};
}
Status assign(const toml::node& node, std::vector<std::string>& out) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return core::invalid("expected a list of strings");
  out.clear();
  for (const toml::node& each : *array) {
    TT_RETURN_IF_ERROR(assign(each, out.emplace_back()));
  }
  return {};
}

template <class T>
Status assign(const toml::node& node, std::optional<T>& out) {
  T value{};
  TT_RETURN_IF_ERROR(assign(node, value));
  out = value;
  return {};
}

const program::AmountField* session_limit(std::string_view key) {
  if (!key.starts_with("session_")) return nullptr;
  key.remove_prefix(8);
  for (const program::AmountField& each : program::kAmountFields) {
    if (each.name == key) return &each;
  }
  return nullptr;
}
Status assign(const toml::node& node, const program::AmountField& field, std::uint64_t& out) {
  if (field.bytes) {
    TT_RETURN_IF_ERROR(assign(node, out));
  } else {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < 0) return core::invalid("expected a whole number, 0 or more");
    out = static_cast<std::uint64_t>(*value);
  }
  return out > 0 || field.may_be_all ? Status() : core::invalid("expected a number above 0");
}

Status assign_user(const std::string& key, const toml::node& node, UserConfig& user) {
  if (key == "memory") return assign(node, user.memory);
  if (key == "guaranteed") return assign(node, user.guaranteed);
  if (key == "session_memory") return assign(node, user.session_memory);
  if (key == "state_memory") return assign(node, user.state_memory);
  if (key == "sessions") return assign(node, user.sessions);
  if (key == "weight") {
    TT_RETURN_IF_ERROR(assign(node, user.weight));
    return user.weight <= 1000 ? Status() : core::invalid("expected a number up to 1000");
  }
  if (const program::AmountField* field = session_limit(key)) {
    return assign(node, *field, user.session_limits.emplace_back(field->field, 0).second);
  }
  return core::invalid("unknown key");
}

// The position of a mistake, for an error message.
std::string place(const std::string& path, const toml::node& node, const std::string& name) {
  return path + ":" + std::to_string(node.source().begin.line) + ": " + name + ": ";
}

// Reads the sections [users.NAME].
Status read_users(const std::string& path, const toml::node& node, Config& config) {
  const toml::table* users = node.as_table();
  if (users == nullptr) return core::invalid(place(path, node, "users") + "expected [users.NAME]");
  for (const auto& [key, each] : *users) {
    const std::string name(key.str());
    const toml::table* table = each.as_table();
    if (table == nullptr || !good_user(name)) {
      return core::invalid(place(path, each, "users." + name) +
                           "expected a table with a user's name: letters, digits and ._@-");
    }
    UserConfig& user = config.users[name];
    for (const auto& [what, value] : *table) {
      const std::string setting(what.str());
      if (const Status status = assign_user(setting, value, user); !status.ok()) {
        return core::invalid(place(path, value, "users." + name + "." + setting) +
                             status.message());
      }
    }
    const std::uint64_t most = user.memory.value_or(config.user_memory);
    if (most != 0 && user.guaranteed > most) {
      return core::invalid(place(path, each, "users." + name) +
                           "more is guaranteed than the user may have");
    }
  }
  return {};
}

Status assign_key(const std::string& key, const toml::node& node, Config& config) {
  if (key == "listen") return assign(node, config.listen);
  if (key == "allow_anonymous") return assign(node, config.allow_anonymous);
  if (key == "socket") return assign(node, config.socket);
  if (key == "http") return assign(node, config.http);
  if (key == "http_name") return assign(node, config.http_names);
  if (key == "proxy_socket") return assign(node, config.proxy_socket);
  if (key == "tls_cert") return assign(node, config.tls_cert);
  if (key == "tls_key") return assign(node, config.tls_key);
  if (key == "tls_client_ca") return assign(node, config.tls_client_ca);
  if (key == "socket_users") return assign(node, config.socket_users);
  if (key == "tls_users") return assign(node, config.tls_users);
  if (key == "peer_name") return assign(node, config.peer_name);
  if (key == "peer_listen") return assign(node, config.peer_listen);
  if (key == "peers") return assign(node, config.peers);
  if (key == "peer_cert") return assign(node, config.peer_cert);
  if (key == "peer_key") return assign(node, config.peer_key);
  if (key == "peer_ca") return assign(node, config.peer_ca);
  if (key == "move_from") return assign(node, config.move_from);
  if (key == "advertise") return assign(node, config.advertise);
  if (key == "peer_patience") return assign(node, config.peer_patience_seconds);
  if (key == "state_dir") return assign(node, config.state_dir);
  if (key == "slow_ms") return assign(node, config.slow_ms);
  if (key == "host_memory") return assign(node, config.host_memory);
  if (key == "disk_memory") return assign(node, config.disk_memory);
  if (key == "user_disk_memory") return assign(node, config.user_disk_memory);
  if (key == "disk_dir") return assign(node, config.disk_dir);
  if (key == "user_memory") return assign(node, config.user_memory);
  if (key == "user_state_memory") return assign(node, config.user_state_memory);
  if (key == "user_sessions") return assign(node, config.user_sessions);
  if (key == "session_memory") return assign(node, config.session_memory);
  if (key == "lease") return assign(node, config.lease);
  if (key == "lanes") return assign(node, config.lanes);
  if (key == "cuda_driver") return assign(node, config.cuda_driver);
  if (key == "cuda_compiler") return assign(node, config.cuda_compiler);
  if (key == "device_memory") return assign(node, config.device_memory);
  if (key == "device_patience") return assign(node, config.device_patience);
  if (key == "sim_devices") return assign(node, config.sim_devices);
  if (key == "sim_memory") return assign(node, config.sim_memory);
  if (key == "sim_null") return assign(node, config.sim_null);
  if (key == "max_sessions") return assign(node, config.max_sessions);
  if (key == "rank_grace") return assign(node, config.rank_grace_seconds);
  if (key == "stall") return assign(node, config.stall_seconds);
  if (key == "drain") return assign(node, config.drain_seconds);
  if (key == "snapshot_every") {
    config.snapshot_every = node.value<double>().value_or(-1);
    return config.snapshot_every >= 0 ? Status() : core::invalid("expected a number, 0 or more");
  }
  if (key == "restart") {
    config.restart_seconds = node.value<double>().value_or(-1);
    return config.restart_seconds >= 0 ? Status() : core::invalid("expected a number, 0 or more");
  }
  if (key == "session_queue") return assign(node, config.session_queue);
  if (key == "session_unread") return assign(node, config.session_unread);
  if (const program::AmountField* field = session_limit(key)) {
    return assign(node, *field, config.session_limits.*field->field);
  }
  if (key == "linger") return assign(node, config.linger_seconds);
  if (key == "log_level") return assign(node, config.log_level);
  if (key == "log_format") return assign(node, config.log_format);
  return core::invalid("unknown key");
}

// The file that --config or TELETENSOR_CONFIG names; empty if there is none. Other mistakes on the
// command line are left to the main parser.
std::string config_path(int argc, const char* const* argv) {
  const std::string_view flag = "--config";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag && i + 1 < argc) return argv[i + 1];
    if (word.starts_with(flag) && word.size() > flag.size() && word[flag.size()] == '=') {
      return std::string(word.substr(flag.size() + 1));
    }
  }
  const char* variable = std::getenv("TELETENSOR_CONFIG");
  return variable ? variable : "";
}

CLI::Validator bytes_validator() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const core::Result<std::uint64_t> bytes = parse_bytes(text);
        if (!bytes.ok()) return bytes.status().message();
        text = std::to_string(*bytes);
        return {};
      },
      "BYTES");
}

// Adds the options --session-handles, TELETENSOR_SESSION_HANDLES and so on.
void add_session_limits(CLI::App& app, program::Amounts& limits) {
  for (const program::AmountField& each : program::kAmountFields) {
    std::string flag = "--session-" + std::string(each.name);
    std::string variable = "TELETENSOR_SESSION_" + std::string(each.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
    CLI::Option* option =
        app.add_option(flag, limits.*each.field,
                       std::string(each.what) + (each.may_be_all ? " [all its memory]" : ""))
            ->envname(variable);
    if (!each.may_be_all) option->capture_default_str();
    if (each.bytes) option->transform(bytes_validator());
    if (!each.may_be_all) option->check(CLI::PositiveNumber);
  }
}

void add_peers(CLI::App& app, Config& config) {
  app.add_option("--peer-name", config.peer_name, "this daemon's name among its peers [no peers]")
      ->envname("TELETENSOR_PEER_NAME");
  app.add_option("--peer-listen", config.peer_listen,
                 "HOST:PORT where peers reach this daemon; port 0 selects a free port; addresses "
                 "other than loopback require TLS")
      ->envname("TELETENSOR_PEER_LISTEN");
  app.add_option(
         "--peers", config.peers,
         "NAME=HOST:PORT of each peer, separated by commas; the list may contain this daemon")
      ->envname("TELETENSOR_PEERS")
      ->delimiter(',');
  app.add_option("--peer-cert", config.peer_cert,
                 "PEM file: the certificate shown to peers, which has the DNS name --peer-name")
      ->envname("TELETENSOR_PEER_CERT");
  app.add_option("--peer-key", config.peer_key,
                 "PEM file, mode 0600: the private key of the certificate")
      ->envname("TELETENSOR_PEER_KEY");
  app.add_option("--peer-ca", config.peer_ca, "PEM file: the authority of the peers' certificates")
      ->envname("TELETENSOR_PEER_CA");
  app.add_option("--peer-patience", config.peer_patience_seconds,
                 "seconds after which a peer that cannot be reached is lost")
      ->envname("TELETENSOR_PEER_PATIENCE")
      ->capture_default_str();
}

void add_moves(CLI::App& app, Config& config) {
  app.add_option(
         "--move-from", config.move_from,
         "names of --peers whose sessions may move here, separated by commas; such a peer is "
         "trusted with the names and tokens of users [none]")
      ->envname("TELETENSOR_MOVE_FROM")
      ->delimiter(',');
  app.add_option(
         "--advertise", config.advertise,
         "HOST:PORT where clients of sessions that were moved here reach this daemon [--listen]")
      ->envname("TELETENSOR_ADVERTISE");
}

// Returns an error message for a number that is out of range, regardless of whether an option, a
// variable or the file has set it. Empty if all are valid.
std::string out_of_range(const Config& config, const SettingSources& sources) {
  struct Range {
    const char* key;
    double value, least, most;
    bool above = false;  // The number must be above `least`.
  };
  const Range ranges[] = {
      {"lease", static_cast<double>(config.lease.value_or(0)), 0, kMaxLease},
      {"lanes", static_cast<double>(config.lanes), 0, 1024},
      {"sim_devices", static_cast<double>(config.sim_devices), 0, 16},
      {"max_sessions", static_cast<double>(config.max_sessions), 1, 100'000},
      {"user_sessions", static_cast<double>(config.user_sessions.value_or(0)), 0, 100'000},
      {"session_queue", static_cast<double>(config.session_queue), kMinQueue, 1'000'000},
      {"slow_ms", static_cast<double>(config.slow_ms), 50, 1'000'000},
      {"device_patience", config.device_patience, 0, kMaxSeconds, true},
      {"rank_grace", config.rank_grace_seconds, 0, kMaxSeconds, true},
      {"stall", config.stall_seconds, 0, kMaxSeconds, true},
      {"peer_patience", config.peer_patience_seconds, 0, kMaxSeconds, true},
      {"drain", config.drain_seconds, 0, kMaxSeconds, true},
      {"snapshot_every", config.snapshot_every, 0, kMaxSeconds},
      {"restart", config.restart_seconds, 0, kMaxSeconds},
      {"linger", config.linger_seconds, 0, kMaxSeconds, true},
  };
  for (const Range& range : ranges) {
    const bool enough = range.above ? range.value > range.least : range.value >= range.least;
    if (enough && range.value <= range.most) continue;
    char text[100];
    std::snprintf(text, sizeof text, ": expected a number %s %.0f%s %.0f\n",
                  range.above ? "above" : "from", range.least, range.above ? ", at most" : " to",
                  range.most);
    return "teletensord: " + sources.of(range.key) + text;
  }
  return {};
}

// A mistake that the parser of flags has found. Its text names a flag, also if a variable was read.
std::string mistake(std::string text, const CLI::App& app, const SettingSources& sources) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string variable = option->get_envname(), flag = option->get_name();
    const std::size_t at = text.find(flag);
    if (variable.empty() || at == text.npos) continue;
    const std::size_t end = at + flag.size();
    const bool whole = end == text.size() || (text[end] != '-' && !std::isalnum(text[end]));
    std::string key = flag.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    if (whole && sources.of(key) == variable) return text.replace(at, flag.size(), variable);
  }
  return text;
}

}  // namespace

core::Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto refuse = [&] {
    return core::invalid("not a number of bytes: \"" + std::string(text) +
                         "\" (such as 1048576, 64MiB or 1.5GB)");
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0)) return refuse();
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},       {"B", 1},        {"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},
      {"T", 0x1p40}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
      {"kB", 1e3},   {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  const auto found = kUnits.find(unit);
  if (found == kUnits.end()) return refuse();
  const double bytes = number * found->second;
  if (!(bytes < 0x1p62)) return refuse();
  return static_cast<std::uint64_t>(bytes);
}

int max_user_sessions(const Config& config) {
  if (config.user_sessions) return *config.user_sessions;
  const bool only_its_own_user = config.listen.empty() && config.proxy_socket.empty() &&
                                 !config.socket_users && config.move_from.empty();
  return only_its_own_user ? 0 : config.max_sessions - config.max_sessions / 4;
}

Status read_toml(const std::string& path, Config& config) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return core::invalid(path + ": is a directory");
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const std::string line = std::to_string(error.source().begin.line);
    return core::invalid(path + (line == "0" ? "" : ":" + line) + ": " +
                         std::string(error.description()));
  } catch (const std::invalid_argument& error) {
    return core::invalid(path + ": " + error.what());
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "users") continue;
    const Status status = assign_key(name, node, config);
    if (!status.ok()) return core::invalid(place(path, node, name) + status.message());
  }
  const toml::node* users = table.get("users");
  return users == nullptr ? Status() : read_users(path, *users, config);
}

Parsed parse_command_line(int argc, const char* const* argv, const std::string& version) {
  Parsed parsed;
  Config& config = parsed.config;
  std::string path = config_path(argc, argv);
  const SettingSources sources(argc, argv, path);
  if (!path.empty()) {
    if (const Status status = read_toml(path, config); !status.ok()) {
      parsed.exit_code = 2;
      parsed.text = "teletensord: " + status.message() + "\n";
      return parsed;
    }
  }

  CLI::App app(
      "teletensord: a server that stores tensors and computes for programs on this and other "
      "machines.\n"
      "Settings: flags, then TELETENSOR_* in the environment, then the --config file.");
  app.set_version_flag("--version", "teletensord " + version);
  app.footer(
      "Exit status: 0 if it has ended as asked, or printed what was asked for; 1 if it could not "
      "start, or not restart after the loss of a GPU; 2 for a mistake in a setting.");
  std::string socket;
  bool no_socket = false;
  app.add_option("--config", path, "TOML file; keys are the flags' names with underscores")
      ->envname("TELETENSOR_CONFIG");
  auto* listen =
      app.add_option("--listen", config.listen,
                     "also listen on TCP at HOST:PORT; port 0 selects a free port; addresses "
                     "other than loopback require TLS [no TCP]")
          ->envname("TELETENSOR_LISTEN");
  app.add_flag("--allow-anonymous", config.allow_anonymous,
               "callers on loopback need no token: every user of this machine is one user, "
               "\"anonymous\", with or without tokens")
      ->envname("TELETENSOR_ALLOW_ANONYMOUS");
  auto* socket_option =
      app.add_option("--socket", socket,
                     "path of the UNIX socket [$XDG_RUNTIME_DIR/teletensor.sock]; \"\" for none")
          ->envname("TELETENSOR_SOCKET");
  app.add_flag(
         "--socket-users", config.socket_users,
         "other users of this machine may connect to --socket, each as the user of their name")
      ->envname("TELETENSOR_SOCKET_USERS");
  app.add_option("--http", config.http,
                 "serve /metrics, /healthz and /readyz at HOST:PORT; port 0 selects a free port")
      ->envname("TELETENSOR_HTTP");
  app.add_option("--http-name", config.http_names,
                 "a host name under which HTTP may be reached, in addition to loopback names (may "
                 "be repeated)")
      ->envname("TELETENSOR_HTTP_NAME");
  app.add_option(
         "--tls-cert", config.tls_cert,
         "PEM file: enables TLS for --listen, and for --http unless it is a loopback address")
      ->envname("TELETENSOR_TLS_CERT");
  app.add_option("--tls-key", config.tls_key,
                 "PEM file, mode 0600: the private key of the certificate")
      ->envname("TELETENSOR_TLS_KEY");
  app.add_option("--tls-client-ca", config.tls_client_ca,
                 "PEM file: clients need a certificate of this authority")
      ->envname("TELETENSOR_TLS_CLIENT_CA");
  app.add_flag("--tls-users", config.tls_users,
               "the common name of a client's certificate is its user, who needs no token")
      ->envname("TELETENSOR_TLS_USERS");
  app.add_option("--proxy-socket", config.proxy_socket,
                 "UNIX socket (mode 0660) for a reverse proxy, whose callers need tokens")
      ->envname("TELETENSOR_PROXY_SOCKET");
  std::string state_dir;
  auto* state_option = app.add_option("--state-dir", state_dir,
                                      "directory for tokens and sessions [$STATE_DIRECTORY, "
                                      "$XDG_STATE_HOME/teletensor]; \"\" for none")
                           ->envname("TELETENSOR_STATE_DIR");
  auto* create_option =
      app.add_option("--create-token", parsed.create_token,
                     "USER:ROLE (user, admin, metrics): print a new token and exit");
  app.add_option(
         "--output", parsed.output,
         "with --create-token: write the token to this new file, which only its owner can read")
      ->needs(create_option);
  app.add_flag("--gpu-paths", parsed.gpu_paths,
               "print how each op runs on a GPU (a kind of kernel, or host), and exit");
  app.add_flag("--ops", parsed.ops, "print the declaration of each op as a line of JSON, and exit");
  app.add_option("--slow-ms", config.slow_ms,
                 "milliseconds on a lane after which an instruction is recorded in the slow log "
                 "(at least 50)")
      ->envname("TELETENSOR_SLOW_MS")
      ->capture_default_str();
  app.add_flag("--no-socket", no_socket, "no UNIX socket");
  app.add_option("--host-memory", config.host_memory,
                 "maximum for all sessions [80% of the machine's memory]")
      ->envname("TELETENSOR_HOST_MEMORY")
      ->transform(bytes_validator());
  app.add_option("--user-memory", config.user_memory,
                 "maximum for all sessions of one user [no limit]")
      ->envname("TELETENSOR_USER_MEMORY")
      ->transform(bytes_validator());
  app.add_option("--disk-memory", config.disk_memory,
                 "maximum size of the files to which tensors of idle sessions are moved when "
                 "memory is short; 0 disables this")
      ->envname("TELETENSOR_DISK_MEMORY")
      ->transform(bytes_validator());
  app.add_option("--user-disk-memory", config.user_disk_memory,
                 "maximum size of those files for all sessions of one user [no limit]")
      ->envname("TELETENSOR_USER_DISK_MEMORY")
      ->transform(bytes_validator());
  app.add_option("--user-state-memory", config.user_state_memory,
                 "maximum size of the files of one user's sessions and published tensors in "
                 "--state-dir; 0: none are written [no limit]")
      ->envname("TELETENSOR_USER_STATE_MEMORY")
      ->transform(bytes_validator());
  app.add_option(
         "--disk-dir", config.disk_dir,
         "directory of the files of --disk-memory [the state directory, else $TMPDIR or /var/tmp]")
      ->envname("TELETENSOR_DISK_DIR");
  app.add_option("--user-sessions", config.user_sessions,
                 "maximum number of sessions of one user at the same time; 0: no limit [three "
                 "quarters of --max-sessions; no limit if only the daemon's own user can connect]")
      ->envname("TELETENSOR_USER_SESSIONS");
  app.add_option("--session-memory", config.session_memory,
                 "maximum for one session [--host-memory]")
      ->envname("TELETENSOR_SESSION_MEMORY")
      ->transform(bytes_validator());
  add_session_limits(app, config.session_limits);
  add_peers(app, config);
  add_moves(app, config);
  app.add_option(
         "--session-queue", config.session_queue,
         "maximum number of commands that a client sends before they have run; then it waits")
      ->envname("TELETENSOR_SESSION_QUEUE")
      ->capture_default_str();
  app.add_option(
         "--session-unread", config.session_unread,
         "maximum size of values that a client has not read; above it the session ends [64MiB]")
      ->envname("TELETENSOR_SESSION_UNREAD")
      ->transform(bytes_validator());
  app.add_option("--lease", config.lease,
                 "seconds that a session outlives its connection and its last work [600; "
                 "embedded: 0]; 0: it ends with its connection")
      ->envname("TELETENSOR_LEASE");
  app.add_option("--lanes", config.lanes, "worker threads; 0: one per core")
      ->envname("TELETENSOR_LANES");
  app.add_option("--cuda-driver", config.cuda_driver,
                 "library of the GPUs' driver; \"\" for no GPUs")
      ->envname("TELETENSOR_CUDA_DRIVER")
      ->capture_default_str();
  app.add_option("--cuda-compiler", config.cuda_compiler,
                 "library that compiles kernels [libnvrtc.so.13 or .12]")
      ->envname("TELETENSOR_CUDA_COMPILER");
  app.add_option("--device-memory", config.device_memory,
                 "maximum for all sessions, on each GPU [90% of its free memory]")
      ->envname("TELETENSOR_DEVICE_MEMORY")
      ->transform(bytes_validator());
  app.add_option("--device-patience", config.device_patience,
                 "seconds after which a GPU that makes no progress counts as lost")
      ->envname("TELETENSOR_DEVICE_PATIENCE")
      ->capture_default_str();
  app.add_option("--sim-devices", config.sim_devices, "simulated devices sim:0, ... for tests")
      ->envname("TELETENSOR_SIM_DEVICES");
  app.add_option("--sim-memory", config.sim_memory, "memory of each simulated device")
      ->envname("TELETENSOR_SIM_MEMORY")
      ->transform(bytes_validator());
  app.add_flag("--sim-null", config.sim_null, "simulated devices compute nothing (benchmarks)")
      ->envname("TELETENSOR_SIM_NULL");
  app.add_option("--max-sessions", config.max_sessions,
                 "maximum number of sessions at the same time")
      ->envname("TELETENSOR_MAX_SESSIONS")
      ->capture_default_str();
  app.add_option("--rank-grace", config.rank_grace_seconds,
                 "seconds after which a session without a client leaves its groups")
      ->envname("TELETENSOR_RANK_GRACE")
      ->capture_default_str();
  app.add_option("--stall", config.stall_seconds,
                 "seconds after which a client that does not read is ended")
      ->envname("TELETENSOR_STALL")
      ->capture_default_str();
  app.add_option("--drain", config.drain_seconds,
                 "seconds after SIGTERM in which commands finish and sessions are saved in "
                 "the state directory")
      ->envname("TELETENSOR_DRAIN")
      ->capture_default_str();
  app.add_option("--snapshot-every", config.snapshot_every,
                 "seconds after which a session that has changed is saved again; 0: "
                 "only at a shutdown and on demand")
      ->envname("TELETENSOR_SNAPSHOT_EVERY")
      ->capture_default_str();
  app.add_option("--restart", config.restart_seconds,
                 "seconds that clients wait for a daemon that ended without notice; 0: sessions do "
                 "not outlive the daemon")
      ->envname("TELETENSOR_RESTART")
      ->capture_default_str();
  app.add_flag("--embedded", config.embedded,
               "for one user: no TCP unless requested; the daemon ends after its last client");
  app.add_option("--linger", config.linger_seconds,
                 "embedded: seconds that the daemon runs after its last client")
      ->envname("TELETENSOR_LINGER")
      ->capture_default_str();
  app.add_option("--log-level", config.log_level, "trace debug info warn error off")
      ->envname("TELETENSOR_LOG_LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", config.log_format, "logfmt json")
      ->envname("TELETENSOR_LOG_FORMAT")
      ->check(CLI::IsMember({"logfmt", "json"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, mistakes;
    parsed.exit_code = app.exit(error, out, mistakes) == 0 ? 0 : 2;
    parsed.text = out.str() + mistake(mistakes.str(), app, sources);
    return parsed;
  }
  parsed.file = path;
  if (socket_option->count() > 0) config.socket = socket;
  if (no_socket) config.socket = "";
  if (state_option->count() > 0) config.state_dir = state_dir;
  if (config.embedded && listen->count() == 0) config.listen = "";
  const char* levels[] = {"trace", "debug", "info", "warn", "error", "off"};
  const Status peers = peer_options(config).status();
  if (std::find(std::begin(levels), std::end(levels), config.log_level) == std::end(levels)) {
    parsed.exit_code = 2;
    parsed.text = "teletensord: log_level: trace, debug, info, warn, error or off\n";
  } else if (config.log_format != "logfmt" && config.log_format != "json") {
    parsed.exit_code = 2;
    parsed.text = "teletensord: log_format: logfmt or json\n";
  } else if (parsed.text = out_of_range(config, sources); !parsed.text.empty()) {
    parsed.exit_code = 2;
  } else if (!peers.ok()) {
    parsed.exit_code = 2;
    parsed.text = "teletensord: " + peers.message() + "\n";
  }
  return parsed;
}

}  // namespace teletensor::server
