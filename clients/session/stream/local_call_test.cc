// Tests the client's side of a local stream over a pair of sockets whose other end is the test.
#include "clients/session/stream/local_call.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "proto/wire/share.h"

namespace teletensor::client {
namespace {

constexpr std::int64_t kHang = 240'000'000;  // Maximum time of a wait in microseconds.

std::string message_of(std::uint32_t kind, std::string_view bytes) {
  const wire::LocalHeader header{kind, static_cast<std::uint32_t>(bytes.size())};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header).append(bytes);
}

std::string end_of(core::Code code, std::string_view word, std::string_view text) {
  const wire::LocalEnd end{static_cast<std::uint32_t>(code),
                           static_cast<std::uint32_t>(word.size())};
  std::string bytes(reinterpret_cast<const char*>(&end), sizeof end);
  return message_of(wire::LocalHeader::kEnd, bytes.append(word).append(text));
}

class LocalCallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    call = local_call(pair[0]);
    peer = pair[1];
  }
  void TearDown() override { close(peer); }

  void say(std::string_view bytes) const {
    ASSERT_EQ(send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  int read(std::string& bytes, std::int64_t timeout = kHang) {
    tt_wire_message message{};
    const int done = call->api().read(call->get(), timeout, &message);
    if (done == TT_WIRE_DONE) {
      bytes.assign(static_cast<const char*>(message.parts->data), message.parts->size);
      call->api().forget(&message);
    }
    return done;
  }
  void expect_end(core::Code code, const std::string& word, const std::string& text) {
    std::string bytes, found;
    EXPECT_EQ(read(bytes), TT_WIRE_OVER);
    const core::Status status = call->status(&found);
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(found, word);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_EQ(read(bytes), TT_WIRE_OVER);
  }

  std::unique_ptr<Call> call;
  int peer = -1;
};

TEST_F(LocalCallTest, MessagesArriveWholeInPiecesOfAnySize) {
  std::mt19937 random(3);
  std::vector<std::string> messages;
  std::string all;
  for (int i = 0; i < 200; ++i) {
    const std::size_t size = i % 50 == 7 ? 300'000 : random() % 3000;
    messages.emplace_back(size, static_cast<char>('a' + i % 26));
    all += message_of(wire::LocalHeader::kMessage, messages.back());
  }
  std::thread sender([&] {
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t size = std::min<std::size_t>(all.size() - at, 1 + random() % 20'000);
      say(std::string_view(all).substr(at, size));
      at += size;
    }
  });
  for (const std::string& wanted : messages) {
    std::string bytes;
    ASSERT_EQ(read(bytes), TT_WIRE_DONE);
    ASSERT_EQ(bytes, wanted);
  }
  sender.join();
}

TEST_F(LocalCallTest, AMessageThatTheSocketDoesNotTakeIsSentInParts) {
  const std::string frame(4 << 20, 'x');
  int dropped = 0;
  const tt_wire_part part{frame.data(), frame.size(),
                          [](void* owner) { ++*static_cast<int*>(owner); }, &dropped};
  call->api().write(call->get(), &part, 1);
  EXPECT_EQ(call->api().written(call->get(), 0), TT_WIRE_TIMEOUT);
  EXPECT_EQ(dropped, 0);
  const std::string wanted = message_of(wire::LocalHeader::kMessage, frame);
  std::string seen;
  std::thread reader([&] {
    char bytes[1 << 16];
    while (seen.size() < wanted.size()) {
      const ssize_t n = recv(peer, bytes, sizeof bytes, 0);
      if (n <= 0) return;
      seen.append(bytes, static_cast<std::size_t>(n));
    }
  });
  EXPECT_EQ(call->api().written(call->get(), kHang), TT_WIRE_DONE);
  reader.join();
  EXPECT_TRUE(seen == wanted);
  EXPECT_EQ(dropped, 1);
}

TEST_F(LocalCallTest, TheDaemonsReasonIsTheStatus) {
  say(message_of(wire::LocalHeader::kMessage, "one") +
      end_of(core::Code::kAborted, "fenced", "a later attach"));
  close(peer);
  std::string bytes;
  EXPECT_EQ(read(bytes), TT_WIRE_DONE);
  expect_end(core::Code::kAborted, "fenced", "a later attach");
  peer = -1;
}

TEST_F(LocalCallTest, AConnectionWithoutAReasonAtItsEndIsLost) {
  say(message_of(wire::LocalHeader::kMessage, "one").substr(0, 9));
  close(peer);
  expect_end(core::Code::kUnavailable, "", "closed the connection");
  const tt_wire_part part{"x", 1, nullptr, nullptr};
  call->api().write(call->get(), &part, 1);
  EXPECT_EQ(call->api().written(call->get(), kHang), TT_WIRE_OVER);
  peer = -1;
}

TEST_F(LocalCallTest, ABadMessageEndsTheCall) {
  const wire::LocalHeader header{wire::LocalHeader::kMessage, 0xffffffff};
  say({reinterpret_cast<const char*>(&header), sizeof header});
  expect_end(core::Code::kInternal, "", "4294967295 bytes");
}

TEST_F(LocalCallTest, AnIncompleteStatusEndsTheCall) {
  say(message_of(wire::LocalHeader::kEnd, "abc"));
  expect_end(core::Code::kInternal, "", "incomplete");
}

TEST_F(LocalCallTest, AWordThatIsLongerThanTheMessageIsCut) {
  const wire::LocalEnd end{14, 1000};
  std::string bytes(reinterpret_cast<const char*>(&end), sizeof end);
  say(message_of(wire::LocalHeader::kEnd, bytes + "word"));
  expect_end(core::Code::kUnavailable, "word", "");
}

TEST_F(LocalCallTest, CancelWakesTheReader) {
  std::thread canceller([&] { call->api().cancel(call->get()); });
  expect_end(core::Code::kCancelled, "", "cut by its client");
  canceller.join();
}

TEST_F(LocalCallTest, NothingToReadIsATimeout) {
  std::string bytes;
  EXPECT_EQ(read(bytes, 0), TT_WIRE_TIMEOUT);
  say(message_of(wire::LocalHeader::kMessage, ""));
  EXPECT_EQ(read(bytes), TT_WIRE_DONE);
  EXPECT_EQ(bytes, "");
}

TEST(LocalCall, WithoutASocketTheConnectionIsLost) {
  const std::unique_ptr<Call> call = local_call(-1);
  tt_wire_message message{};
  EXPECT_EQ(call->api().read(call->get(), kHang, &message), TT_WIRE_OVER);
  EXPECT_EQ(call->status().code(), core::Code::kUnavailable);
  const tt_wire_part part{"x", 1, nullptr, nullptr};
  call->api().write(call->get(), &part, 1);
  EXPECT_EQ(call->api().written(call->get(), kHang), TT_WIRE_OVER);
}

}  // namespace
}  // namespace teletensor::client
