#include "server/session/late_errors.h"

#include <string>
#include <utility>

#include "engine/program/text.h"

namespace teletensor::server {

using core::Status;

Status LateErrors::shortened(Status status) {
  if (status.message().size() <= kMaxText) return status;
  return Status(status.code(), program::shortened(status.message(), kMaxText) + "...");
}

void LateErrors::add(wire::ErrorEvent error) {
  error.status = shortened(std::move(error.status));
  const std::size_t bytes = error.status.message().size();
  const std::uint32_t code = 1u << static_cast<unsigned>(error.status.code());
  if ((codes_ & code) != 0 && texts_ + bytes > kMaxTexts) {
    error.status = Status(error.status.code(), std::string(kLeftOut));
  } else {
    texts_ += bytes;
  }
  codes_ |= code;
  errors_.push_back(std::move(error));
}

void LateErrors::add(wire::RaisedEvent raised) {
  raised_bytes_ += sizeof raised + raised.rebinds.size() * sizeof raised.rebinds[0];
  raised_.push_back(std::move(raised));
}

void LateErrors::add(wire::LostRankEvent lost) { lost_ranks_.push_back(std::move(lost)); }

std::vector<wire::LostRankEvent> LateErrors::take_lost_ranks() {
  return std::exchange(lost_ranks_, {});
}

std::vector<wire::RaisedEvent> LateErrors::take_raised() {
  raised_bytes_ = 0;
  return std::exchange(raised_, {});
}

std::vector<wire::ErrorEvent> LateErrors::take_errors() {
  texts_ = codes_ = 0;
  return std::exchange(errors_, {});
}

}  // namespace teletensor::server
