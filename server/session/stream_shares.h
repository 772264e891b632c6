// StreamShares counts the open streams of all callers and decides who may open another one, so that
// no user can take the streams that others need. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

// A quarter of all streams is kept free for Run streams, so that clients can connect and come back
// while others transfer tensors. A user gets another transfer only while it has fewer than half as
// many as are free. A single user therefore has at most a third of what transfers may use, a second
// one a third of the rest, and so on: every further user finds some. A session has at most an
// eighth of all streams for its transfers, and a few Run streams: all but one have been replaced
// and are about to end.
class StreamShares {
 public:
  enum class Kind : std::uint8_t { kRun, kTransfer };

  // A stream that is counted as long as this object exists.
  class Place {
   public:
    Place(Place&& other) noexcept
        : shares_(std::exchange(other.shares_, nullptr)),
          user_(std::move(other.user_)),
          session_(other.session_),
          kind_(other.kind_) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() {
      if (shares_ != nullptr) shares_->leave(*this);
    }

   private:
    friend class StreamShares;
    Place(StreamShares* shares, std::string user, std::uint64_t session, Kind kind)
        : shares_(shares), user_(std::move(user)), session_(session), kind_(kind) {}

    StreamShares* shares_;
    std::string user_;
    std::uint64_t session_;
    Kind kind_;
  };

  // `streams` is the maximum number of concurrent streams.
  explicit StreamShares(std::size_t streams) : streams_(streams) {}
  StreamShares(const StreamShares&) = delete;
  StreamShares& operator=(const StreamShares&) = delete;

  // Counts one more stream of a user's session. RESOURCE_EXHAUSTED if the user or the session has
  // too many.
  core::Result<Place> enter(const std::string& user, std::uint64_t session, Kind kind);

 private:
  static constexpr std::size_t kRunsOfASession = 8;

  void leave(const Place& place);
  std::size_t free_streams(Kind kind) const TT_REQUIRES(mutex_);
  std::size_t most_of_a_session(Kind kind) const;

  const std::size_t streams_;
  mutable core::Mutex mutex_;
  std::size_t runs_ TT_GUARDED_BY(mutex_) = 0, transfers_ TT_GUARDED_BY(mutex_) = 0;
  // Number of transfers by user.
  std::map<std::string, std::size_t> users_ TT_GUARDED_BY(mutex_);
  // Number of streams by session and kind.
  std::map<std::pair<std::uint64_t, Kind>, std::size_t> sessions_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
