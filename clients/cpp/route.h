// Route: how the calls of a connection reach the daemon that has its session. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clients/cpp/credentials.h"
#include "clients/session/channel.h"

namespace teletensor::client {

class Route {
 public:
  Route(std::string address, Credentials credentials);

  std::string address() const;
  // For one call: the next call may need another channel.
  std::shared_ptr<Channel> channel() const;
  // Later calls carry the token of the session. Before other threads use this route.
  void set_session(const std::string& token);
  // Later calls use a new channel to the same daemon: gRPC's own next attempt may be seconds away.
  void connect_again();
  // The session is with the daemon at this address, and later calls go there. INVALID_ARGUMENT
  // where the credentials are not for that address (Credentials::at); then nothing changes.
  core::Status follow(const std::string& address);

 private:
  void connect();  // with mutex_, or before other threads use this route
  void set_metadata();

  mutable std::mutex mutex_;
  std::string address_;
  Credentials credentials_;
  std::string session_;  // its token
  std::shared_ptr<Channel> channel_;
};

}  // namespace teletensor::client
