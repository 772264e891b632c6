#include "server/base/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace teletensor::server {
namespace {

std::string logfmt(std::string_view text) {
  return log_text(LogFormat::kLogfmt, "ended", {{"reason", text}, {"id", 7}});
}

TEST(Log, NumbersAndFlagsAreBareAndTextsAreQuoted) {
  EXPECT_EQ(log_text(LogFormat::kLogfmt, "opened",
                     {{"session", "räumen"}, {"id", 1ull << 63}, {"new", true}, {"seconds", 0.5}}),
            "event=opened session=\"räumen\" id=9223372036854775808 new=true seconds=0.500");
  EXPECT_EQ(log_text(LogFormat::kLogfmt, "stopped", {}), "event=stopped");
}

TEST(Log, NoTextEndsItsFieldOrItsLine) {
  EXPECT_EQ(logfmt("x\" \ntime=2026 why=killed"),
            R"(event=ended reason="x\" \ntime=2026 why=killed" id=7)");
  EXPECT_EQ(logfmt("a\\\"b\r\t\x1b[31m"), R"(event=ended reason="a\\\"b\u000d\t\u001b[31m" id=7)");
  EXPECT_EQ(logfmt(std::string_view("a\0b", 3)), R"(event=ended reason="a\u0000b" id=7)");
  EXPECT_EQ(logfmt("\xe2\x80\xae\xe2\x80\xa8"), R"(event=ended reason="\u202e\u2028" id=7)");
  EXPECT_EQ(logfmt("a\xff\xc3z"), "event=ended reason=\"a\xef\xbf\xbd\xef\xbf\xbdz\" id=7");
}

TEST(Log, AVeryLongTextIsCut) { EXPECT_LT(logfmt(std::string(1 << 20, 'x')).size(), 3000u); }

TEST(Log, EveryTextIsJson) {
  for (const std::string& text : {std::string("x\" \ny\\"), std::string("a\0b", 3),
                                  std::string("räumen"), std::string("a\x1b\x7f")}) {
    const std::string line =
        "{" + log_text(LogFormat::kJson, "ended", {{"reason", text}, {"code", 3}, {"new", false}}) +
        "}";
    const auto read = nlohmann::json::parse(line);
    EXPECT_EQ(read["event"], "ended");
    EXPECT_EQ(read["reason"], text);
    EXPECT_EQ(read["code"], 3);
    EXPECT_EQ(read["new"], false);
  }
}

}  // namespace
}  // namespace teletensor::server
