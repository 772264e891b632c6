#include "server/admin/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "engine/core/memory/reserve.h"

namespace teletensor::server {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Page {
 public:
  // Starts a metric family, whose rows follow.
  void family(const char* name, const char* help, MetricType type = MetricType::Gauge) {
    families_.push_back({name, help, type, {}});
  }
  void row(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  void one(const char* name, const char* help, double value, MetricType type = MetricType::Gauge) {
    family(name, help, type);
    row(value);
  }
  std::string text(MetricsFormat format) const {
    std::string text = prometheus::TextSerializer().Serialize(families_);
    if (format == MetricsFormat::kPrometheus) return text;
    // OpenMetrics has a counter's name without its suffix where it describes the family.
    constexpr std::string_view kSuffix = "_total";
    for (const MetricFamily& family : families_) {
      if (family.type != MetricType::Counter) continue;
      for (const char* line : {"# HELP ", "# TYPE "}) {
        const std::size_t at = text.find(line + family.name + " ");
        const std::size_t end = at + std::strlen(line) + family.name.size();
        text.erase(end - kSuffix.size(), kSuffix.size());
      }
    }
    return text + "# EOF\n";
  }

 private:
  std::vector<MetricFamily> families_;
};

struct UserRow {
  std::uint64_t sessions = 0, used = 0;
  double lane_seconds = 0;
  std::uint64_t commands = 0;
  std::uint64_t state = 0, not_saved = 0;
  std::map<std::string, std::uint64_t> memory;  // Bytes in use, by device.

  void add(const UserRow& other) {
    sessions += other.sessions;
    used += other.used;
    lane_seconds += other.lane_seconds;
    commands += other.commands;
    state += other.state;
    not_saved += other.not_saved;
    for (const auto& [device, bytes] : other.memory) memory[device] += bytes;
  }
};

std::map<std::string, UserRow> rows_of(const Overview& all, const Counters& counters,
                                       const StateUse& state_use, const Caller& caller) {
  std::map<std::string, UserRow> users;
  for (const SessionView& view : all.sessions) {
    UserRow row{1, view.used(), view.lane_seconds, view.completed, 0, 0, {}};
    for (const engine::MemoryUse& use : view.memory) {
      row.memory[core::to_string(use.device)] += use.used;
    }
    users[view.user].add(row);
  }
  for (const auto& [user, totals] : counters.users()) {
    users[user].add({0,
                     0,
                     static_cast<double>(totals.lane_ns) * 1e-9,
                     totals.commands,
                     0,
                     totals.not_saved,
                     {}});
  }
  for (const auto& [user, bytes] : state_use.users()) users[user].state += bytes;
  // Where anonymous callers are allowed, the operator does not tell users apart.
  if (caller.role == Role::kUser && caller.user != kAnonymous) {
    std::erase_if(users, [&](const auto& row) { return row.first != caller.user; });
  }
  if (users.size() <= kMaxLabelledUsers) return users;
  std::vector<std::pair<std::string, UserRow>> order(users.begin(), users.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.used, a.second.lane_seconds) >
           std::pair(b.second.used, b.second.lane_seconds);
  });
  std::map<std::string, UserRow> bounded;
  for (std::size_t i = 0; i < order.size(); ++i) {
    bounded[i < kMaxLabelledUsers ? order[i].first : "other"].add(order[i].second);
  }
  return bounded;
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Returns when the process started, in seconds since the UNIX epoch, or 0 if the system does not
// tell.
double start_seconds() {
  double booted = 0;
  std::ifstream system("/proc/stat");
  for (std::string word; system >> word;) {
    if (word == "btime") system >> booted;
  }
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name of the program, in parentheses, may contain spaces; field 3 follows it.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  const double ticks = std::strtod(field.c_str(), nullptr);
  return booted == 0 ? 0 : booted + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double open_files() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++count;
  }
  return count;
}

// Adds the figures that every process exports by Prometheus' conventions.
void add_process(Page& page) {
  const core::UsesReserve reserve;  // Functions of std::filesystem allocate and are noexcept.
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  page.one("process_cpu_seconds_total", "CPU time of the daemon, user and system.", cpu_seconds(),
           MetricType::Counter);
  page.one("process_resident_memory_bytes", "Resident memory of the daemon.",
           resident * page_bytes);
  page.one("process_virtual_memory_bytes", "Address space of the daemon.", pages * page_bytes);
  page.one("process_open_fds", "Open file descriptors of the daemon.", open_files());
  page.one("process_max_fds", "Maximum number of open file descriptors.",
           static_cast<double>(files.rlim_cur));
  page.one("process_start_time_seconds", "When the daemon started, since the UNIX epoch.",
           start_seconds());
}

