#include "server/net/http.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "engine/core/threads.h"
#include "server/admin/admin.h"
#include "server/admin/history.h"
#include "server/admin/metrics.h"
#include "server/admin/overview.h"
#include "server/admin/state_json.h"
#include "server/base/listen.h"
#include "server/base/secrets.h"
#include "server/net/assets.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr std::size_t kThreads = 8;
constexpr std::size_t kMaxBody = 64 << 10;
constexpr std::size_t kRunSecretBytes = 32;
constexpr std::chrono::milliseconds kTick{20};

int http_status(const Status& status) {
  switch (static_cast<int>(status.code())) {
    case static_cast<int>(Code::kInvalidArgument):
      return 400;
    case static_cast<int>(kUnauthenticated):
      return 401;
    case static_cast<int>(Code::kPermissionDenied):
      return 403;
    case static_cast<int>(Code::kNotFound):
    case static_cast<int>(Code::kAborted):
      return 404;
    default:
      return 500;
  }
}

void refuse(httplib::Response& response, int status, const std::string& text) {
  response.status = status;
  response.set_content(text + "\n", "text/plain; charset=utf-8");
}

// Makes the answer whole, as HTTP permits. The library would send every range that a request names,
// also ranges that overlap, so that 6 KB of request cost 400 MB of answer. It has no setting for
// this and passes its request, which is not const itself, to handlers as const.
void ignore_ranges(const httplib::Request& request) {
  const_cast<httplib::Request&>(request).ranges.clear();
}

