#include "server/settings.h"

#include <algorithm>
#include <cstdio>

namespace teletensor::server {

namespace {

constexpr int kMaxLease = 864'000;  // Maximum lease: ten days, in seconds.
// A client holds some credits back, so a smaller queue would stall it.
constexpr int kMinQueue = 256;
// Maximum number of seconds in a setting, small enough to be added to any clock.
constexpr double kMaxSeconds = 1e7;

constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error", "off"};
constexpr std::string_view kFormats[] = {"logfmt", "json"};

const Setting kSettings[] = {
    {.name = "listen",
     .member = &Config::listen,
     .help = "also listen on TCP at HOST:PORT; port 0 selects a free port; addresses other than "
             "loopback require TLS [no TCP]"},
    {.name = "allow_anonymous",
     .member = &Config::allow_anonymous,
     .help = "callers on loopback need no token: every user of this machine is one user, "
             "\"anonymous\", with or without tokens"},
    {.name = "socket",
     .member = &Config::socket,
     .help = "path of the UNIX socket [$XDG_RUNTIME_DIR/teletensor.sock]; \"\" for none"},
    {.name = "socket_users",
     .member = &Config::socket_users,
     .help = "other users of this machine may connect to --socket, each as the user of their name"},
    {.name = "http",
     .member = &Config::http,
     .help = "serve /metrics, /healthz and /readyz at HOST:PORT; port 0 selects a free port"},
    {.name = "http_name",
     .member = &Config::http_names,
     .help = "a host name under which HTTP may be reached, in addition to loopback names (may be "
             "repeated)"},
    {.name = "tls_cert",
     .member = &Config::tls_cert,
     .help = "PEM file: enables TLS for --listen, and for --http unless it is a loopback address"},
    {.name = "tls_key",
     .member = &Config::tls_key,
     .help = "PEM file, mode 0600: the private key of the certificate"},
    {.name = "tls_client_ca",
     .member = &Config::tls_client_ca,
     .help = "PEM file: clients need a certificate of this authority"},
    {.name = "tls_users",
     .member = &Config::tls_users,
     .help = "the common name of a client's certificate is its user, who needs no token"},
    {.name = "proxy_socket",
     .member = &Config::proxy_socket,
     .help = "UNIX socket (mode 0660) for a reverse proxy, whose callers need tokens"},
    {.name = "state_dir",
     .member = &Config::state_dir,
     .help = "directory for tokens and sessions [$STATE_DIRECTORY, $XDG_STATE_HOME/teletensor]; "
             "\"\" for none"},
    {.name = "max_sessions",
     .member = &Config::max_sessions,
     .help = "maximum number of sessions at the same time",
     .range = Setting::Range::from(1, 100'000),
     .shows_default = true},
    {.name = "user_sessions",
     .member = &Config::user_sessions,
     .help = "maximum number of sessions of one user at the same time; 0: no limit [three quarters "
             "of --max-sessions; no limit if only the daemon's own user can connect]",
     .range = Setting::Range::from(0, 100'000)},
    {.name = "lease",
     .member = &Config::lease,
     .help = "seconds that a session outlives its connection and its last work [600; embedded: 0]; "
             "0: it ends with its connection",
     .range = Setting::Range::from(0, kMaxLease)},
    {.name = "rank_grace",
     .member = &Config::rank_grace_seconds,
     .help = "seconds after which a session without a client leaves its groups",
     .range = Setting::Range::above(0, kMaxSeconds),
     .shows_default = true},
    {.name = "stall",
     .member = &Config::stall_seconds,
     .help = "seconds after which a client that does not read is ended",
     .range = Setting::Range::above(0, kMaxSeconds),
     .shows_default = true},
    {.name = "session_queue",
     .member = &Config::session_queue,
     .help = "maximum number of commands that a client sends before they have run; then it waits",
     .range = Setting::Range::from(kMinQueue, 1'000'000),
     .shows_default = true},
    {.name = "session_unread",
     .member = &Config::session_unread,
     .help =
         "maximum size of values that a client has not read; above it the session ends [64MiB]"},
    {.name = "host_memory",
     .member = &Config::host_memory,
     .help = "maximum for all sessions [80% of the machine's memory]"},
    {.name = "user_memory",
     .member = &Config::user_memory,
     .help = "maximum for all sessions of one user [no limit]"},
    {.name = "session_memory",
     .member = &Config::session_memory,
     .help = "maximum for one session [--host-memory]"},
    {.name = "disk_memory",
     .member = &Config::disk_memory,
     .help = "maximum size of the files to which tensors of idle sessions are moved when memory is "
             "short; 0 disables this"},
    {.name = "user_disk_memory",
     .member = &Config::user_disk_memory,
     .help = "maximum size of those files for all sessions of one user [no limit]"},
    {.name = "disk_dir",
     .member = &Config::disk_dir,
     .help =
         "directory of the files of --disk-memory [the state directory, else $TMPDIR or /var/tmp]"},
    {.name = "user_state_memory",
     .member = &Config::user_state_memory,
     .help = "maximum size of the files of one user's sessions and published tensors in "
             "--state-dir; 0: none are written [no limit]"},
    {.name = "lanes",
     .member = &Config::lanes,
     .help = "worker threads; 0: one per core",
     .range = Setting::Range::from(0, 1024)},
    {.name = "cuda_driver",
     .member = &Config::cuda_driver,
     .help = "library of the GPUs' driver; \"\" for no GPUs",
     .shows_default = true},
    {.name = "cuda_compiler",
     .member = &Config::cuda_compiler,
     .help = "library that compiles kernels [libnvrtc.so.13 or .12]"},
    {.name = "device_memory",
     .member = &Config::device_memory,
     .help = "maximum for all sessions, on each GPU [90% of its free memory]"},
    {.name = "device_patience",
     .member = &Config::device_patience,
     .help = "seconds after which a GPU that makes no progress counts as lost",
     .range = Setting::Range::above(0, kMaxSeconds),
     .shows_default = true},
    {.name = "sim_devices",
     .member = &Config::sim_devices,
     .help = "simulated devices sim:0, ... for tests",
     .range = Setting::Range::from(0, 16)},
    {.name = "sim_memory",
     .member = &Config::sim_memory,
     .help = "memory of each simulated device"},
    {.name = "sim_null",
     .member = &Config::sim_null,
     .help = "simulated devices compute nothing (benchmarks)"},
    {.name = "templates",
     .member = &Config::templates,
     .help = "instructions that a session repeats run together; \"0\" to compare without"},
    {.name = "peer_name",
     .member = &Config::peer_name,
     .help = "this daemon's name among its peers [no peers]"},
    {.name = "peer_listen",
     .member = &Config::peer_listen,
     .help = "HOST:PORT where peers reach this daemon; port 0 selects a free port; addresses other "
             "than loopback require TLS"},
    {.name = "peers",
     .member = &Config::peers,
     .help = "NAME=HOST:PORT of each peer, separated by commas; the list may contain this daemon",
     .separated = true},
    {.name = "peer_cert",
     .member = &Config::peer_cert,
     .help = "PEM file: the certificate shown to peers, which has the DNS name --peer-name"},
    {.name = "peer_key",
     .member = &Config::peer_key,
     .help = "PEM file, mode 0600: the private key of the certificate"},
    {.name = "peer_ca",
     .member = &Config::peer_ca,
     .help = "PEM file: the authority of the peers' certificates"},
    {.name = "peer_patience",
     .member = &Config::peer_patience_seconds,
     .help = "seconds after which a peer that cannot be reached is lost",
     .range = Setting::Range::above(0, kMaxSeconds),
     .shows_default = true},
    {.name = "move_from",
     .member = &Config::move_from,
     .help = "names of --peers whose sessions may move here, separated by commas; such a peer is "
             "trusted with the names and tokens of users [none]",
     .separated = true},
    {.name = "advertise",
     .member = &Config::advertise,
     .help =
         "HOST:PORT where clients of sessions that were moved here reach this daemon [--listen]"},
    {.name = "drain",
     .member = &Config::drain_seconds,
     .help = "seconds after SIGTERM in which commands finish and sessions are saved in the state "
             "directory",
     .range = Setting::Range::above(0, kMaxSeconds),
     .shows_default = true},
    {.name = "drain_ranks",
     .member = &Config::drain_ranks_seconds,
     .help = "seconds of --drain in which ranks of groups may reach the same collective; then open "
             "collectives are saved [half of --drain]",
     .range = Setting::Range::from(0, kMaxSeconds)},
    {.name = "snapshot_every",
     .member = &Config::snapshot_every,
     .help = "seconds after which a session that has changed is saved again; 0: only at a shutdown "
             "and on demand",
     .range = Setting::Range::from(0, kMaxSeconds),
     .shows_default = true},
    {.name = "restart",
     .member = &Config::restart_seconds,
     .help = "seconds that clients wait for a daemon that ended without notice; 0: sessions do not "
             "outlive the daemon",
     .range = Setting::Range::from(0, kMaxSeconds),
     .shows_default = true},
    {.name = "embedded",
     .member = &Config::embedded,
     .help = "for one user: no TCP unless requested; the daemon ends after its last client",
     .flag_only = true},
    {.name = "linger",
     .member = &Config::linger_seconds,
     .help = "embedded: seconds that the daemon runs after its last client",
     .range = Setting::Range::above(0, kMaxSeconds),
     .shows_default = true},
    {.name = "slow_ms",
     .member = &Config::slow_ms,
     .help = "milliseconds on a lane after which an instruction is recorded in the slow log (at "
             "least 50)",
     .range = Setting::Range::from(50, 1'000'000),
     .shows_default = true},
    {.name = "log_level",
     .member = &Config::log_level,
     .help = "trace debug info warn error off",
     .choices = kLevels,
     .shows_default = true},
    {.name = "log_format",
     .member = &Config::log_format,
     .help = "logfmt json",
     .choices = kFormats,
     .shows_default = true},
};

std::optional<double> number_in(const Config& config, const Setting& setting) {
  return std::visit(
      [&]<class T>(T Config::*member) -> std::optional<double> {
        if constexpr (std::is_same_v<T, int> || std::is_same_v<T, double>) {
          return config.*member;
        } else if constexpr (std::is_same_v<T, std::optional<int>>) {
          return config.*member ? std::optional<double>(*(config.*member)) : std::nullopt;
        } else {
          return std::nullopt;
        }
      },
      setting.member);
}

// Such as "logfmt or json".
std::string any_of(std::span<const std::string_view> choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

}  // namespace

std::string Setting::Range::text() const {
  char text[100];
  std::snprintf(text, sizeof text, "expected a number %s %.0f%s %.0f",
                excludes_least ? "above" : "from", least, excludes_least ? ", at most" : " to",
                most);
  return text;
}

std::span<const Setting> settings() { return kSettings; }

std::string flag_of(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string variable_of(std::string_view name) {
  std::string variable = "TELETENSOR_" + std::string(name);
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return variable;
}

std::optional<WrongSetting> wrong_setting(const Config& config) {
  for (const Setting& setting : kSettings) {
    const std::optional<double> number = number_in(config, setting);
    if (setting.range && number && !setting.range->contains(*number)) {
      return WrongSetting{setting.name, setting.range->text()};
    }
    const auto* text = std::get_if<std::string Config::*>(&setting.member);
    if (text != nullptr && !setting.choices.empty() &&
        std::find(setting.choices.begin(), setting.choices.end(), config.**text) ==
            setting.choices.end()) {
      return WrongSetting{setting.name, any_of(setting.choices)};
    }
  }
  return {};
}

}  // namespace teletensor::server
