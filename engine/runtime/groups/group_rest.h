// GroupRest: brings the part of a group in this daemon to rest before the daemon stops, and
// continues it from an image after the restart. Each function acquires the lock of the epoch. The
// functions of Groups and Groups::Member with these names state their contracts.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "engine/program/image.h"
#include "engine/runtime/groups/epoch_state.h"

namespace teletensor::runtime {

class GroupRest {
 public:
  // `stamp` is that of the image from which the group is restored; 0: it is not restored. `state`
  // is the epoch's and outlives this object.
  explicit GroupRest(EpochState& state, std::uint64_t stamp = 0) : state_(state), stamp_(stamp) {}

  // ---- before the daemon stops
  bool wanted(collective::Rank rank);
  bool busy();
  bool rest();
  void end_moving(const std::string& why);
  bool hold_open(const std::string& why);
  void end_waits(collective::Rank rank);
  std::optional<program::Image::Group> image(collective::Rank rank);

  // ---- after the restart
  // Continues the group of an image, once its ranks have returned and restored() was called.
  // Precondition: the image has places, which were validated.
  void continue_from(const program::Image::Group& image);
  std::uint64_t stamp() const { return stamp_; }
  // Returns false if the group has ended, or if no rank of this daemon with that number is awaited.
  bool come_back(const Groups::Join& join);
  void restored();
  // The information that is sent when the two daemons connect; none if the group has ended or has
  // no rank in that daemon.
  std::optional<PeerMessage::Kept> kept_with(const std::string& daemon);
  // Handles the first message after the two daemons have connected. `kept` is the other daemon's
  // information about this group; none: it does not know the group.
  void met(const std::string& daemon, const std::optional<PeerMessage::Kept>& kept);

 private:
  using Waiters = EpochState::Waiters;
  bool may_hold_open() const TT_REQUIRES(state_.mu);
  // Lets a rank leave because the daemon stops, if it is a session of this daemon.
  void leave(collective::Rank rank, const std::string& why, Waiters& met) TT_REQUIRES(state_.mu);

  EpochState& state_;
  const std::uint64_t stamp_;
  // Ranks of the restored image that have not joined again.
  std::set<collective::Rank> awaited_ TT_GUARDED_BY(state_.mu);
};

}  // namespace teletensor::runtime
