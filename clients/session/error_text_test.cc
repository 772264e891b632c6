// Tests the texts of asynchronous errors with and without known source lines.
#include "clients/session/error_text.h"

#include <gtest/gtest.h>

namespace teletensor::client {
namespace {

// Knows the lines of commands up to 9.
class Lines final : public ClientHooks {
 public:
  std::string reader;

  core::Status block(const std::function<bool()>&) override { return {}; }
  void note_site(std::uint64_t) override {}
  core::Result<autograd::Node*> again(autograd::Node&) override { return core::invalid("none"); }
  std::string here() override { return reader; }
  std::string issued(std::uint64_t seq) const override {
    return seq == 0 || seq > 9 ? "" : "at f.py:" + std::to_string(seq);
  }
};

LateError late(std::uint64_t root, std::uint64_t count = 1, std::uint64_t last_root = 0) {
  return {core::invalid("text"), root, count, last_root};
}

TEST(ErrorText, CommandNumbersOfTheDaemonBecomeSourceLines) {
  const Lines lines;
  EXPECT_EQ(explained(lines, "full: 4 bytes made by command 3, 8 made by command 12", 5),
            "full: 4 bytes made at f.py:3, 8 made by command 12\n(issued at f.py:5)");
  EXPECT_EQ(explained(lines, "text", 0), "text");
}

TEST(ErrorText, AnErrorOfAnEarlierLineNamesBothLines) {
  Lines lines;
  EXPECT_EQ(explained(lines, late(3)), "text\n(issued at f.py:3)");
  lines.reader = "f.py:3";
  EXPECT_EQ(explained(lines, late(3)), "text\n(issued at f.py:3)");
  lines.reader = "f.py:8";
  EXPECT_EQ(explained(lines, late(3)),
            "text\n(from an earlier line: issued at f.py:3; raised at f.py:8)");
  EXPECT_EQ(explained(lines, late(12)), "text");
}

TEST(ErrorText, FurtherFailuresAreCounted) {
  Lines lines;
  EXPECT_EQ(explained(lines, late(12, 2, 7)),
            "text\n(1 further command failed in the same way, the last one issued at f.py:7; this "
            "exception stands for all of them)");
  EXPECT_EQ(explained(lines, late(12, 3, 14)),
            "text\n(2 further commands failed in the same way; this exception stands for all of "
            "them)");
  EXPECT_EQ(stands_for(lines, late(3)),
            "\n(1 earlier command failed in the same way, the first one issued at f.py:3; this "
            "exception stands for all of them)");
  EXPECT_EQ(stands_for(lines, late(12, 2)),
            "\n(2 earlier commands failed in the same way; this exception stands for all of them)");
}

TEST(ErrorText, FailuresOfOtherLinesAndTextsAreShown) {
  Lines lines;
  LateError error{core::invalid("index 7"), 1, 5, 6};
  error.further = {{"index 9", 1}, {"index 9", 2}, {"other", 2}, {"index 8", 2}};
  EXPECT_EQ(explained(lines, error),
            "index 7\n(issued at f.py:1)\nalso: index 9\n(issued at f.py:2)\nalso: other\n"
            "(issued at f.py:2)\n(4 further commands failed, the last one issued at f.py:6; this "
            "exception stands for all of them)");
  error.further.clear();
  for (int i = 0; i < 12; ++i)
    error.further.emplace_back(std::string(1, static_cast<char>('a' + i)), 12);
  const std::string text = explained(lines, error);
  EXPECT_NE(text.find("\nalso: h\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("\nalso: i\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nand 4 more of other kinds\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace teletensor::client
