// Whereabouts: what a daemon knows of sessions that are with a peer: those that have moved there,
// and those that are on their way here. Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

class Whereabouts {
 public:
  // Where the client of a session that has moved finds it.
  struct Place {
    std::string user, name;  // name "": the session has none that its client has given
    std::string address;     // "HOST:PORT" or "unix:/path"
    std::string socket;      // "unix:/path" for clients of the same box; "": none

    const std::string& for_client(bool by_socket) const {
      return by_socket && !socket.empty() ? socket : address;
    }
  };
  // The session of this token has moved.
  void gone(const std::string& token, Place place);
  void forget(const std::string& token);
  std::optional<Place> find(std::string_view token) const;
  std::optional<Place> find(std::string_view user, std::string_view name) const;

  // A session comes from a peer: until arrived() its token is known, and its name is taken. False:
  // another one of that name comes already. `name` "": none.
  bool expect(const std::string& token, const std::string& user, const std::string& name);
  void arrived(const std::string& token);
  bool expected(std::string_view user, std::string_view name) const;

  // Why no session of this token is here, and in `word` Ending's; OK: nothing is known of it.
  core::Status of(std::string_view token, std::string* word) const;

 private:
  mutable core::Mutex mutex_;
  std::map<std::string, Place, std::less<>> gone_ TT_GUARDED_BY(mutex_);  // by token
  std::map<std::string, std::pair<std::string, std::string>, std::less<>> expected_
      TT_GUARDED_BY(mutex_);  // by token: user, name
};

}  // namespace teletensor::server
