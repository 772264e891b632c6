#include "server/session/lease/staging.h"

#include <gtest/gtest.h>

#include "teletensor/v1/state.pb.h"

namespace teletensor::server {
namespace {

const core::Device kCpu{};

TEST(Staging, AClientLearnsTheNumberOfACompleteUpload) {
  HeldSession none;
  Staging staging(none);
  int stream = 0;
  staging.finished(5, staging.begin(5, 11, kCpu, 8, &stream));
  EXPECT_EQ(staging.answer(5, false).upload, 11u);
  EXPECT_EQ(staging.answer(6, false).upload, 0u);
  v1::SavedBody body;
  staging.save(body);
  Staging restored(none);
  restored.restore(body);
  EXPECT_EQ(restored.answer(5, false).upload, 11u);
}

TEST(Staging, AnUploadThatIsResumedHasOneStream) {
  HeldSession none;
  Staging staging(none);
  int stream = 0, next = 0;
  const StagedRef staged = staging.begin(5, 11, kCpu, 8, &stream);
  EXPECT_FALSE(staging.go_on(5, kCpu, 8, 0, &next).ok());  // Its stream has not left.
  staging.leave(5, staged, &stream, true);
  EXPECT_FALSE(staging.go_on(5, kCpu, 8, 4, &next).ok());  // Nothing was received.
  EXPECT_TRUE(staging.go_on(5, kCpu, 8, 0, &next).ok());
  staging.leave(5, staged, &next, false);
  EXPECT_FALSE(staging.go_on(5, kCpu, 8, 0, &next).ok());
}

TEST(Staging, TheNumbersOfTheLastCompleteUploadsAreKept) {
  HeldSession none;
  Staging staging(none);
  int stream = 0;
  for (std::uint64_t key = 1; key <= 100; ++key) {
    staging.finished(key, staging.begin(key, key + 1000, kCpu, 8, &stream));
  }
  EXPECT_EQ(staging.answer(1, false).upload, 0u);
  EXPECT_EQ(staging.answer(100, false).upload, 1100u);
  // An upload without a key cannot be asked about.
  staging.finished(0, staging.begin(0, 7, kCpu, 8, &stream));
  EXPECT_EQ(staging.answer(0, false).upload, 0u);
}

}  // namespace
}  // namespace teletensor::server
