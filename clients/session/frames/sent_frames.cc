#include "clients/session/frames/sent_frames.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace teletensor::client {

namespace {

// Estimated cost of a retained frame in addition to its bytes.
constexpr std::size_t kFrameOverhead = 128;

std::size_t cost(const SentFrame& sent) { return sent.frame->size() + kFrameOverhead; }

}  // namespace

void SentFrames::repeat_after(std::uint64_t received_upto) {
  const auto end = std::find_if(sent_.rbegin(), sent_.rend(), [&](const SentFrame& sent) {
    return sent.last_seq <= received_upto;
  });
  again_ = static_cast<std::size_t>(std::distance(sent_.rbegin(), end));
}

void SentFrames::confirm(std::uint64_t completed_upto, std::uint64_t snapshot_upto) {
  ran_upto_ = std::max(ran_upto_, completed_upto);
  if (snapshot_upto != 0) retain();
  while (!sent_.empty() && sent_.front().last_seq <= ran_upto_) {
    if (retains_) {
      ran_bytes_ += cost(sent_.front());
      ran_.push_back(std::move(sent_.front()));
    } else {
      dropped_upto_ = sent_.front().last_seq;
    }
    sent_.pop_front();
  }
  while (!ran_.empty() &&
         (ran_bytes_ > retained_bytes_ || ran_.front().last_seq <= snapshot_upto)) {
    dropped_upto_ = ran_.front().last_seq;
    ran_bytes_ -= cost(ran_.front());
    ran_.pop_front();
  }
  again_ = std::min(again_, sent_.size());
}

void SentFrames::move_after(std::uint64_t received_upto, std::deque<SentFrame>& frames,
                            std::vector<SentFrame>& taken) {
  for (; !frames.empty() && frames.back().last_seq > received_upto; frames.pop_back()) {
    taken.push_back(std::move(frames.back()));
  }
}

std::vector<SentFrame> SentFrames::take_after(std::uint64_t received_upto) {
  std::vector<SentFrame> taken;
  move_after(received_upto, sent_, taken);
  const std::size_t unconfirmed = taken.size();
  move_after(received_upto, ran_, taken);
  for (std::size_t i = unconfirmed; i < taken.size(); ++i) ran_bytes_ -= cost(taken[i]);
  again_ = 0;
  ran_upto_ = 0;
  retain();
  return taken;
}

std::vector<FrameRef> SentFrames::unconfirmed() const {
  std::vector<FrameRef> frames;
  for (const SentFrame& sent : sent_) frames.push_back(sent.frame);
  return frames;
}

}  // namespace teletensor::client
