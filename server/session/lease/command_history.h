// CommandHistory has what a lease knows about single commands of its client, by their numbers: the
// source lines that the client has reported, for lists of tensors, instructions and errors, and the
// commands that failed. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::v1 {
class SavedBody;
}  // namespace teletensor::v1

namespace teletensor::server {

class CommandHistory {
 public:
  // Source lines of the client's program by the number of the command.
  using Sites = std::vector<std::pair<std::uint64_t, std::string>>;
  static constexpr std::size_t kMaxSites = 200;  // Maximum number of lines in one report.

  struct Error {
    core::Clock::time_point at;
    std::uint64_t seq = 0;  // Number of the command.
    std::string text;
    bool raised = false;  // Whether the error was raised in the client's program.
  };
  static constexpr std::size_t kMaxErrors = 20, kMaxErrorText = 1000;

  void add_sites(const Sites& sites);
  // The reported source line of a command. Empty if it was not reported.
  std::string site_of(std::uint64_t seq) const;
  // Returns those of the commands `wanted`, and of errors(), that are not later than `upto` and
  // whose source lines were not reported. Discards all lines but those of the commands `kept` and
  // of errors().
  std::vector<std::uint64_t> without_site(std::set<std::uint64_t> wanted,
                                          std::set<std::uint64_t> kept, std::uint64_t upto);

  // Records that a command has failed, or that its error was raised in the client's program.
  void failed(std::uint64_t seq, const core::Status& status);
  void raised(std::uint64_t seq);
  // The last commands that failed, newest first; at most kMaxErrors.
  std::vector<Error> errors() const;

  using OpenErrors = std::map<std::uint64_t, core::Status>;
  // Moves the source lines to the history of the session's next client. Returns the errors that
  // were not raised, which that client is told.
  OpenErrors hand_on(CommandHistory& next);
  // Writes source lines and the errors that were not raised into a snapshot, and restores them.
  void save(v1::SavedBody& body) const;
  void restore(const v1::SavedBody& body);

 private:
  mutable core::Mutex mutex_;
  std::map<std::uint64_t, std::string> sites_ TT_GUARDED_BY(mutex_);
  OpenErrors open_errors_ TT_GUARDED_BY(mutex_);    // Errors that were not raised yet.
  std::deque<Error> errors_ TT_GUARDED_BY(mutex_);  // The last errors, newest first.
};

}  // namespace teletensor::server
