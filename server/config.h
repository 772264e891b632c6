// Configuration: flags over environment (TELETENSOR_*) over a TOML file over defaults.
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

// [users.NAME] of the file: what is set there takes the place of everybody's.
struct UserConfig {
  std::optional<std::uint64_t> memory, session_memory;
  std::optional<int> sessions;
  std::uint64_t guaranteed = 0;  // bytes of host memory
  double weight = 1;             // of its share of the lanes
  std::vector<std::pair<std::uint64_t program::Amounts::*, std::uint64_t>> session_limits;
};

struct Config {
  std::string listen;                            // "": no TCP
  bool allow_anonymous = false;                  // callers on loopback need no token
  std::optional<std::string> socket;             // unset: the default path; "": none
  bool socket_users = false;                     // other users of this machine may come to it
  std::string http;                              // "": no HTTP
  std::vector<std::string> http_names;           // host names that HTTP answers for
  std::string proxy_socket;                      // "": none
  std::string tls_cert, tls_key, tls_client_ca;  // PEM files
  bool tls_users = false;                        // names of client certificates are users
  std::string peer_name;                         // among its peers; "": it has none
  std::string peer_listen;                       // "HOST:PORT", for them
  std::vector<std::string> peers;                // "NAME=HOST:PORT" of each
  std::string peer_cert, peer_key, peer_ca;      // PEM files; "": no TLS between them
  std::vector<std::string> move_from;            // peers whose sessions may come here
  std::string advertise;                         // "HOST:PORT" for their clients; "": listen
  double peer_patience_seconds = 30;             // a peer that cannot be reached is lost after it
  std::optional<std::string> state_dir;          // unset: the default path
  int slow_ms = 200;                   // instructions that take longer are in the slow log
  std::uint64_t host_memory = 0;       // bytes of all sessions; 0: 80 % of the box
  std::uint64_t user_memory = 0;       // bytes of one user's sessions; 0: no limit
  int user_sessions = 0;               // of one user; 0: no limit but max_sessions
  std::uint64_t session_memory = 0;    // bytes of one session; 0: as host_memory
  std::uint64_t disk_memory = 0;       // bytes of files that memory moves to; 0: none
  std::uint64_t user_disk_memory = 0;  // of one user's sessions; 0: no limit
  std::string disk_dir;  // of those files; "": in the state directory, else in $TMPDIR
  program::Amounts session_limits = program::kUsualLimits;
  int session_queue = 16384;                   // commands that a client sends ahead
  std::uint64_t session_unread = 64ull << 20;  // bytes of values that a client has not read
  std::map<std::string, UserConfig> users;
  std::optional<int> lease;                  // seconds; unset: 600, embedded 0
  int lanes = 0;                             // 0: one per core
  std::string cuda_driver = "libcuda.so.1";  // "": no GPUs
  std::string cuda_compiler;                 // "": NVRTC where it usually is
  std::uint64_t device_memory = 0;           // bytes on each GPU; 0: 90 % of what is free there
  double device_patience = 60;               // seconds until a GPU that does nothing is lost
  int sim_devices = 0;
  std::uint64_t sim_memory = 1ull << 30;
  bool sim_null = false;
  int max_sessions = 64;
  double rank_grace_seconds = 30;  // a session without a client leaves its groups after it
  double stall_seconds = 30;       // a client that does not read is ended after it
  double drain_seconds = 8;        // to write sessions down after SIGTERM
  double snapshot_every = 0;       // seconds between snapshots of a session; 0: none
  double restart_seconds = 10;     // clients wait so long for a daemon that is gone; 0: for none
  bool embedded = false;
  double linger_seconds = 5;  // embedded: stays so long after its last client
  std::string log_level = "info";
};

// What the command line asks for.
struct Parsed {
  Config config;
  std::string create_token;  // "USER:ROLE": makes a token, prints it and leaves
  std::string output;        // where that token is written, instead of being printed
  bool gpu_paths = false;    // prints how each op runs on a GPU and leaves
  bool ops = false;          // prints the declarations of the ops and leaves
  int exit_code = -1;        // >= 0: print `text` and leave with it (--help, --version, a mistake)
  std::string text;
};
Parsed parse_command_line(int argc, const char* const* argv, const std::string& version);

// Sets what the file says. Unknown keys and wrong types are refused, with the line.
core::Status read_toml(const std::string& path, Config& config);

// "64MiB", "2 GB", "1.5GiB", "1048576". Refuses negative, nonsense and what leaves 63 bits.
core::Result<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace teletensor::server
