#include "engine/core/bounds.h"

#include <gtest/gtest.h>

namespace teletensor::core {
namespace {

template <class... T>
std::string bytes_of(T... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return bytes;
}

TEST(Bounds, OfNumbers) {
  const Bounds i32 = bounds_of(DType::kI32, bytes_of(std::int32_t{3}, std::int32_t{-7}));
  EXPECT_EQ(i32.least, -7);
  EXPECT_EQ(i32.most, 3);
  const Bounds u8 = bounds_of(DType::kU8, "\xff\x05");
  EXPECT_EQ(u8.least, 5);
  EXPECT_EQ(u8.most, 255);
  const Bounds i64 = bounds_of(DType::kI64, bytes_of(std::int64_t{1} << 40));
  EXPECT_TRUE(i64.within(DType::kI64, 0, std::int64_t{1} << 40));
  EXPECT_FALSE(
      i64.within(DType::kI32, 0, std::int64_t{1} << 40));  // the same bytes read as another dtype
  EXPECT_FALSE(i64.within(DType::kI64, 0, (std::int64_t{1} << 40) - 1));
  // A kU64 number beyond the range of kI64 is not a valid index.
  EXPECT_FALSE(bounds_of(DType::kU64, bytes_of(~std::uint64_t{0})).within(DType::kU64, 0, 100));
}

TEST(Bounds, NothingIsKnownOfOthers) {
  for (const Bounds& unknown : {bounds_of(DType::kF32, bytes_of(1.0f)), bounds_of(DType::kI64, ""),
                                bounds_of(DType::kBool, "\1"), Bounds()}) {
    for (const DType dtype : {DType::kI64, DType::kF32, DType::kU8}) {
      EXPECT_FALSE(unknown.within(dtype, INT64_MIN + 1, INT64_MAX));
      EXPECT_FALSE(unknown.without_zero(dtype));
    }
  }
}

TEST(Bounds, Narrow) {
  Bounds bounds;
  bounds.narrow(DType::kI32, -3, 9);
  bounds.narrow(DType::kI32, 0, 20);
  EXPECT_EQ(bounds.least, 0);
  EXPECT_EQ(bounds.most, 9);
  EXPECT_FALSE(bounds.without_zero(DType::kI32));
  bounds.narrow(DType::kI32, 1, 9);
  EXPECT_TRUE(bounds.without_zero(DType::kI32));
  bounds.narrow(DType::kI64, 0, 99);  // discards what was known for kI32
  EXPECT_FALSE(bounds.within(DType::kI32, 0, 9));
  EXPECT_FALSE(bounds.within(DType::kI64, 0, 9));
  EXPECT_TRUE(bounds.within(DType::kI64, 0, 99));
}

}  // namespace
}  // namespace teletensor::core