const char* const kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

void add_users(Page& page, const std::map<std::string, UserRow>& users) {
  page.family("teletensor_sessions", "Sessions that are open, by user.");
  for (const auto& [user, row] : users) {
    page.row(static_cast<double>(row.sessions), {{"user", user}});
  }
  page.family("teletensor_user_memory_bytes", "Bytes that users hold, by device.");
  for (const auto& [user, row] : users) {
    for (const auto& [device, bytes] : row.memory) {
      page.row(static_cast<double>(bytes), {{"user", user}, {"device", device}});
    }
  }
  page.family("teletensor_user_lane_seconds_total", "Lane time that users have had.",
              MetricType::Counter);
  for (const auto& [user, row] : users) page.row(row.lane_seconds, {{"user", user}});
  page.family("teletensor_user_commands_total", "Commands of users that have run.",
              MetricType::Counter);
  for (const auto& [user, row] : users) {
    page.row(static_cast<double>(row.commands), {{"user", user}});
  }
  page.family("teletensor_user_state_bytes",
              "Files of users' sessions and published tensors in the state directory.");
  for (const auto& [user, row] : users) {
    page.row(static_cast<double>(row.state), {{"user", user}});
  }
  page.family("teletensor_snapshots_refused_total",
              "Snapshots that were not written because of --user-state-memory.",
              MetricType::Counter);
  for (const auto& [user, row] : users) {
    page.row(static_cast<double>(row.not_saved), {{"user", user}});
  }
}

// Data transfers between devices and the host.
void add_moved(Page& page, const std::vector<engine::MemoryUse>& devices) {
  const auto family = [&](const char* name, const char* help, auto&& out, auto&& in) {
    page.family(name, help, MetricType::Counter);
    for (const engine::MemoryUse& use : devices) {
      if (use.device.kind == core::DeviceKind::kCpu) continue;
      const std::string device = core::to_string(use.device);
      page.row(out(use.moved), {{"device", device}, {"direction", "out"}});
      page.row(in(use.moved), {{"device", device}, {"direction", "in"}});
    }
  };
  using Moved = const engine::Moved&;
  family(
      "teletensor_device_moved_bytes_total",
      "Bytes of tensors moved from a GPU to the host and back.",
      [](Moved moved) { return static_cast<double>(moved.out); },
      [](Moved moved) { return static_cast<double>(moved.in); });
  family(
      "teletensor_device_moving_seconds_total", "Time that moving them took.",
      [](Moved moved) { return static_cast<double>(moved.out_ns) * 1e-9; },
      [](Moved moved) { return static_cast<double>(moved.in_ns) * 1e-9; });
}

// Data transfers between memory and disk.
void add_disk(Page& page, const Overview& all, const engine::Moved& moved) {
  const auto number = [](std::uint64_t n) { return static_cast<double>(n); };
  page.family(
      "teletensor_disk_bytes",
      "Tensors moved to the disk: their bytes (tensors), their files' (files), the most that "
      "these may be (total).");
  for (const engine::MemoryUse& use : all.devices) {
    if (use.disk_quota == 0) continue;
    page.row(number(use.away), {{"kind", "tensors"}});
    page.row(number(use.disk_used), {{"kind", "files"}});
    page.row(number(use.disk_quota), {{"kind", "total"}});
  }
  page.family("teletensor_moved_bytes_total", "Bytes of tensors moved to the disk and back.",
              MetricType::Counter);
  page.row(number(moved.out), {{"direction", "out"}});
  page.row(number(moved.in), {{"direction", "in"}});
  page.family("teletensor_moving_seconds_total", "Time that moving them took.",
              MetricType::Counter);
  page.row(number(moved.out_ns) * 1e-9, {{"direction", "out"}});
  page.row(number(moved.in_ns) * 1e-9, {{"direction", "in"}});
  page.one("teletensor_moved_written_bytes_total", "Bytes written for them, compressed.",
           number(moved.written), MetricType::Counter);
  page.one("teletensor_moving_failures_total", "Files that could not be written or read.",
           number(moved.failures), MetricType::Counter);
}

using Activities = std::vector<std::pair<core::Device, program::Activity>>;

