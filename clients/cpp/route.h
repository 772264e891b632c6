// Route leads the calls of a connection to the daemon that has its session. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clients/cpp/credentials.h"
#include "clients/session/stream/channel.h"

namespace teletensor::client {

class Route {
 public:
  Route(std::string address, Credentials credentials);

  std::string address() const;
  // The channel for one call; the next call may need another one.
  std::shared_ptr<Channel> channel() const;
  // Sets the session token that later calls carry. Must be called before other threads use this
  // route.
  void set_session(const std::string& token);
  // Makes later calls use a new channel to the same daemon, because gRPC may wait seconds before it
  // tries again on the old one.
  void connect_again();
  // Directs later calls to the daemon at this address, which has the session now. INVALID_ARGUMENT,
  // without a change, if the credentials are not for that address (Credentials::at).
  core::Status follow(const std::string& address);

 private:
  // Creates the channel. Precondition: mutex_ is locked, or no other thread uses this route yet.
  void connect();
  void set_metadata();

  mutable std::mutex mutex_;
  std::string address_;
  Credentials credentials_;
  std::string session_;  // The token of the session.
  std::shared_ptr<Channel> channel_;
};

}  // namespace teletensor::client
