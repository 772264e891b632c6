#include "engine/collective/link.h"

#include <algorithm>

namespace teletensor::collective {

bool Link::acknowledge(std::uint64_t received) {
  if (received < acknowledged_ || received > acknowledged_ + sent_) return false;
  for (; acknowledged_ < received; ++acknowledged_, --sent_) {
    in_flight_ -= parcels_.front().message.payload;
    parcels_.pop_front();
  }
  return true;
}

bool Link::connected(const Hello& peer) {
  const bool restarted = peer_ != 0 && peer.incarnation != peer_;
  connected_ = true;
  owes_ = false;
  if (restarted) {
    const auto tried = static_cast<std::ptrdiff_t>(tried_ - acknowledged_);
    parcels_.erase(parcels_.begin(), parcels_.begin() + tried);
    std::erase_if(parcels_, [](const Parcel& p) {
      return p.message.kind >= Kind::kOffer && p.message.kind <= Kind::kDone;
    });
    tried_ = acknowledged_ = received_ = 0;
  } else if (peer.of == incarnation_) {
    acknowledge(peer.received);
  }
  peer_ = peer.incarnation;
  sent_ = 0;
  in_flight_ = 0;
  return restarted;
}

std::optional<Link::Frame> Link::next() {
  if (!connected_ || sent_ == parcels_.size()) return std::nullopt;
  const Parcel& parcel = parcels_[sent_];
  const std::int64_t bytes = parcel.message.payload;
  if (bytes > 0 && in_flight_ > 0 && in_flight_ + bytes > window_) return std::nullopt;
  in_flight_ += bytes;
  ++sent_;
  tried_ = std::max(tried_, acknowledged_ + sent_);
  owes_ = false;
  return Frame{acknowledged_ + sent_, received_, parcel};
}

core::Result<bool> Link::receive(const Frame& frame) {
  if (!acknowledge(frame.received)) {
    return core::invalid("link: a peer acknowledges what it was not sent");
  }
  if (frame.number == 0) return false;
  if (frame.number != received_ + 1) {
    return core::invalid("link: a peer sends #" + std::to_string(frame.number) + " after #" +
                         std::to_string(received_));
  }
  ++received_;
  owes_ = true;
  return true;
}

Link::Frame Link::acknowledgement() {
  owes_ = false;
  return {0, received_, {}};
}

}  // namespace teletensor::collective