// Activity of GPUs. The operators that run on the host are those of the catalog without a kernel,
// so there are few labels.
void add_accelerators(Page& page, const Activities& all) {
  using Rows = std::vector<std::pair<std::string, std::uint64_t>>;
  const auto one = [&](const char* name, const char* help, MetricType type, auto&& value) {
    page.family(name, help, type);
    for (const auto& [device, did] : all) {
      page.row(static_cast<double>(value(did)), {{"device", core::to_string(device)}});
    }
  };
  const auto several = [&](const char* name, const char* help, const char* label, auto&& rows) {
    page.family(name, help, MetricType::Counter);
    for (const auto& [device, did] : all) {
      for (const auto& [value, count] : rows(did)) {
        page.row(static_cast<double>(count), {{"device", core::to_string(device)}, {label, value}});
      }
    }
  };
  using Did = const program::Activity&;
  one("teletensor_device_busy_seconds_total",
      "Time of GPUs in batches of work that have ended; two at once count twice.",
      MetricType::Counter, [](Did did) { return did.busy_seconds(); });
  one("teletensor_device_batches_in_flight", "Batches of work that GPUs have not ended.",
      MetricType::Gauge, [](Did did) { return did.in_flight; });
  one("teletensor_device_launches_total",
      "What the driver was asked to start: kernels, and graphs of several.", MetricType::Counter,
      [](Did did) { return did.launches; });
  one("teletensor_device_graphs_total", "Graphs among them.", MetricType::Counter,
      [](Did did) { return did.graphs; });
  one("teletensor_device_kernels", "Kernels that are loaded on GPUs.", MetricType::Gauge,
      [](Did did) { return did.loaded; });
  several("teletensor_device_work_total", "What ran as kernels of GPUs.", "kind", [](Did did) {
    return Rows{{"instruction", did.instructions}, {"loop", did.loops}};
  });
  several("teletensor_device_kernels_made_total",
          "Kernels compiled for GPUs, read from the disk, refused by the compiler.", "how",
          [](Did did) {
            return Rows{{"compiled", did.compiled}, {"read", did.read}, {"refused", did.refused}};
          });
  several("teletensor_device_host_calls_total",
          "Instructions on tensors of GPUs that ran on the host.", "op",
          [](Did did) { return did.on_host; });
}

void add_groups(Page& page, const std::vector<runtime::GroupFacts>& all) {
  using State = runtime::GroupFacts::State;
  page.family("teletensor_groups",
              "Groups of sessions that run collectives together, by state: ranks have not all "
              "joined (forming), running, or ended, and not left by all ranks.");
  for (const State state : {State::kForming, State::kRunning, State::kEnded}) {
    const auto count =
        std::count_if(all.begin(), all.end(), [&](const auto& g) { return g.state == state; });
    page.row(static_cast<double>(count), {{"state", text_of(state)}});
  }
  double computing = 0, waiting = 0, open = 0;
  for (const runtime::GroupFacts& group : all) {
    open += static_cast<double>(group.open);
    for (const runtime::GroupFacts::Member& member : group.members) {
      if (member.daemon.empty() && !member.who.empty()) ++(member.waits ? waiting : computing);
    }
  }
  page.family("teletensor_group_ranks",
              "Ranks of groups that are sessions of this daemon, by whether they wait for others.");
  page.row(computing, {{"waits", "no"}});
  page.row(waiting, {{"waits", "yes"}});
  page.one(
      "teletensor_open_collectives",
      "Collectives and transfers that ranks of this daemon have begun and that have not ended.",
      open);
}

// Connections to other daemons. Their names come from the operator.
void add_peers(Page& page, const Peers& peers) {
  const std::vector<PeerFacts> all = peers.facts();
  const auto family = [&](const char* name, const char* help, MetricType type, auto&& value) {
    page.family(name, help, type);
    for (const PeerFacts& each : all) {
      page.row(static_cast<double>(value(each)), {{"peer", each.name}});
    }
  };
  using Facts = const PeerFacts&;
  family("teletensor_peer_connected", "1 while there is a connection to this peer.",
         MetricType::Gauge, [](Facts peer) { return peer.connected ? 1 : 0; });
  family("teletensor_peer_connections_total",
         "Connections to this peer that have stood; all but the first one are reconnections.",
         MetricType::Counter, [](Facts peer) { return peer.connections; });
  family("teletensor_peer_losses_total",
         "How often this peer was given up, which ends its groups: it was away for "
         "--peer-patience, or has broken the protocol.",
         MetricType::Counter, [](Facts peer) { return peer.losses; });
  family("teletensor_peer_sent_bytes_total",
         "Bytes sent to this peer, before TLS; what is sent again counts again.",
         MetricType::Counter, [](Facts peer) { return peer.sent; });
  family("teletensor_peer_received_bytes_total", "Bytes received from this peer, after TLS.",
         MetricType::Counter, [](Facts peer) { return peer.received; });
  page.one("teletensor_refused_peers_total",
           "Connections to the address of peers that were refused: unknown names, other "
           "certificates or versions, no hello.",
           static_cast<double>(peers.refused()), MetricType::Counter);
}

