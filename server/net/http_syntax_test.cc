#include "server/net/http_syntax.h"

#include <gtest/gtest.h>

namespace teletensor::server {
namespace {

// Describes how a line is read over plain TCP: the status, or the target and the host.
std::string read(std::string_view line) {
  RequestLine parsed;
  const int status = parse_request_line(line, "http", parsed);
  if (status != 0) return std::to_string(status);
  return parsed.target + (parsed.host.empty() ? "" : " at " + parsed.host);
}

TEST(RequestLine, HasATargetOfEachForm) {
  EXPECT_EQ(read("GET /a/b?c=d HTTP/1.1"), "/a/b?c=d");
  EXPECT_EQ(read("GET http://box:80/a?b HTTP/1.1"), "/a?b at box:80");
  EXPECT_EQ(read("GET http://box HTTP/1.1"), "/ at box");
  EXPECT_EQ(read("GET http://box?a HTTP/1.1"), "/?a at box");
  EXPECT_EQ(read("OPTIONS * HTTP/1.1"), "*");
  EXPECT_EQ(read("OPTIONS http://box HTTP/1.1"), "* at box");
  EXPECT_EQ(read("OPTIONS http://box/ HTTP/1.1"), "/ at box");
  EXPECT_EQ(read("CONNECT box:80 HTTP/1.1"), "501");
}

TEST(RequestLine, DecodesOnlyWhatIsTheSameDecoded) {
  EXPECT_EQ(read("GET /%61%2D%7e HTTP/1.1"), "/a-~");
  EXPECT_EQ(read("GET /%2F%00%25 HTTP/1.1"), "/%252F%2500%2525");
  EXPECT_EQ(read("GET /?%61=%2F?x HTTP/1.1"), "/?%61=%2F%3Fx");
  for (const char* bad : {"/%", "/%6", "/%6g", "/?%", "/\x80", "/a\"b", "/a<b", "/a#b", "/^"}) {
    EXPECT_EQ(read("GET " + std::string(bad) + " HTTP/1.1"), "400") << bad;
  }
}

TEST(RequestLine, HasAVersion) {
  RequestLine parsed;
  EXPECT_EQ(parse_request_line("GET / HTTP/1.0", "http", parsed), 0);
  EXPECT_TRUE(parsed.old);
  EXPECT_EQ(parse_request_line("GET / HTTP/1.7", "http", parsed), 0);
  EXPECT_FALSE(parsed.old);
  EXPECT_EQ(read("PRI * HTTP/2.0"), "505");
  EXPECT_EQ(read("GET / HTTP/1."), "400");
  EXPECT_EQ(read(""), "400");
  EXPECT_EQ(read(" "), "400");
}

TEST(RequestLine, ForgetsTheLastOne) {
  RequestLine parsed;
  ASSERT_EQ(parse_request_line("GET http://box/ HTTP/1.0", "http", parsed), 0);
  ASSERT_EQ(parse_request_line("HEAD /a HTTP/1.1", "http", parsed), 0);
  EXPECT_EQ(parsed.host + parsed.method + parsed.target, "HEAD/a");
  EXPECT_FALSE(parsed.old);
}

TEST(Host, IsANameOrAnAddressWithOrWithoutAPort) {
  for (const char* good : {"", "box", "box:", "box:80", "a.b-c_d", "127.0.0.1:1", "[::1]",
                           "[::1]:7", "[::ffff:1.2.3.4]", "%41b"}) {
    EXPECT_TRUE(is_host(good)) << good;
  }
  for (const char* bad : {":80", "a b", "a:b", "a:1:2", "a@b", "a/b", "[", "[]", "[::1", "[::1]x",
                          "[g]", "%4", "a,b c", "\x80"}) {
    EXPECT_FALSE(is_host(bad)) << bad;
  }
}

}  // namespace
}  // namespace teletensor::server
