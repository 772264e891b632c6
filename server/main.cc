// teletensord: reads the configuration, creates the engine and the server, and handles signals.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "engine/core/memory/reserve.h"
#include "engine/core/mutex.h"
#include "engine/core/threads.h"
#include "engine/engine.h"
#include "server/base/log.h"
#include "server/base/os/listen.h"
#include "server/base/os/notify.h"
#include "server/base/os/private_files.h"
#include "server/base/os/restart.h"
#include "server/client_limits.h"
#include "server/config.h"
#include "server/peer/peers.h"
#include "server/peer_settings.h"
#include "server/server.h"
#include "server/session/codec.h"
#include "server/settings_check.h"

namespace {

using teletensor::core::MutexLock;
using teletensor::core::Status;
using teletensor::server::Clock;
using teletensor::server::Config;

constexpr int kUsage = 2;  // Exit code for a mistake in the settings.
// Maximum memory for sums that are exchanged between daemons, in bytes.
constexpr std::uint64_t kGroupMemory = std::uint64_t{64} << 20;
// Minimum time that an embedded daemon waits for its first client; --linger may extend it.
constexpr std::chrono::seconds kFirstClient{60};
// Time for running kernels after the sessions are written to files.
constexpr std::chrono::seconds kLastKernels{5};

// Reports a mistake before the log starts, or of a command that creates a token.
int fail(const Status& status, int code = 1) {
  std::fprintf(stderr, "teletensord: %s\n", status.message().c_str());
  return code;
}

int not_started(const Status& status) {
  teletensor::server::log_failure("not_started", status.message());
  return 1;
}

// Creates a token for "USER:ROLE". Writes it to the new file `output`, or to standard output if
// `output` is empty.
int create_token(const std::string& wanted, const std::string& output,
                 const std::string& state_dir) {
  int file = STDOUT_FILENO;
  // The file is created before the token, so that no token is created that cannot be written.
  if (!output.empty()) {
    const auto made = teletensor::server::new_private_file(output);
    if (!made.ok()) return fail(made.status());
    file = *made;
  }
  const std::size_t colon = wanted.find(':');
  const std::string role = colon == std::string::npos ? "user" : wanted.substr(colon + 1);
  teletensor::server::Tokens tokens(state_dir);
  const auto made = tokens.create(wanted.substr(0, colon), teletensor::server::role_of(role), 0);
  if (made.ok() && dprintf(file, "%s\n", made->secret.c_str()) > 0) return 0;
  const std::string reason = std::strerror(errno);
  if (!output.empty()) unlink(output.c_str());
  if (made.status().code() == teletensor::core::Code::kInvalidArgument) {
    return fail(made.status(), kUsage);
  }
  return fail(made.ok() ? Status(teletensor::core::Code::kUnavailable, "the token: " + reason)
                        : made.status());
}

void log_signal(int number) { teletensor::server::log_info("signal", {{"number", number}}); }

// Waits for SIGTERM, SIGINT or SIGHUP; an embedded daemon also waits until it has had no client for
// a while. Returns true if a device is lost and the next daemon can continue the sessions.
bool wait_for_end(const sigset_t& signals, const Config& config,
                  const teletensor::engine::Engine& engine, teletensor::server::Server& server) {
  const Clock::time_point started = Clock::now();
  const auto linger = std::chrono::duration<double>(config.linger_seconds);
  bool had_client = false, gpus = false, lost = false;
  for (const teletensor::core::Device& device : engine.devices()) {
    gpus = gpus || device.kind == teletensor::core::DeviceKind::kCuda;
  }
  while (true) {
    const timespec tick{0, 200'000'000};
    const int signal = config.embedded || gpus ? sigtimedwait(&signals, nullptr, &tick)
                                               : sigwaitinfo(&signals, nullptr);
    if (signal > 0) {
      log_signal(signal);
      return false;
    }
    if (gpus && !lost && !engine.health().ok()) {
      lost = true;
      const bool again = server.recovery().on() && teletensor::server::may_restart();
      teletensor::server::log_error("device_lost",
                                    {{"restart", again}, {"reason", engine.health().message()}});
      if (again) return true;
    }
    if (!config.embedded) continue;
    const auto idle = server.leases().table().idle();
    had_client = had_client || server.leases().table().opened() > 0;
    const std::chrono::duration<double> first = kFirstClient;
    const auto patience = had_client ? linger : std::max(linger, first);
    if (idle > patience && Clock::now() - started > patience) {
      teletensor::server::log_info("no_clients", {{"idle_ms", idle.count()}});
      return false;
    }
  }
}

// Ends the server in a thread that exists from the start, because the system may refuse to create a
// thread later.
class Ending {
 public:
  explicit Ending(teletensor::server::Server& server) : server_(server) {
    thread_ = teletensor::core::start_thread([this] { work(); });
  }

