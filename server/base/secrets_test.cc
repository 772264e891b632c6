#include "server/base/secrets.h"

#include <gtest/gtest.h>

#include <set>

namespace teletensor::server {
namespace {

TEST(Secrets, HexadecimalOfTheAskedLength) {
  for (const std::size_t bytes : {1, 5, 16, 32, 64}) {
    const std::string text = random_hex(bytes);
    EXPECT_EQ(text.size(), 2 * bytes);
    EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos) << text;
  }
  EXPECT_EQ(random_hex(0), "");
  EXPECT_EQ(random_hex(65), "");
}

TEST(Secrets, AllDiffer) {
  std::set<std::string> texts;
  std::set<std::uint64_t> numbers;
  for (int i = 0; i < 1000; ++i) {
    texts.insert(random_hex(16));
    numbers.insert(random_number().value());
  }
  EXPECT_EQ(texts.size(), 1000u);
  EXPECT_EQ(numbers.size(), 1000u);
}

TEST(Secrets, Same) {
  EXPECT_TRUE(same_secret("", ""));
  EXPECT_TRUE(same_secret("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "bbc", "abcd"})
    EXPECT_FALSE(same_secret("abc", other));
  EXPECT_FALSE(same_secret({"a\0b", 3}, {"a\0c", 3}));
}

}  // namespace
}  // namespace teletensor::server
