#include "engine/memory/described.h"

#include <gtest/gtest.h>

#include <limits>

namespace teletensor::memory {
namespace {

TEST(Described, TellsWhatItWasTold) {
  Described described;
  EXPECT_FALSE(described.get());
  const core::Dims shapes[] = {{},
                               {0},
                               {127, 128},
                               {64, 3, 224, 224},
                               {200, 200, 200, 200, 200, 200, 200},
                               {std::numeric_limits<std::int64_t>::max()},
                               core::Dims(core::kMaxRank, 1)};
  for (const core::Dims& shape : shapes) {
    for (const core::DType dtype : core::kAllDTypes) {
      described.set(dtype, shape);
      const auto found = described.get();
      ASSERT_TRUE(found) << core::to_string(shape);
      EXPECT_EQ(found->dtype, dtype);
      EXPECT_EQ(found->shape, shape);
    }
  }
  Described copy;
  copy.set(described);
  EXPECT_EQ(copy.get()->shape, described.get()->shape);
  described.clear();
  EXPECT_FALSE(described.known());
  EXPECT_FALSE(described.get());
}

TEST(Described, AShapeThatDoesNotFitIsNotKnown) {
  Described described;
  described.set(core::DType::kF32, {2, 3});
  described.set(core::DType::kF32, core::Dims(8, 128));
  EXPECT_FALSE(described.get());
}

}  // namespace
}  // namespace teletensor::memory