// The threads that answer requests. The library's own queue creates them in its listening thread,
// after bind(), and cannot continue if creating one fails.
class Workers final : public httplib::TaskQueue {
 public:
  Workers() {
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads_.push_back(core::start_thread([this] { work(); }));
    }
  }
  void enqueue(std::function<void()> job) override {
    {
      MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }
  void shutdown() override {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    while (true) {
      std::function<void()> job;
      {
        MutexLock lock(mutex_);
        while (jobs_.empty() && !stop_) changed_.wait(mutex_);
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<std::function<void()>> jobs_ TT_GUARDED_BY(mutex_);
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Shuts down every TCP connection of this process at the local port `port`. The library does not
// expose its sockets, so they are found among all descriptors.
void end_connections(int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    const in_port_t here =
        address.ss_family == AF_INET    ? reinterpret_cast<const sockaddr_in*>(&address)->sin_port
        : address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                        : in_port_t{0};
    if (ntohs(here) == port) shutdown(fd, SHUT_RDWR);
  }
}

// Removes the port from "example.org:8080" or "[::1]:80".
std::string host_of(const std::string& value) {
  const std::size_t colon = value.rfind(':');
  const bool port = colon != std::string::npos && value.find(']', colon) == std::string::npos;
  return port ? value.substr(0, colon) : value;
}

// A numeric parameter of the query. None if it is missing or not a number.
std::optional<std::uint64_t> number_in(const httplib::Request& request, const char* name) {
  const std::string text = request.get_param_value(name);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

class Http final : public HttpServer {
 public:
  Http(HttpOptions options, Leases& leases, const Auth& auth, const HealthProbe& probe,
       const Services& services)
      : options_(std::move(options)),
        leases_(leases),
        auth_(auth),
        health_probe_(probe),
        services_(services),
        history_(leases) {}
  ~Http() override {
    if (server_) server_->stop();
    if (!thread_.joinable()) return;
    // Without this, stop() would wait for requests that clients do not send completely, and for
    // answers that they do not read.
    MutexLock lock(mutex_);
    while (!ended_) {
      end_connections(port_);
      changed_.wait_for(mutex_, kTick);
    }
    thread_.join();
  }
  const std::string& address() const override { return address_; }
  std::string dashboard_url() const override {
    return run_secret_.empty() ? "" : "http://" + address_ + "/#token=" + run_secret_;
  }

  Status bind() {
    const std::size_t colon = options_.listen.rfind(':');
    const std::string host = options_.listen.substr(0, colon);
    const int wanted = std::atoi(options_.listen.c_str() + colon + 1);
    std::string bare = host;  // The host without brackets, which getaddrinfo does not accept.
    if (bare.size() > 2 && bare.front() == '[') bare = bare.substr(1, bare.size() - 2);
    TT_RETURN_IF_ERROR(make_server());
    configure();
    const int port = wanted == 0 ? server_->bind_to_any_port(bare)
                                 : (server_->bind_to_port(bare, wanted) ? wanted : -1);
    if (port <= 0) {
      return Status(Code::kUnavailable, "http: cannot listen on " + options_.listen + ": " +
                                            why_not_free(options_.listen));
    }
    if (const std::string bits = random_hex(kRunSecretBytes);
        !options_.certificates && !bits.empty()) {
      run_secret_ = "tt_" + bits;
    }
    auto* const workers = new Workers;
    // Called once by the HTTP library, which takes ownership of the result.
    server_->new_task_queue = [workers] { return workers; };
    host_ = host;
    port_ = port;
    address_ = host + ":" + std::to_string(port);
    thread_ = core::start_thread([this] {
      server_->listen_after_bind();
      MutexLock lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    });
    // stop() has no effect before the server is running.
    while (!server_->is_running() && !ended()) std::this_thread::yield();
    return {};
  }

 private:
  bool ended() {
    MutexLock lock(mutex_);
    return ended_;
  }

  using Handler = std::function<void(const Caller&, const httplib::Request&, httplib::Response&)>;

  Status make_server() {
    if (!options_.certificates) {
      server_ = std::make_unique<httplib::Server>();
      return {};
    }
    server_ = std::make_unique<httplib::SSLServer>(
        [this](SSL_CTX& context) { return use(context, *options_.certificates); });
    return server_->is_valid() ? Status() : core::internal("http: no TLS");
  }

  void configure() {
    server_->set_keep_alive_max_count(100);
    server_->set_keep_alive_timeout(5);
    server_->set_read_timeout(5);
    server_->set_write_timeout(5);
    server_->set_payload_max_length(kMaxBody);
    // Leaves out SO_REUSEPORT, so that two daemons cannot share a port.
    server_->set_socket_options([](int) {});
    server_->set_default_headers({{"X-Content-Type-Options", "nosniff"},
                                  {"X-Frame-Options", "DENY"},
                                  {"Referrer-Policy", "no-referrer"},
                                  {"Cache-Control", "no-store"},
                                  {"Content-Security-Policy",
                                   "default-src 'none'; script-src 'self'; style-src 'self'; "
                                   "img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
                                   "form-action 'none'; frame-ancestors 'none'"}});
    server_->set_exception_handler([](const httplib::Request&, httplib::Response& response,
                                      std::exception_ptr) { refuse(response, 500, "failed"); });
    server_->set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          ignore_ranges(request);
          if (our_host(host_of(request.get_header_value("Host")))) {
            return httplib::Server::HandlerResponse::Unhandled;
          }
          refuse(response, 421, "this server does not answer for that host name (--http-name)");
          return httplib::Server::HandlerResponse::Handled;
        });
    add_routes();
  }

  bool our_host(const std::string& host) const {
    const auto& names = options_.names;
    return host == host_ || host == "localhost" || host == "127.0.0.1" || host == "[::1]" ||
           std::find(names.begin(), names.end(), host) != names.end();
  }

  void get(const std::string& path, Handler handler) {
    server_->Get(path, [this, method = "GET " + path, handler = std::move(handler)](
                           const httplib::Request& request, httplib::Response& response) {
      const Result<Caller> caller = check(method, request);
      if (!caller.ok())
        return refuse(response, http_status(caller.status()), caller.status().message());
      handler(*caller, request, response);
    });
  }

  Result<Caller> check(const std::string& method, const httplib::Request& request) const {
    return auth_.check(options_.certificates ? Way::kRemote : Way::kLoopback,
                       request.get_header_value("Authorization"), method, name_of_peer(request.ssl),
                       run_secret_);
  }

  void add_file(const std::string& path, const char* type, std::string_view contents) {
    get(path, [=](const Caller&, const httplib::Request&, httplib::Response& response) {
      response.set_content(contents.data(), contents.size(), type);
    });
  }

  // Accepts only JSON, which a page of another origin cannot send without permission, and only
  // requests from the daemon's own pages.
  Status check_origin(const httplib::Request& request) const {
    const std::string origin = request.get_header_value("Origin");
    const std::size_t host = origin.find("://");
    if (!origin.empty() && (host == std::string::npos ||
                            origin.substr(host + 3) != request.get_header_value("Host"))) {
      return Status(Code::kPermissionDenied, "not from another origin");
    }
    if (request.get_header_value("Content-Type").starts_with("application/json")) return {};
    return core::invalid("the body must have the type application/json");
  }

  // Registers a POST route with the body {"session": ID, "reason": TEXT}.
  void post(const std::string& path,
            std::function<Status(const Caller&, Lease&, std::string)> act) {
    server_->Post(path, [this, method = "POST " + path, act = std::move(act)](
                            const httplib::Request& request, httplib::Response& response) {
      Status status = check_origin(request);
      const Result<Caller> caller = status.ok() ? check(method, request) : Result<Caller>(status);
      if (!caller.ok()) {
        return refuse(response, http_status(caller.status()), caller.status().message());
      }
      const auto body = nlohmann::json::parse(request.body, nullptr, false);
      if (!body.is_object() || !body.contains("session") || !body["session"].is_number_unsigned()) {
        return refuse(response, 400, "expected {\"session\": ID}");
      }
      const auto reason = body.find("reason");
      const Result<LeaseRef> lease =
          visible(leases_, body["session"].get<std::uint64_t>(), *caller);
      status = lease.ok()
                   ? act(*caller, **lease,
                         reason != body.end() && reason->is_string() ? reason->get<std::string>()
                                                                     : std::string())
                   : lease.status();
      if (!status.ok()) return refuse(response, http_status(status), status.message());
      response.set_content("{}", "application/json");
    });
  }

  void add_files() {
    add_file("/", "text/html; charset=utf-8", assets::kIndexHtml);
    add_file("/dashboard.css", "text/css; charset=utf-8", assets::kDashboardCss);
    for (const auto& [path, script] :
         {std::pair("/dashboard.js", assets::kDashboardJs), std::pair("/page.js", assets::kPageJs),
          std::pair("/overview.js", assets::kOverviewJs),
          std::pair("/session.js", assets::kSessionJs),
          std::pair("/history.js", assets::kHistoryJs), std::pair("/chart.js", assets::kChartJs)}) {
      add_file(path, "text/javascript; charset=utf-8", script);
    }
  }

  void add_routes() {
    add_files();
    get("/api/state",
        [this](const Caller& caller, const httplib::Request&, httplib::Response& response) {
          response.set_content(state_json(leases_, health_probe_, history_, services_,
                                          options_.version, started_, caller),
                               "application/json");
        });
    get("/api/history",
        [this](const Caller& caller, const httplib::Request& request, httplib::Response& response) {
          const auto since = number_in(request, "since");
          if (request.has_param("since") && !since) {
            return refuse(response, 400, "expected ?since=NUMBER");
          }
          response.set_content(history_.json(caller, since.value_or(0)), "application/json");
        });
    get("/api/session", [this](const Caller& caller, const httplib::Request& request,
                               httplib::Response& response) {
      const auto id = number_in(request, "id");
      if (!id) return refuse(response, 400, "expected ?id=NUMBER");
      const Result<LeaseRef> lease = visible(leases_, *id, caller);
      const Result<std::string> text = lease.ok() ? session_json(leases_, **lease, history_, caller)
                                                  : Result<std::string>(lease.status());
      if (!text.ok()) {
        return refuse(response, http_status(text.status()), text.status().message());
      }
      response.set_content(*text, "application/json");
    });
    post("/api/kill", [this](const Caller& caller, Lease& lease, const std::string& reason) {
      kill(leases_, lease, caller, reason);
      return Status();
    });
    post("/api/interrupt", [](const Caller& caller, Lease& lease, const std::string&) {
      return interrupt(lease, caller);
    });
    get("/healthz", [](const Caller&, const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain; charset=utf-8");
    });
    get("/readyz", [this](const Caller&, const httplib::Request&, httplib::Response& response) {
      if (health_probe_.ready()) {
        return response.set_content(
            health_probe_.is_late() ? "ready, but all lanes are busy\n" : "ready\n",
            "text/plain; charset=utf-8");
      }
      refuse(response, 503, "not ready: " + health_probe_.trouble());
    });
    get("/metrics", [this](const Caller&, const httplib::Request&, httplib::Response& response) {
      response.set_content(metrics_text(leases_, auth_, health_probe_, services_, options_.version),
                           "text/plain; version=0.0.4; charset=utf-8");
    });
  }

  const HttpOptions options_;
  Leases& leases_;
  const Auth& auth_;
  const HealthProbe& health_probe_;
  const Services services_;
  History history_;
  std::unique_ptr<httplib::Server> server_;
  const Clock::time_point started_ = Clock::now();
  std::string host_, address_, run_secret_;
  int port_ = 0;
  core::Mutex mutex_;
  core::CondVar changed_;
  bool ended_ TT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, Leases& leases,
                                                      const Auth& auth, const HealthProbe& probe,
                                                      const Services& services) {
  auto server = std::make_unique<Http>(std::move(options), leases, auth, probe, services);
  if (Status status = server->bind(); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace teletensor::server
