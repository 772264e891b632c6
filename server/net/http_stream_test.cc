#include "server/net/http_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace teletensor::server {
namespace {

using core::Clock;

constexpr std::chrono::minutes kLong{10};

// A stream and the socket of its peer. The limits are small; a time that a test does not set does
// not pass.
class HttpStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_), 0);
    ASSERT_EQ(fcntl(sockets_[0], F_SETFL, O_NONBLOCK), 0);
    limits_.line = 40;
    limits_.head = 60;
    limits_.headers = 3;
    limits_.body = 10;
    limits_.idle = limits_.request = limits_.answer = limits_.linger = kLong;
  }
  void TearDown() override {
    close(sockets_[0]);
    hang_up();
  }
  void send(const std::string& text) {
    ASSERT_EQ(::send(sockets_[1], text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void hang_up() {
    if (sockets_[1] >= 0) close(sockets_[1]);
    sockets_[1] = -1;
  }
  // The bytes that the stream has sent, which are less than a buffer of the system.
  std::string sent() {
    char data[1000];
    const ssize_t count = recv(sockets_[1], data, sizeof data, MSG_DONTWAIT);
    return count > 0 ? std::string(data, static_cast<std::size_t>(count)) : "";
  }
  // The status for this head.
  int head(const std::string& text) {
    send(text);
    return stream().receive_head();
  }
  HttpStream& stream() {
    if (!stream_) stream_ = std::make_unique<HttpStream>(sockets_[0], nullptr, limits_, waits_);
    return *stream_;
  }
  std::string read(std::size_t most) {
    std::string text(most, '\0');
    const ssize_t count = stream().read(text.data(), most);
    return count > 0 ? text.substr(0, static_cast<std::size_t>(count)) : "";
  }

  int sockets_[2];
  HttpLimits limits_;
  std::atomic<Clock::time_point> waits_{Clock::time_point::max()};
  std::unique_ptr<HttpStream> stream_;
};

TEST_F(HttpStreamTest, PassesARequestOnAndKeepsWhatFollows) {
  ASSERT_EQ(head("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nabGET /next HTTP/1.1\r\n\r\n"), 0);
  EXPECT_TRUE(stream().has_body());
  EXPECT_EQ(read(1000), "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(read(2), "ab");
  ASSERT_EQ(stream().receive_head(), 0);
  EXPECT_FALSE(stream().has_body());
  EXPECT_EQ(read(1000), "GET /next HTTP/1.1\r\n\r\n");
}

TEST_F(HttpStreamTest, LeavesOutHeadersThatCostMoreThanTheyAreWorth) {
  ASSERT_EQ(head("GET / HTTP/1.1\r\nrange: bytes=0-,0-\r\nAccept-Encoding: br\r\n\r\n"), 0);
  EXPECT_EQ(read(1000), "GET / HTTP/1.1\r\n\r\n");
  ASSERT_EQ(head("GET / HTTP/1.1\r\nAccept-Encoding: br, gzip\r\n\r\n"), 0);
  EXPECT_EQ(read(1000), "GET / HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n");
}

TEST_F(HttpStreamTest, ALineHasALimit) {
  EXPECT_EQ(head("GET /" + std::string(100, 'x')), 414);  // It need not end.
}

TEST_F(HttpStreamTest, ALineOfExactlyTheLimitIsAccepted) {
  const std::string rest = " HTTP/1.1\r\n";
  const std::string path = "/" + std::string(limits_.line - rest.size() - 5, 'x');
  EXPECT_EQ(head("GET " + path + rest + "\r\n"), 0);
  EXPECT_EQ(head("GET /" + path + rest + "\r\n"), 414);
}

TEST_F(HttpStreamTest, TheHostOfAnAbsoluteTargetReplacesTheFirstHostOfItsRequest) {
  limits_.head = 200;
  ASSERT_EQ(head("GET http://a/x HTTP/1.1\r\nhost: b\r\nHost: c\r\n\r\n"), 0);
  EXPECT_EQ(read(1000), "GET /x HTTP/1.1\r\nHost: a\r\nHost: c\r\n\r\n");
  ASSERT_EQ(head("GET http://a HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(read(1000), "GET / HTTP/1.0\r\nHost: a\r\n\r\n");
  ASSERT_EQ(head("GET http://a HTTP/1.1\r\n\r\n"), 0);  // It is refused for its lack of a Host.
  EXPECT_EQ(read(1000), "GET / HTTP/1.1\r\n\r\n");
  ASSERT_EQ(head("\r\nGET /y HTTP/1.1\r\nHost: b\r\n\r\n"), 0);
  EXPECT_EQ(read(1000), "GET /y HTTP/1.1\r\nHost: b\r\n\r\n");
  EXPECT_EQ(head("GET /y HTTP/1.1\r\nHost:\r\n\r\n"), 400);
}

TEST_F(HttpStreamTest, AHeaderHasALimit) {
  EXPECT_EQ(head("GET / HTTP/1.1\r\nA: " + std::string(100, 'x')), 431);
}

TEST_F(HttpStreamTest, HeadersHaveALimitTogether) {
  const std::string line = "A: " + std::string(30, 'x') + "\r\n";
  EXPECT_EQ(head("GET / HTTP/1.1\r\n" + line + line + "\r\n"), 431);
}

TEST_F(HttpStreamTest, HeadersAreCounted) {
  EXPECT_EQ(head("GET / HTTP/1.1\r\nA: 1\r\nA: 1\r\nA: 1\r\n\r\n"), 0);
  EXPECT_EQ(head("GET / HTTP/1.1\r\nA: 1\r\nA: 1\r\nA: 1\r\nA: 1\r\n\r\n"), 431);
}

TEST_F(HttpStreamTest, LinesThatTheLibraryReadsInAnotherWayAreRefused) {
  for (const char* text :
       {"GET / HTTP/1.1\n", "GET / HTTP/1.1\r\nA: 1\n", "GET / HTTP/1.1\r\nA\r\n",
        "GET / HTTP/1.1\r\n: 1\r\n", "GET / HTTP/1.1\r\n A: 1\r\n", "GET / HTTP/1.1\r\nA : 1\r\n",
        "GET / HTTP/1.1\r\nA: \r1\r\n", "GET /\x01 HTTP/1.1\r\n"}) {
    stream_.reset();
    EXPECT_EQ(head(text), 400) << text;
  }
}

TEST_F(HttpStreamTest, RecognizesABody) {
  for (const auto& [line, body] :
       {std::pair("Content-Length: 0", false), std::pair("content-length: 7", true),
        std::pair("Content-Length: x", true), std::pair("transfer-encoding: chunked", true)}) {
    ASSERT_EQ(head("GET / HTTP/1.1\r\n" + std::string(line) + "\r\n\r\n"), 0);
    EXPECT_EQ(stream().has_body(), body) << line;
  }
}

TEST_F(HttpStreamTest, ABodyHasALimit) {
  ASSERT_EQ(head("POST / HTTP/1.1\r\n\r\n0123456789more"), 0);
  read(1000);
  EXPECT_EQ(read(1000), "0123456789");
  EXPECT_EQ(read(1000), "");
  EXPECT_TRUE(stream().over());
  const std::string answer = sent();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\nDate: ")) << answer;
  EXPECT_TRUE(answer.ends_with(" GMT\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")) << answer;
  EXPECT_EQ(stream().write("more", 4), -1);  // The library's own answer is not sent.
  EXPECT_EQ(sent(), "");
}

TEST_F(HttpStreamTest, ARequestThatIsNotCompleteHasATime) {
  limits_.request = std::chrono::milliseconds(1);
  EXPECT_EQ(head("GET / HTTP/1.1\r\nA: "), 408);
}

TEST_F(HttpStreamTest, ABodyThatIsNotCompleteHasATime) {
  limits_.request = std::chrono::milliseconds(50);
  ASSERT_EQ(head("POST / HTTP/1.1\r\n\r\n1"), 0);
  read(1000);
  EXPECT_EQ(read(1000), "1");
  EXPECT_EQ(read(1000), "");
  EXPECT_EQ(sent().substr(0, 12), "HTTP/1.1 408");
}

TEST_F(HttpStreamTest, AnAnswerThatIsNotReadHasATime) {
  limits_.answer = std::chrono::milliseconds(1);
  ASSERT_EQ(head("GET / HTTP/1.1\r\n\r\n"), 0);
  const std::string answer(16 << 20, 'x');
  EXPECT_EQ(stream().write(answer.data(), answer.size()), -1);
  EXPECT_TRUE(stream().over());
}

TEST_F(HttpStreamTest, SilenceAndTheEndOfAConnectionAreNotAnswered) {
  limits_.idle = std::chrono::milliseconds(1);
  EXPECT_EQ(stream().receive_head(), HttpStream::kEnded);
  EXPECT_EQ(sent(), "");
  send("GET / HTT");
  hang_up();
  EXPECT_EQ(stream().receive_head(), HttpStream::kEnded);
}

TEST_F(HttpStreamTest, TheRestOfARefusedRequestIsReadWithinALimit) {
  limits_.rest = 8 << 10;
  EXPECT_EQ(head("GET /" + std::string(100 << 10, 'x')), 414);
  stream().refuse(414);
  EXPECT_EQ(sent().substr(0, 12), "HTTP/1.1 414");
  stream().linger();  // Ends although the peer has not.
  char rest[1];
  EXPECT_EQ(recv(sockets_[0], rest, 1, MSG_DONTWAIT), 1);
}

}  // namespace
}  // namespace teletensor::server
