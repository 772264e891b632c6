#include "server/peer/peer_frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/with_memory.h"

namespace teletensor::server {

using core::Result;
using core::Status;

namespace {

// Memory of larger payloads is released after the frame.
constexpr std::size_t kKeptPayload = 2 << 20;

std::size_t number_at(const char* bytes) {
  std::size_t number = 0;
  for (int i = 3; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

void store(std::size_t number, char* bytes) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(number >> 8 * i & 0xff);
}

}  // namespace

std::array<char, kFrameHeader> frame_header(std::size_t text, std::size_t payload) {
  std::array<char, kFrameHeader> header;
  store(text, header.data());
  store(payload, header.data() + 4);
  return header;
}

std::span<char> FrameInput::room() {
  direct_ = in_frame_ && begin_ == end_ && text_have_ == text_.size() &&
            payload_size_ - payload_have_ >= kLargePayload;
  if (direct_) return {payload_.get() + payload_have_, payload_size_ - payload_have_};
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  return {buffer_.get() + end_, kBuffer - end_};
}

void FrameInput::filled(std::size_t bytes) { (direct_ ? payload_have_ : end_) += bytes; }

void FrameInput::take(char* to, std::size_t& have, std::size_t size) {
  const std::size_t taken = std::min(end_ - begin_, size - have);
  if (taken == 0) return;
  std::memcpy(to + have, buffer_.get() + begin_, taken);
  begin_ += taken;
  have += taken;
}

Status FrameInput::read_header() {
  const std::size_t text = number_at(buffer_.get() + begin_);
  const std::size_t payload = number_at(buffer_.get() + begin_ + 4);
  if (text > most_text_ || payload > most_payload_) {
    return core::invalid("a frame of " + std::to_string(text) + " + " + std::to_string(payload) +
                         " bytes; the maximum is " + std::to_string(most_text_) + " + " +
                         std::to_string(most_payload_));
  }
  begin_ += kFrameHeader;
  return core::with_memory("a peer's frame", [&] {
    const bool excess = payload_capacity_ > kKeptPayload && payload <= kKeptPayload;
    if (payload > payload_capacity_ || excess) {
      payload_.reset();
      payload_capacity_ = 0;
      payload_ = std::make_unique_for_overwrite<char[]>(payload);
      payload_capacity_ = payload;
    }
    text_.resize(text);
    payload_size_ = payload;
    text_have_ = payload_have_ = 0;
    in_frame_ = true;
    return Status();
  });
}

Result<std::optional<FrameInput::Frame>> FrameInput::next() {
  if (!in_frame_) {
    if (end_ - begin_ < kFrameHeader) return std::optional<Frame>();
    TT_RETURN_IF_ERROR(read_header());
  }
  take(text_.data(), text_have_, text_.size());
  if (text_have_ == text_.size()) take(payload_.get(), payload_have_, payload_size_);
  if (!whole()) return std::optional<Frame>();
  in_frame_ = false;
  return std::optional(Frame{text_, {payload_.get(), payload_size_}});
}

void FrameOutput::add(Frame frame) {
  const auto header = frame_header(frame.text_bytes(), frame.payload_bytes);
  batch_.append(header.data(), header.size());
  batch_ += frame.text;
  if (frame.more_text) batch_ += *frame.more_text;
  if (frame.payload_bytes >= kLargePayload) {
    payload_ = std::move(frame.payload);
    part_ = part_sent_ = 0;
    skip_empty_parts();
    return;
  }
  for (const std::span<const char> part : frame.payload.parts) {
    batch_.append(part.data(), part.size());
  }
}

std::span<const char> FrameOutput::front() const {
  if (sent_ < batch_.size()) return std::span(batch_).subspan(sent_);
  if (payload_.parts.empty()) return {};
  return payload_.parts[part_].subspan(part_sent_);
}

void FrameOutput::sent(std::size_t bytes) {
  if (sent_ < batch_.size()) {
    sent_ += bytes;
    if (sent_ == batch_.size() && payload_.parts.empty()) {
      batch_.clear();
      sent_ = 0;
    }
    return;
  }
  part_sent_ += bytes;
  skip_empty_parts();
}

// Goes to the next part that has bytes left, and forgets a payload that was sent.
void FrameOutput::skip_empty_parts() {
  while (part_ < payload_.parts.size() && part_sent_ == payload_.parts[part_].size()) {
    ++part_;
    part_sent_ = 0;
  }
  if (part_ < payload_.parts.size()) return;
  payload_ = {};
  batch_.clear();
  sent_ = 0;
}

}  // namespace teletensor::server
