// SentFrames holds the frames that a session has passed to its streams: those that may have to be
// sent again to the same daemon, and retained frames that are replayed to a restarted daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace teletensor::client {

// A frame that was sent or is about to be sent.
using FrameRef = std::shared_ptr<const std::string>;

struct SentFrame {
  std::uint64_t last_seq;  // Number of the last command in the frame.
  FrameRef frame;
};

// The object has no lock: the session calls it with the session's lock held.
class SentFrames {
 public:
  // With `keeps`, frames are kept until their commands have run. `retained_bytes` is the maximum
  // size of the frames that are retained after that (see retain()).
  SentFrames(bool keeps, std::size_t retained_bytes)
      : keeps_(keeps), retained_bytes_(retained_bytes) {}

  // Adds a frame that is being sent for the first time. Frames are added in the order of their
  // commands.
  void add(SentFrame frame) {
    if (keeps_) sent_.push_back(std::move(frame));
  }
  // Requests that the frames with commands after `received_upto` are sent again.
  void repeat_after(std::uint64_t received_upto);
  // Returns true if a frame is to be sent again.
  bool repeats() const { return again_ != 0; }
  // Returns the next frame to send again. Precondition: repeats().
  FrameRef repeat() { return sent_[sent_.size() - again_--].frame; }

  // Frames that have run are retained from now on, because a snapshot of the daemon's session
  // exists or is being written.
  void retain() { retains_ = keeps_ && retained_bytes_ > 0; }
  // The daemon has run the commands up to `completed_upto`. If `snapshot_upto` is not 0, it has
  // written a snapshot that contains the commands up to that number. Frames that are not needed any
  // more are dropped.
  void confirm(std::uint64_t completed_upto, std::uint64_t snapshot_upto);
  // Removes the frames with commands after `received_upto`, for a restarted daemon to which they
  // are sent as if for the first time, and returns them, newest first. The new daemon has not
  // confirmed any command yet.
  std::vector<SentFrame> take_after(std::uint64_t received_upto);

  // Number of the last command in the frames that were dropped. 0 if no frame was dropped.
  std::uint64_t dropped_upto() const { return dropped_upto_; }
  // The frames whose commands are not known to have run, oldest first.
  std::vector<FrameRef> unconfirmed() const;

 private:
  // Appends the frames of `frames` after `received_upto` to `taken`, newest first.
  static void move_after(std::uint64_t received_upto, std::deque<SentFrame>& frames,
                         std::vector<SentFrame>& taken);

  const bool keeps_;
  const std::size_t retained_bytes_;
  std::deque<SentFrame> sent_;  // Frames that are not known to have run.
  std::deque<SentFrame>
      ran_;  // Retained frames that have run; they are earlier than those in sent_.
  std::size_t ran_bytes_ = 0;   // Size of the frames in ran_, with their overhead.
  std::size_t again_ = 0;       // Number of frames at the end of sent_ that are to be sent again.
  bool retains_ = false;        // Whether frames that have run are retained.
  std::uint64_t ran_upto_ = 0;  // Last command that the current daemon has run.
  std::uint64_t dropped_upto_ = 0;
};

}  // namespace teletensor::client
