// LateErrors holds the asynchronous errors that a session has received and not raised. Raises holds
// the Raise commands with which the session reverts the in-place writes that failed with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/progress.h"

namespace teletensor::client {

// An asynchronous error that is being raised. It represents the earliest failed command and the
// later failures with the same status code, which the same exception reports.
struct LateError {
  core::Status status;          // Error of the earliest failed command. OK if no error is pending.
  std::uint64_t root = 0;       // Number of the earliest failed command.
  std::uint64_t count = 0;      // Number of failed commands, including the earliest.
  std::uint64_t last_root = 0;  // Number of the last failed command.
  // The later failures: text and command of each.
  std::vector<std::pair<std::string, std::uint64_t>> further{};
};

// The object has no lock: all functions but any() are called with the session's lock held.
class LateErrors {
 public:
  // Returns true if there are errors. A thread that sees a command as completed sees its error too.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // Adds an error, unless one of the same root was added since that root was completed.
  void add(wire::ErrorEvent error);
  // Commands up to `upto` have run; the daemon does not report their errors again.
  void complete(std::uint64_t upto);

  // The errors in the order in which they were added.
  std::vector<wire::ErrorEvent> all() const { return {errors_.begin(), errors_.end()}; }
  // Root of the first added error that reports a lack of memory. 0 if there is none.
  std::uint64_t first_shortage() const { return shortage_; }
  // Removes and returns the errors of one status code, or, without one, those that have the status
  // code of the oldest error. Ordered by root.
  std::vector<wire::ErrorEvent> take_alike(std::optional<core::Code> code);
  std::vector<wire::ErrorEvent> take_all();
  // Removes one error of a cancelled command up to `upto` and returns its root. 0 if there is none.
  std::uint64_t take_cancelled(std::uint64_t upto);
  // The first cancelled command up to `upto`. 0 if there is none.
  std::uint64_t first_cancelled(std::uint64_t upto) const;

 private:
  void removed();

  std::deque<wire::ErrorEvent> errors_;
  std::atomic<bool> any_ = false;  // Whether errors_ is not empty.
  std::uint64_t shortage_ = 0;     // See first_shortage().
  // Roots of the added errors after the completed commands; a restarted daemon may report them
  // again.
  std::set<std::uint64_t> roots_;
};

// A Raise command and the command whose error it raises.
struct SentRaise {
  std::uint64_t seq, root;
};

// The object has no lock: API threads, one at a time, call the functions of the first group, and
// the session's lock is held in those of the second.
class Raises {
 public:
  void add(SentRaise raise) { sent_.push_back(raise); }
  // Returns true if a Raise was sent and not finished.
  bool open() const { return !sent_.empty(); }
  // The Raise that is finished next. Precondition: open().
  SentRaise next() const { return sent_.front(); }
  bool is_next(SentRaise raise) const { return open() && next().seq == raise.seq; }

  // Stores the daemon's answer to a Raise.
  void receive(wire::RaisedEvent answer) { answers_[answer.seq] = std::move(answer); }
  // Returns true if the answer to `raise` was received or another thread has finished it.
  bool settled(SentRaise raise) const {
    return finished_upto_ >= raise.seq || answers_.contains(raise.seq);
  }
  // Removes `raise`, which is_next(), and returns the commands whose writes are to be reverted.
  // Nothing if the daemon has not answered.
  std::optional<std::vector<std::uint64_t>> finish(SentRaise raise);

 private:
  std::deque<SentRaise> sent_;                          // Oldest first.
  std::map<std::uint64_t, wire::RaisedEvent> answers_;  // By the Raise command.
  std::uint64_t finished_upto_ = 0;                     // Last Raise command that was finished.
};

}  // namespace teletensor::client
