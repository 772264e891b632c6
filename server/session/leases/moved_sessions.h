// MovedSessions records the sessions of this daemon that have moved to a peer, and those that are
// being moved here. Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

class MovedSessions {
 public:
  // The address at which the client of a moved session finds it.
  struct Place {
    std::string user, name;  // `name` is empty if the client has given the session no name.
    std::string address;     // Address of the peer: "HOST:PORT" or "unix:/path".
    std::string socket;  // "unix:/path" for clients on the same machine. Empty if there is none.

    const std::string& for_client(bool by_socket) const {
      return by_socket && !socket.empty() ? socket : address;
    }
  };
  // Records that the session with this token has moved.
  void gone(const std::string& token, Place place);
  void forget(const std::string& token);
  std::optional<Place> find(std::string_view token) const;
  std::optional<Place> find(std::string_view user, std::string_view name) const;

  // Records that a session is being moved here. Until arrived(), its token is known and its name is
  // reserved. Returns false if another session of that name is being moved here. `name` may be
  // empty.
  bool expect(const std::string& token, const std::string& user, const std::string& name);
  void arrived(const std::string& token);
  bool expected(std::string_view user, std::string_view name) const;

  // Returns the reason why the session with this token is not here, with Ending::word in `word`.
  // Returns OK if the token is unknown.
  core::Status of(std::string_view token, std::string* word) const;

 private:
  mutable core::Mutex mutex_;
  // Sessions that have moved to a peer, by token.
  std::map<std::string, Place, std::less<>> gone_ TT_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<std::string, std::string>, std::less<>> expected_
      TT_GUARDED_BY(mutex_);  // User and name of sessions that are being moved here, by token.
};

}  // namespace teletensor::server
