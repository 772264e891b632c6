#include "engine/collective/epoch_end.h"

#include <algorithm>
#include <utility>

namespace teletensor::collective {

bool EpochEnd::over(const Message& message) const {
  if (ended_) return true;
  if (!ending_) return false;
  switch (message.kind) {
    case Kind::kVote:
      return message.purpose <= Purpose::kExplain && message.number > ending_->last;
    case Kind::kPartial:
    case Kind::kFinal:
    case Kind::kCredit:
    case Kind::kQuery:
    case Kind::kState:
      return message.number > ending_->last;
    case Kind::kOffer:
    case Kind::kAccept:
    case Kind::kData:
    case Kind::kDone:
    case Kind::kAsk:
    case Kind::kLeft:
      return ending_->final();
    case Kind::kProgress:
    case Kind::kEnd:
      return false;
  }
  return false;
}

Message EpochEnd::message() const {
  Message message;
  message.kind = Kind::kEnd;
  message.number = ending_->last;
  if (!ended_) message.from = ending_->left;
  message.vote.code = ending_->status.code();
  message.vote.failure = ending_->status.message();
  return message;
}

bool EpochEnd::add(Ending ending) {
  if (ended_) return false;
  if (ending_) {
    const bool earlier = ending.last < ending_->last;
    if (!earlier && (ending_->final() || !ending.final())) return false;
    ending.last = std::min(ending.last, ending_->last);
    if (ending_->final()) ending.left = kNoRank;
  }
  ending_ = std::move(ending);
  return true;
}

}  // namespace teletensor::collective