  // Writes sessions to files and stops the server; the time limit of --drain starts now. One of
  // `signals` ends the writing. If the daemon is to start `again`, the first signal only makes
  // `again` false. Returns false if everything is written but an uninterruptible kernel still runs
  // in a thread, which then ends with the process.
  bool run(const sigset_t& signals, bool& again) {
    {
      MutexLock lock(mutex_);
      since_ = Clock::now();
    }
    changed_.notify_all();
    const timespec tick{0, 20'000'000};
    Clock::time_point written = Clock::time_point::max();
    while (!done_) {
      const int signal = sigtimedwait(&signals, nullptr, &tick);
      if (signal > 0 && again) {
        log_signal(signal);
        again = false;
      } else if (signal > 0) {
        server_.hurry();
      }
      if (!server_.recovery().written()) continue;
      written = std::min(written, Clock::now());
      if (Clock::now() - written > kLastKernels) return false;
    }
    thread_.join();
    return true;
  }

 private:
  void work() {
    Clock::time_point since;
    {
      MutexLock lock(mutex_);
      while (!since_) changed_.wait(mutex_);
      since = *since_;
    }
    server_.drain(since);
    done_ = true;
  }

  teletensor::server::Server& server_;
  teletensor::core::Mutex mutex_;
  teletensor::core::CondVar changed_;
  std::optional<Clock::time_point> since_ TT_GUARDED_BY(mutex_);
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// The directory of the files to which tensors are moved. Precondition: state_dir is set.
std::string disk_dir(const Config& config) {
  if (!config.disk_dir.empty()) return config.disk_dir;
  if (!config.state_dir->empty()) return *config.state_dir + "/spill";
  const char* const temporary = std::getenv("TMPDIR");
  return temporary != nullptr && *temporary != 0 ? temporary : "/var/tmp";
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = teletensor::server::parse_command_line(argc, argv, TELETENSOR_VERSION);
  if (parsed.exit_code >= 0) {
    std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  if (parsed.gpu_paths) {
    for (const auto& [op, path] : teletensor::engine::gpu_paths()) {
      std::printf("%s %s\n", op.c_str(), path.c_str());
    }
    return 0;
  }
  if (parsed.ops) {
    for (const std::string& line : teletensor::server::declarations(teletensor::ops::catalog())) {
      std::puts(line.c_str());
    }
    return 0;
  }
  Config config = parsed.config;
  if (parsed.create_token.empty()) {
    const Status wrong = teletensor::server::check_settings(
        config, teletensor::server::SettingSources(argc, argv, parsed.file));
    if (!wrong.ok()) return fail(wrong, kUsage);
  }
  // Signals are blocked before threads are created, so that only this thread receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // Closing the terminal ends the daemon properly, unless nohup has made it ignore SIGHUP.
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A file that reaches its size limit is an error like a full disk.
  teletensor::core::keep_reserve();
  // Keeps the buffers into which gRPC reads uploads in the heap, instead of returning them to the
  // system each time: page faults took a third of an upload's time
  // (docs/design/0016-bulk-streams.md).
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  teletensor::server::start_log(config.log_level, config.log_format == "json"
                                                      ? teletensor::server::LogFormat::kJson
                                                      : teletensor::server::LogFormat::kLogfmt);
  unsetenv("GRPC_TRACE");  // With GRPC_TRACE set, gRPC would write tokens to the log.

  if (!config.socket) {
    const auto path = teletensor::server::default_socket();
    if (!path.ok()) return not_started(path.status());
    config.socket = *path;
  }
  if (!config.state_dir) config.state_dir = teletensor::server::default_state_dir();
  const std::string& state_dir = *config.state_dir;
  if (!parsed.create_token.empty()) {
    return create_token(parsed.create_token, parsed.output, state_dir);
  }

  teletensor::engine::EngineOptions engine_options;
  for (const auto& [name, user] : config.users) {
    if (user.guaranteed == 0) continue;
    engine_options.guarantees.push_back(
        {name, user.guaranteed, user.memory.value_or(config.user_memory)});
  }
  engine_options.lanes = config.lanes;
  engine_options.host_memory = config.host_memory;
  engine_options.cuda_driver = config.cuda_driver;
  engine_options.cuda_compiler = config.cuda_compiler;
  engine_options.device_memory = config.device_memory;
  engine_options.device_patience = config.device_patience;
  if (!state_dir.empty()) engine_options.kernel_cache = state_dir + "/kernels";
  engine_options.log = [](bool bad, const std::string& line) {
    bad ? teletensor::server::log_error("device", {{"text", line}})
        : teletensor::server::log_info("device", {{"text", line}});
  };
  engine_options.disk_memory = config.disk_memory;
  engine_options.user_disk_memory = config.user_disk_memory;
  engine_options.disk_dir = disk_dir(config);
  engine_options.sim_devices = config.sim_devices;
  engine_options.sim_memory = config.sim_memory;
  engine_options.sim_null = config.sim_null;
  teletensor::core::Status why;
  // The state directory is checked before the engine creates folders in it.
  if (!state_dir.empty()) {
    why = teletensor::server::private_state(state_dir);
    if (why.code() == teletensor::core::Code::kPermissionDenied) return not_started(why);
  }
  std::unique_ptr<teletensor::server::Peers> peers;
  if (!config.peer_name.empty()) {
    const auto checked = teletensor::server::peer_options(config);
    if (!checked.ok()) return not_started(checked.status());
    auto made = teletensor::server::Peers::create(*checked);
    if (!made.ok()) return not_started(made.status());
    peers = std::move(*made);
    engine_options.group_memory = kGroupMemory;
  }
  const auto engine = teletensor::engine::Engine::create(engine_options, &why);
  if (!engine) return not_started(why);
  auto* const groups = peers ? engine->connect(*peers) : nullptr;
  teletensor::server::ServerOptions options{.config = config,
                                            .limits = teletensor::server::client_limits(config),
                                            .health_probe = true,
                                            .shutdown = [] { kill(getpid(), SIGTERM); },
                                            .peers = peers.get(),
                                            .version = TELETENSOR_VERSION};
  auto server = teletensor::server::Server::start(*engine, std::move(options));
  if (!server.ok()) return not_started(server.status());
  if (groups != nullptr) why = peers->start(*groups, &(*server)->moves());
  if (!why.ok()) return not_started(why);

  Ending ending(**server);
  std::string line = "teletensord " TELETENSOR_VERSION " ready";
  if (!(*server)->tcp().empty()) line += " tcp=" + (*server)->tcp();
  if (!(*server)->socket().empty()) line += " unix=" + (*server)->socket();
  if (!(*server)->http().empty()) line += " http=" + (*server)->http();
  if (peers) line += " peers=" + peers->address();
  if (const std::string url = (*server)->dashboard_url(); !url.empty()) line += " url=" + url;
  std::puts(line.c_str());
  std::fflush(stdout);
  teletensor::server::log_info("ready", {{"tcp", (*server)->tcp()}, {"unix", (*server)->socket()}});

  teletensor::server::notify_supervisor("READY=1");
  // A signal that comes after run() stays pending, also for the program that restart() executes.
  bool again = wait_for_end(signals, config, *engine, **server);
  if (!again) teletensor::server::notify_supervisor("STOPPING=1");
  const bool whole = ending.run(signals, again);
  // Peers are stopped last; the sessions have told their groups that they end.
  if (peers) peers->stop();
  int status = 0;
  if (again) {
    teletensor::server::log_failure("not_restarted", teletensor::server::restart(argv).message());
    status = 1;
  }
  teletensor::server::log_info("stopped", {{"kernel_running", !whole}});
  if (whole) return status;
  // Exits without destructors, because the running kernel's thread still uses objects that they
  // would destroy.
  std::_Exit(status);
}
