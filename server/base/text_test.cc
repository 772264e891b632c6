#include "server/base/text.h"

#include <gtest/gtest.h>

#include "engine/program/text.h"

namespace teletensor::server {
namespace {

TEST(Text, LettersOfAllScriptsStay) {
  EXPECT_EQ(readable("räumen – 12 Uhr", 200), "räumen – 12 Uhr");
  EXPECT_EQ(readable("наука 日本 😀", 200), "наука 日本 😀");
}

TEST(Text, WhatAnotherReaderCouldMistake) {
  EXPECT_EQ(readable("a\nb\tc\x1b[31m\x7f", 200), "a?b?c?[31m?");
  EXPECT_EQ(readable("say \"no\" \\ ", 200), "say ?no? ? ");
  // The text contains a "next line" character and a right-to-left override.
  EXPECT_EQ(readable("a\xc2\x85\xe2\x80\xaez", 200), "a??z");
}

TEST(Text, WhatIsNotUtf8) {
  EXPECT_EQ(readable("a\xff\xc3", 200), "a??");
  EXPECT_EQ(readable("\xc0\xaf", 200), "??");  // An overlong UTF-8 encoding.
  // A UTF-16 surrogate, which is invalid in UTF-8.
  EXPECT_EQ(readable("\xed\xa0\x80", 200), "???");
  EXPECT_EQ(readable("\xf4\x90\x80\x80", 200), "????");  // A code point beyond the last valid one.
  EXPECT_EQ(readable("\xe2\x80", 200), "??");            // A truncated UTF-8 sequence.
}

TEST(Text, CutBetweenCharacters) {
  EXPECT_EQ(readable("aää", 3), "aä");
  EXPECT_EQ(readable("aää", 4), "aä");
  EXPECT_EQ(readable("aää", 5), "aää");
  EXPECT_EQ(readable("", 5), "");
  EXPECT_EQ(program::shortened("say \"ää\"", 6), "say \"");
  EXPECT_EQ(program::shortened("say \"ää\"", 7), "say \"ä");
  EXPECT_EQ(program::shortened("a\xff\xc3", 2), "a\xff");
  EXPECT_EQ(program::shortened("", 5), "");
}

}  // namespace
}  // namespace teletensor::server
