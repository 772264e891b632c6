#include "server/peer/peer_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace teletensor::server {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return engine_() % n; }
  // A size that is small, close to one of the limits of the code, or large.
  std::size_t size() {
    const std::size_t sizes[] = {0,
                                 1,
                                 below(200),
                                 kLargePayload - below(3),
                                 64 << 10,
                                 (64 << 10) + below(9),
                                 below(300'000)};
    return sizes[below(std::size(sizes))];
  }
  std::string bytes(std::size_t size) {
    std::string text(size, '\0');
    for (char& each : text) each = static_cast<char>(engine_());
    return text;
  }

 private:
  std::mt19937_64 engine_;
};

struct Received {
  std::string text, payload;
  friend bool operator==(const Received&, const Received&) = default;
};

// Stores as many of `bytes` in the input as it has room for, at most `most`, and removes them.
void store(FrameInput& input, std::string_view& bytes, std::size_t most) {
  const std::span<char> room = input.room();
  ASSERT_FALSE(room.empty());
  const std::size_t stored = std::min({room.size(), bytes.size(), most});
  std::memcpy(room.data(), bytes.data(), stored);
  input.filled(stored);
  bytes.remove_prefix(stored);
}

// Frames arrive as they were added, however the bytes are divided on their way.
TEST(PeerFrames, ArriveAsTheyWereAdded) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Dice dice(seed);
  for (int round = 0; round < 200; ++round) {
    FrameOutput output;
    FrameInput input;
    input.accept(1 << 20, 1 << 20);
    std::vector<Received> sent, received;
    std::size_t left = 1 + dice.below(8);
    while (left > 0 || !output.front().empty()) {
      while (left > 0 && output.has_room()) {
        --left;
        FrameOutput::Frame frame{dice.bytes(dice.below(100)), nullptr, {}, 0};
        Received& copy = sent.emplace_back(frame.text, "");
        if (dice.below(2) == 0) {
          frame.more_text = std::make_shared<const std::string>(dice.bytes(dice.size()));
          copy.text += *frame.more_text;
        }
        const auto held = std::make_shared<const std::string>(dice.bytes(dice.size()));
        const std::size_t half = dice.below(held->size() + 1);
        frame.payload = {{std::span(*held).first(half), std::span(*held).subspan(half)}, held};
        frame.payload_bytes = held->size();
        copy.payload = *held;
        EXPECT_EQ(frame.bytes(), kFrameHeader + copy.text.size() + copy.payload.size());
        output.add(std::move(frame));
        if (dice.below(3) == 0) break;
      }
      const std::size_t most = dice.below(2) == 0 ? 1 + dice.below(30) : 1 + dice.below(200'000);
      const std::span<const char> front = output.front();
      const std::string copy(front.data(), std::min(front.size(), most));
      output.sent(copy.size());
      for (std::string_view rest = copy; !rest.empty();) {
        store(input, rest, most);
        while (true) {
          const auto frame = input.next();
          ASSERT_TRUE(frame.ok()) << frame.status().message();
          if (!*frame) break;
          received.push_back({std::string((*frame)->text),
                              std::string((*frame)->payload.data(), (*frame)->payload.size())});
        }
      }
    }
    EXPECT_TRUE(output.at_boundary());
    ASSERT_TRUE(received == sent) << round;
  }
}

TEST(PeerFrames, SmallFramesAreSentTogetherAndLargePayloadsAreNotCopied) {
  FrameOutput output;
  output.add({"abc", nullptr, {}, 0});
  output.add({"de", std::make_shared<const std::string>("f"), {}, 0});
  const auto held = std::make_shared<const std::string>(kLargePayload, 'x');
  ASSERT_TRUE(output.has_room());
  output.add({"g", nullptr, {{{}, *held, {}}, held}, held->size()});
  EXPECT_FALSE(output.has_room());
  EXPECT_EQ(output.front().size(), 3 * kFrameHeader + 7);
  output.sent(output.front().size());
  EXPECT_EQ(output.front().data(), held->data());
  EXPECT_FALSE(output.at_boundary());
  output.sent(kLargePayload - 1);
  EXPECT_EQ(output.front().size(), 1u);
  EXPECT_EQ(held.use_count(), 2);
  output.sent(1);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_TRUE(output.front().empty() && output.has_room());
}

core::Status refusal(FrameInput& input, std::size_t text, std::size_t payload) {
  const auto header = frame_header(text, payload);
  std::string_view bytes(header.data(), header.size());
  store(input, bytes, bytes.size());
  return input.next().status();
}

TEST(PeerFrames, SizesBeyondTheLimitsAreRefused) {
  FrameInput input;
  input.accept(1024, 0);
  EXPECT_EQ(refusal(input, 1025, 0).message(),
            "a frame of 1025 + 0 bytes; the maximum is 1024 + 0");
  FrameInput payload;
  payload.accept(1024, 0);
  EXPECT_EQ(refusal(payload, 0, 1).code(), core::Code::kInvalidArgument);
  FrameInput wide;
  wide.accept(1024, 1024);
  EXPECT_EQ(refusal(wide, 0xffff'ffff, 0xffff'ffff).code(), core::Code::kInvalidArgument);
  FrameInput fits;
  fits.accept(1024, 1024);
  EXPECT_TRUE(refusal(fits, 1024, 1024).ok());
}

// A header of HTTP/2, with which a daemon of an earlier version calls, is no frame.
TEST(PeerFrames, AnotherProtocolIsRefused) {
  FrameInput input;
  input.accept(1024, 0);
  std::string_view bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  store(input, bytes, bytes.size());
  EXPECT_FALSE(input.next().ok());
}

}  // namespace
}  // namespace teletensor::server
