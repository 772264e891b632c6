// Helpers for tests of Peers: a receiver that records its calls, daemons on loopback, and a relay
// that cuts connections.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "server/peer/peers.h"
#include "server/testing.h"

namespace teletensor::server::testing {

// Records what one daemon is told about its peers.
class Recorder final : public runtime::Fabric::Receiver {
 public:
  struct Said {
    std::uint64_t ticket = 0;
    runtime::PeerMessage::Kind kind{};
    std::string payload;
  };
  std::function<void(const std::string& peer)> on_met = [](const std::string&) {};
  std::function<core::Status(const std::string& peer, std::uint64_t ticket)> on_received =
      [](const std::string&, std::uint64_t) { return core::Status(); };

  void met(const std::string& peer) override {
    {
      core::MutexLock lock(mutex_);
      ++met_[peer];
    }
    on_met(peer);
  }
  core::Status received(const std::string& peer, const runtime::PeerMessage& message,
                        runtime::Pieces payload) override {
    {
      core::MutexLock lock(mutex_);
      said_[peer].push_back({message.ticket, message.kind, {}});
      for (const auto piece : payload)
        said_[peer].back().payload.append(piece.data(), piece.size());
    }
    return on_received(peer, message.ticket);
  }
  void lost(const std::string& peer, const std::string& why) override {
    core::MutexLock lock(mutex_);
    lost_[peer].push_back(why);
  }

  int met_count(const std::string& peer) {
    core::MutexLock lock(mutex_);
    return met_[peer];
  }
  std::vector<std::string> lost_because(const std::string& peer) {
    core::MutexLock lock(mutex_);
    return lost_[peer];
  }
  std::vector<Said> said(const std::string& peer) {
    core::MutexLock lock(mutex_);
    return said_[peer];
  }
  std::size_t said_count(const std::string& peer) {
    core::MutexLock lock(mutex_);
    return said_[peer].size();
  }

 private:
  core::Mutex mutex_;
  std::map<std::string, int> met_ TT_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<std::string>> lost_ TT_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<Said>> said_ TT_GUARDED_BY(mutex_);
};

// The part of a daemon that its peers interact with.
struct Box {
  Box(std::string name, std::map<std::string, std::string> addresses,
      std::chrono::milliseconds patience = kHang, TlsFiles tls = {})
      : recorder(std::make_unique<Recorder>()) {
    signal(SIGPIPE, SIG_IGN);  // As the daemon does; OpenSSL writes to connections that were cut.
    PeerOptions options;
    options.name = std::move(name);
    options.listen = "127.0.0.1:0";
    options.peers = std::move(addresses);
    options.patience = patience;
    options.tls = std::move(tls);
    peers = std::move(*Peers::create(std::move(options)));
  }
  Box& start() {
    const core::Status status = peers->start(*recorder);
    if (!status.ok()) throw std::runtime_error(status.message());
    return *this;
  }
  int port() const {
    const std::string& address = peers->address();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }
  // Sends a message without a payload.
  void say(const std::string& peer, std::uint64_t ticket) {
    runtime::PeerMessage message;
    message.kind = runtime::PeerMessage::Kind::kWithdraw;
    message.ticket = ticket;
    peers->send(peer, std::move(message));
  }

  std::unique_ptr<Recorder> recorder;  // The recorder outlives `peers`.
  std::unique_ptr<Peers> peers;
};

// Forwards bytes between two loopback ports, and cuts connections.
class Relay {
 public:
  explicit Relay(int target = 0) : target_(target) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    listen(listener_, 16);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepter_ = std::thread([this] { accept_all(); });
  }
  ~Relay() {
    over_ = true;
    shutdown(listener_, SHUT_RDWR);
    accepter_.join();
    for (std::thread& each : carriers_) each.join();
    close(listener_);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void aim(int target) { target_ = target; }
  // While it is shut, it closes every connection.
  void shut(bool shut) { shut_ = shut; }
  // Number of bytes that each connection may carry. Unset for no limit.
  // The budget function is constant while there are connections.
  std::function<std::int64_t()> budget;
  int cuts() const { return cuts_; }

 private:
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  void accept_all() {
    while (!over_) {
      const int near = accept(listener_, nullptr, nullptr);
      if (near < 0) continue;
      const std::int64_t most = budget ? budget() : INT64_MAX;
      carriers_.emplace_back([this, near, most] { carry(near, most); });
    }
  }

  void carry(int near, std::int64_t most) {
    const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(target_);
    if (connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      while (!over_ && !shut_ && most > 0 && pass(near, far, most)) {
      }
      if (most <= 0) ++cuts_;
    }
    close(near);
    close(far);
  }

  static bool pass(int near, int far, std::int64_t& most) {
    pollfd ends[] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
    poll(ends, 2, 10);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].revents == 0) continue;
      char bytes[65536];
      const auto wanted = std::min<std::int64_t>(most, sizeof bytes);
      const ssize_t got = recv(ends[i].fd, bytes, static_cast<std::size_t>(wanted), 0);
      if (got <= 0) return false;
      most -= got;
      for (ssize_t sent = 0; sent < got;) {
        const ssize_t part = ::send(ends[1 - i].fd, bytes + sent,
                                    static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
        if (part <= 0) return false;
        sent += part;
      }
      if (most <= 0) return true;
    }
    return true;
  }

  int listener_ = -1, port_ = 0;
  std::atomic<int> target_, cuts_{0};
  std::atomic<bool> over_{false}, shut_{false};
  std::vector<std::thread> carriers_;
  std::thread accepter_;
};

}  // namespace teletensor::server::testing
