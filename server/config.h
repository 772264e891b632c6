// The daemon's configuration. Command line options override environment variables (TELETENSOR_*),
// which override a TOML file, which overrides the defaults.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/program/amounts.h"

namespace teletensor::server {

// Settings in the section [users.NAME] of the file. A value that is set replaces the setting for
// all users.
struct UserConfig {
  std::optional<std::uint64_t> memory, session_memory, state_memory;
  std::optional<int> sessions;
  std::uint64_t guaranteed = 0;  // Host memory reserved for the user, in bytes.
  double weight = 1;             // Relative share of the execution lanes.
  std::vector<std::pair<std::uint64_t program::Amounts::*, std::uint64_t>> session_limits;
};

struct Config {
  std::string listen;            // Address for TCP, "HOST:PORT". Empty disables TCP.
  bool allow_anonymous = false;  // Whether callers on the loopback interface need no token.
  // Path of the UNIX socket. If it is unset, the default path is used. Empty disables it.
  std::optional<std::string> socket;
  bool socket_users = false;  // Whether other users of this machine may connect to the UNIX socket.
  std::string http;           // Address for HTTP, "HOST:PORT". Empty disables HTTP.
  std::vector<std::string> http_names;  // Host names under which the HTTP server may be reached.
  std::string proxy_socket;             // Path of a UNIX socket for a proxy. Empty disables it.
  std::string tls_cert, tls_key, tls_client_ca;  // Paths of PEM files for TLS.
  bool tls_users = false;          // Whether the name in a client certificate identifies the user.
  std::string peer_name;           // Name of this daemon among its peers. Empty if it has no peers.
  std::string peer_listen;         // Address for peers, "HOST:PORT".
  std::vector<std::string> peers;  // The peers, each as "NAME=HOST:PORT".
  // Paths of PEM files for connections to peers. Empty disables TLS.
  std::string peer_cert, peer_key, peer_ca;
  std::vector<std::string> move_from;  // Names of the peers that may move sessions to this daemon.
  // Address that clients of moved sessions are told, "HOST:PORT". If it is empty, the value of
  // `listen` is used.
  std::string advertise;
  double peer_patience_seconds = 30;  // Seconds after which an unreachable peer is considered lost.
  // State directory. If it is unset, the default path is used.
  std::optional<std::string> state_dir;
  // Instructions that run longer, in milliseconds, are recorded in the slow log.
  int slow_ms = 200;
  // Maximum host memory of all sessions, in bytes. 0 means 80 % of the machine's memory.
  std::uint64_t host_memory = 0;
  // Maximum memory of one user's sessions, in bytes. 0 means no limit.
  std::uint64_t user_memory = 0;
  // Maximum number of sessions of one user. 0 means that only max_sessions limits it. Use
  // max_user_sessions(), which has the default.
  std::optional<int> user_sessions;
  // Maximum memory of one session, in bytes. 0 means the value of host_memory.
  std::uint64_t session_memory = 0;
  // Maximum size of the files to which tensors are moved, in bytes. 0 means none.
  std::uint64_t disk_memory = 0;
  // Maximum of disk_memory for one user's sessions, in bytes. 0 means no limit.
  std::uint64_t user_disk_memory = 0;
  // Maximum size of the files of one user's sessions and published tensors in the state directory,
  // in bytes. If it is unset, there is no limit; 0 means that none of them are written.
  std::optional<std::uint64_t> user_state_memory;
  // Directory of the files to which tensors are moved. If it is empty, the state directory is used,
  // or $TMPDIR without one.
  std::string disk_dir;
  program::Amounts session_limits = program::kUsualLimits;
  // Maximum number of commands that a client may send ahead of execution.
  int session_queue = 16384;
  // Maximum size of the values that a client has not read, in bytes.
  std::uint64_t session_unread = 64ull << 20;
  std::map<std::string, UserConfig> users;
  // Lease in seconds. If it is unset, it is 600, or 0 for an embedded daemon.
  std::optional<int> lease;
  int lanes = 0;  // Number of execution lanes. 0 means one for each core.
  // Name of the CUDA driver library. Empty disables GPUs.
  std::string cuda_driver = "libcuda.so.1";
  // Path of the NVRTC library. If it is empty, its usual places are searched.
  std::string cuda_compiler;
  // Maximum memory on each GPU, in bytes. 0 means 90 % of the free memory.
  std::uint64_t device_memory = 0;
  // Seconds after which a GPU that makes no progress is considered lost.
  double device_patience = 60;
  int sim_devices = 0;
  std::uint64_t sim_memory = 1ull << 30;
  bool sim_null = false;
  bool templates = true;  // engine::SessionOptions::templates
  int max_sessions = 64;
  // Seconds after which a session without a client leaves its groups.
  double rank_grace_seconds = 30;
  double stall_seconds = 30;  // Seconds after which a client that reads nothing is disconnected.
  double drain_seconds = 8;   // Seconds to write sessions to disk after SIGTERM.
  // Seconds of `drain_seconds` in which ranks are waited for; at most half of it, which 0 means.
  double drain_ranks_seconds = 0;
  // Period of the snapshots of a session, in seconds. 0 means no periodic snapshots.
  double snapshot_every = 0;
  // Seconds that clients wait for an unreachable daemon to return. 0 means that they do not wait.
  double restart_seconds = 10;
  bool embedded = false;
  // Embedded daemon only: seconds that it keeps running after its last client.
  double linger_seconds = 5;
  std::string log_level = "info";
  std::string log_format = "logfmt";
};

// The parsed command line.
struct Parsed {
  Config config;
  std::string file;          // The path of --config.
  std::string create_token;  // "USER:ROLE": create a token, print it and exit.
  std::string output;        // File to which that token is written instead of being printed.
  bool gpu_paths = false;    // Print how each operator runs on a GPU, and exit.
  bool ops = false;          // Print the declarations of the operators, and exit.
  // If it is not negative: print `text` and exit with this code (--help, --version or an error).
  int exit_code = -1;
  std::string text;
};
Parsed parse_command_line(int argc, const char* const* argv, const std::string& version);

// The maximum number of sessions of one user; 0 means no limit. By default a user leaves a quarter
// of max_sessions to other users, unless the daemon has no other users: if its UNIX socket, which
// only the user that it runs as can open, is the only way to a session.
int max_user_sessions(const Config& config);

// Reads settings from a TOML file. Unknown keys and wrong types are errors that name the line.
core::Status read_toml(const std::string& path, Config& config);

// Parses a size such as "64MiB", "2 GB", "1.5GiB" or "1048576". Refuses negative and malformed
// sizes, and sizes of 2^63 bytes or more.
core::Result<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace teletensor::server
