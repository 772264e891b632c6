#include "server/session/late_errors.h"

#include <string>
#include <utility>

namespace teletensor::server {

using core::Status;

Status LateErrors::shortened(Status status) {
  const std::string& text = status.message();
  if (text.size() <= kMaxText) return status;
  std::size_t end = kMaxText;
  // A cut between the bytes of one character would not be valid UTF-8.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return Status(status.code(), text.substr(0, end) + "...");
}

void LateErrors::add(wire::ErrorEvent error) {
  error.status = shortened(std::move(error.status));
  const std::size_t bytes = error.status.message().size();
  const std::uint32_t code = 1u << static_cast<unsigned>(error.status.code());
  if ((codes_ & code) != 0 && bytes_ + bytes > kMaxTexts) {
    error.status = Status(error.status.code(), std::string(kLeftOut));
  } else {
    bytes_ += bytes;
  }
  codes_ |= code;
  errors_.push_back(std::move(error));
}

std::vector<wire::ErrorEvent> LateErrors::take() {
  bytes_ = codes_ = 0;
  return std::exchange(errors_, {});
}

}  // namespace teletensor::server
