#include "server/net/http.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "engine/core/threads.h"
#include "server/admin/admin.h"
#include "server/admin/history.h"
#include "server/admin/metrics.h"
#include "server/admin/overview.h"
#include "server/admin/state_json.h"
#include "server/base/os/listen.h"
#include "server/base/secrets.h"
#include "server/net/assets.h"
#include "server/net/bounded_server.h"
#include "server/net/http_syntax.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

constexpr std::size_t kRunSecretBytes = 32;
constexpr char kOpenMetrics[] = "application/openmetrics-text";

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
  if (status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(text + "\n", "text/plain; charset=utf-8");
}

// Removes the port from "example.org:8080" or "[::1]:80".
std::string host_of(const std::string& value) {
  const std::size_t colon = value.rfind(':');
  const bool port = colon != std::string::npos && value.find(']', colon) == std::string::npos;
  return port ? value.substr(0, colon) : value;
}

std::optional<std::uint64_t> number_of(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// A numeric parameter of the query. None if it is missing or not a number.
std::optional<std::uint64_t> number_in(const httplib::Request& request, const char* name) {
  return number_of(request.get_param_value(name));
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
    if (thread_.joinable()) thread_.join();
    server_.reset();  // Ends all connections; its threads use the other members.
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
    server_ = std::make_unique<BoundedServer>(options_.certificates.get(), leases_.counters());
    if (!server_->is_valid()) return core::internal("http: no TLS");
    configure();
    const int port = server_->bind(bare, wanted);
    if (port <= 0) {
      return Status(Code::kUnavailable, "http: cannot listen on " + options_.listen + ": " +
                                            why_not_free(options_.listen));
    }
    if (const std::string bits = random_hex(kRunSecretBytes);
        !options_.certificates && !bits.empty()) {
      run_secret_ = "tt_" + bits;
    }
    host_ = host;
    address_ = host + ":" + std::to_string(port);
    thread_ = core::start_thread([this] {
      server_->run();
      ended_ = true;
    });
    // stop() has no effect before the server is running.
    while (!server_->is_running() && !ended_) std::this_thread::yield();
    return {};
  }

 private:
  using Handler = std::function<void(const Caller&, const httplib::Request&, httplib::Response&)>;

  void configure() {
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
    server_->set_pre_routing_handler([this](const httplib::Request& request,
                                            httplib::Response& response) {
      if (const Refusal refusal = refusal_of(request)) {
        if (refusal->first == 413) leases_.counters().refused(server::Refusal::kHttpBody);
        refuse(response, refusal->first, refusal->second);
        if (refusal->first == 405) {
          response.set_header("Allow", takes_body_.contains(request.path) ? "POST" : "GET, HEAD");
        }
        return httplib::Server::HandlerResponse::Handled;
      }
      if (request.path == "*") {  // OPTIONS of the server as a whole.
        response.set_header("Allow", "GET, HEAD, POST, OPTIONS");
        response.set_content("ok\n", "text/plain; charset=utf-8");
        return httplib::Server::HandlerResponse::Handled;
      }
      return httplib::Server::HandlerResponse::Unhandled;
    });
    server_->set_post_routing_handler([](const httplib::Request&, httplib::Response& response) {
      response.set_header("Date", http_date());
    });
    add_routes();
  }

  // Why a request is refused before its body is read: the HTTP status and a text.
  using Refusal = std::optional<std::pair<int, std::string>>;

  Refusal refusal_of(const httplib::Request& request) const {
    const auto hosts = request.get_header_value_count("Host");
    if (hosts > 1) return {{400, "the request has more than one Host"}};
    if (hosts == 0 && request.version != "HTTP/1.0") return {{400, "the request has no Host"}};
    const std::string host = request.get_header_value("Host");
    if (!is_host(host)) return {{400, "Host is not the name of a host"}};
    // Every browser sends a Host, so that a request without one is not from a hostile page.
    if (hosts > 0 && !our_host(host_of(host))) {
      return {{421, "this server does not answer for that host name (--http-name)"}};
    }
    const auto lengths = request.get_header_value_count("Content-Length");
    const auto encodings = request.get_header_value_count("Transfer-Encoding");
    if (lengths + encodings > 1) return {{400, "the body has more than one length"}};
    const std::string length = request.get_header_value("Content-Length");
    const bool reads = request.method == "GET" || request.method == "HEAD" || request.path == "*";
    const bool posts = takes_body_.contains(request.path);
    if (posts && request.method != "POST") return {{405, "only POST is possible here"}};
    if (!reads && readable_.contains(request.path)) {
      return {{405, "only GET and HEAD are possible here"}};
    }
    if (reads) {
      if (encodings == 0 && length.find_first_not_of('0') == length.npos) return {};
      return {{413, "no body is expected"}};
    }
    if (!posts) return {{404, "not found"}};
    Status status = check_origin(request);
    if (status.ok()) status = check("POST " + request.path, request).status();
    if (!status.ok()) return {{http_status(status), status.message()}};
    return refusal_of_body(request, length);
  }

  Refusal refusal_of_body(const httplib::Request& request, const std::string& length) const {
    if (request.has_header("Content-Encoding")) return {{415, "the body must not be encoded"}};
    if (request.has_header("Transfer-Encoding")) {
      if (request.get_header_value("Transfer-Encoding") == "chunked") return {};
      return {{400, "the only supported transfer encoding is chunked"}};
    }
    if (length.empty()) return {{411, "the length of the body is missing"}};
    const std::optional<std::uint64_t> bytes = number_of(length);
    if (!bytes) return {{400, "the length of the body is not a number"}};
    if (*bytes > server_->limits().body) return {{413, "the body is too large"}};
    return {};
  }

  bool our_host(const std::string& host) const {
    const auto& names = options_.names;
    const auto is_it = [&](std::string_view name) { return equals_ignoring_case(host, name); };
    return is_it(host_) || is_it("localhost") || is_it("127.0.0.1") || is_it("[::1]") ||
           std::any_of(names.begin(), names.end(), is_it);
  }

  void get(const std::string& path, Handler handler) {
    readable_.insert(path);
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
    takes_body_.insert(path);
    server_->Post(path, [this, method = "POST " + path, act = std::move(act)](
                            const httplib::Request& request, httplib::Response& response) {
      const Result<Caller> caller = check(method, request);
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
      const Status status =
          lease.ok() ? act(*caller, **lease,
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
    get("/metrics", [this](const Caller& caller, const httplib::Request& request,
                           httplib::Response& response) {
      const bool open = request.get_header_value("Accept").find(kOpenMetrics) != std::string::npos;
      response.set_header("Vary", "Accept");
      response.set_content(
          metrics_text(leases_, auth_, health_probe_, services_, options_.version, caller,
                       open ? MetricsFormat::kOpenMetrics : MetricsFormat::kPrometheus),
          open ? std::string(kOpenMetrics) + "; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8");
    });
  }

  const HttpOptions options_;
  Leases& leases_;
  const Auth& auth_;
  const HealthProbe& health_probe_;
  const Services services_;
  History history_;
  std::unique_ptr<BoundedServer> server_;
  std::set<std::string> readable_, takes_body_;  // The paths of GET and of POST routes.
  const Clock::time_point started_ = Clock::now();
  std::string host_, address_, run_secret_;
  std::atomic<bool> ended_ = false;  // The listening thread's result.
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
