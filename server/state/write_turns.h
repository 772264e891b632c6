// WriteTurns chooses the user whose session the snapshot writer writes next: start-time fair
// queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996) with equal weights.
// Each user has a start tag in seconds. Writing advances the tag of the session's user by the time
// that it took, and the user with the lowest tag is next. The tag of a user without waiting
// sessions is raised to that of the session that is written, so that no user saves up turns. Users
// with waiting sessions therefore get equal shares of the writer's time, whatever the number and
// the sizes of their sessions, and a user that seldom needs the writer waits for one session of
// another user. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace teletensor::server {

class WriteTurns {
 public:
  // A session of the user can be written now.
  void enter(const std::string& user);
  // Returns the user whose session is next. Of users with equal tags, the first one in
  // alphabetical order. Precondition: a session waits.
  const std::string& next() const;
  // The writing of one of the user's waiting sessions begins, and ends after `seconds`. Only one
  // session is written at a time.
  void begin(std::string_view user);
  void end(std::string_view user, double seconds);

 private:
  struct Turn {
    double start = 0;         // Start tag in seconds.
    std::size_t waiting = 0;  // Number of sessions.
  };

  double now_ = 0;  // Start tag of the session that was written last.
  // The users with waiting sessions, and those that are ahead of now_.
  std::map<std::string, Turn, std::less<>> turns_;
};

}  // namespace teletensor::server