void add_stores(Page& page, const KeyStores::Total& total) {
  page.one("teletensor_stores", "Stores of all users.", static_cast<double>(total.stores));
  page.one("teletensor_store_bytes",
           "Bytes of keys, values and awaited keys in stores, with a fixed cost for each.",
           static_cast<double>(total.bytes));
  page.one("teletensor_store_waits", "Calls that wait for a key or a store.",
           static_cast<double>(total.waits));
}

void add_refusals(Page& page, const Counters& counters) {
  struct Row {
    Refusal why;
    const char *by, *reason;
  };
  const Row rows[] = {
      {Refusal::kHttpPlaces, "http", "places"}, {Refusal::kHttpReplaced, "http", "replaced"},
      {Refusal::kHttpHead, "http", "head"},     {Refusal::kHttpBody, "http", "body"},
      {Refusal::kHttpTime, "http", "time"},     {Refusal::kGrpcStreams, "grpc", "streams"},
      {Refusal::kSocketUser, "socket", "user"}};
  page.family("teletensor_refused_connections_total",
              "Connections, requests and streams that exceeded a limit, by reason.",
              MetricType::Counter);
  for (const Row& row : rows) {
    page.row(static_cast<double>(counters.refused(row.why)),
             {{"by", row.by}, {"reason", row.reason}});
  }
}

}  // namespace

std::string metrics_text(Leases& leases, const Auth& auth, const HealthProbe& probe,
                         const Services& services, const std::string& version, const Caller& caller,
                         MetricsFormat format) {
  const Overview all = overview(leases, leases.engine(), {"", Role::kAdmin});
  const Counters& counters = leases.counters();
  Page page;
  page.family("teletensor_info", "The daemon's version.");
  page.row(1, {{"version", version}});
  page.family(
      "teletensor_device_memory_bytes",
      "Memory of devices: used, peak, total; held: used or kept for whoever needs it next; locked: "
      "what of the host's is page-locked for GPUs; away: tensors of a GPU that have moved to the "
      "host or the disk.");
  for (const engine::MemoryUse& use : all.devices) {
    const std::string device = core::to_string(use.device);
    page.row(static_cast<double>(use.device_used), {{"device", device}, {"kind", "used"}});
    page.row(static_cast<double>(use.peak), {{"device", device}, {"kind", "peak"}});
    page.row(static_cast<double>(use.device_total), {{"device", device}, {"kind", "total"}});
    page.row(static_cast<double>(use.device_held), {{"device", device}, {"kind", "held"}});
    // The host's memory that was moved to disk is reported with the disk.
    const bool host = use.device.kind == core::DeviceKind::kCpu;
    page.row(static_cast<double>(host ? use.locked : use.away),
             {{"device", device}, {"kind", host ? "locked" : "away"}});
  }
  add_moved(page, all.devices);
  add_accelerators(page, leases.engine().activity());
  add_disk(page, all, leases.engine().moved());
  std::uint64_t handles = 0, queued = 0;
  for (const SessionView& view : all.sessions) handles += view.handles, queued += view.queued;
  page.one("teletensor_handles", "Names that clients hold.", static_cast<double>(handles));
  page.one("teletensor_queued_commands", "Commands received that have not run.",
           static_cast<double>(queued));
  add_users(page, rows_of(all, counters, services.state_use, caller));
  add_groups(page, leases.engine().groups());
  if (services.peers != nullptr) add_peers(page, *services.peers);
  add_stores(page, services.stores.total());

  page.one("teletensor_sessions_opened_total", "Sessions opened.",
           static_cast<double>(leases.table().opened()), MetricType::Counter);
  page.family("teletensor_sessions_ended_total", "Sessions ended, by status and reason.",
              MetricType::Counter);
  for (const auto& [why, count] : counters.ended()) {
    page.row(static_cast<double>(count), {{"code", kCodeNames[why.first]}, {"reason", why.second}});
  }
  page.one("teletensor_refused_callers_total", "Calls without the right to make them.",
           static_cast<double>(auth.refused()), MetricType::Counter);
  page.one("teletensor_refused_sessions_total", "Sessions refused: versions, limits.",
           static_cast<double>(counters.refused_sessions), MetricType::Counter);
  add_refusals(page, counters);
  page.one("teletensor_slow_instructions_total", "Instructions that went into the slow log.",
           static_cast<double>(leases.slow_log().added()), MetricType::Counter);
  page.one("teletensor_ready", "1 while the canary's computations are right and recent.",
           probe.ready() ? 1 : 0);
  page.one("teletensor_canary_age_seconds", "Since the canary's last right answer.",
           probe.age_seconds());
  page.one("teletensor_canary_seconds", "How long its last computation took, queue included.",
           probe.last_seconds());
  add_process(page);
  return page.text(format);
}

}  // namespace teletensor::server
