// Tests which errors LateErrors keeps and hands out, and when a Raise is finished.
#include "clients/session/frames/late_errors.h"

#include <gtest/gtest.h>

namespace teletensor::client {
namespace {

using core::Code;
using Roots = std::vector<std::uint64_t>;

wire::ErrorEvent error(std::uint64_t root, Code code) { return {root, core::Status(code, "text")}; }

Roots roots(const std::vector<wire::ErrorEvent>& errors) {
  Roots found;
  for (const wire::ErrorEvent& each : errors) found.push_back(each.root);
  return found;
}

TEST(LateErrors, TheErrorsOfTheOldestOnesCodeAreTakenTogetherOrderedByRoot) {
  LateErrors errors;
  errors.add(error(9, Code::kInvalidArgument));
  errors.add(error(5, Code::kInternal));
  errors.add(error(7, Code::kInvalidArgument));
  EXPECT_EQ(roots(errors.take_alike({})), (Roots{7, 9}));
  EXPECT_TRUE(errors.any());
  EXPECT_EQ(roots(errors.take_alike({})), Roots{5});
  EXPECT_FALSE(errors.any());
  EXPECT_TRUE(errors.take_alike({}).empty());
}

TEST(LateErrors, OnlyTheErrorsOfARequestedCodeAreTaken) {
  LateErrors errors;
  errors.add(error(1, Code::kInvalidArgument));
  EXPECT_TRUE(errors.take_alike(Code::kInternal).empty());
  EXPECT_EQ(roots(errors.all()), Roots{1});
  EXPECT_EQ(roots(errors.take_alike(Code::kInvalidArgument)), Roots{1});
}

TEST(LateErrors, AnErrorThatIsReportedAgainIsAddedOnce) {
  LateErrors errors;
  errors.add(error(3, Code::kInternal));
  EXPECT_EQ(roots(errors.take_all()), Roots{3});
  errors.add(error(3, Code::kInternal));
  EXPECT_FALSE(errors.any());
  errors.complete(2);
  errors.add(error(3, Code::kInternal));
  EXPECT_FALSE(errors.any());
  // The roots of commands that have run are forgotten.
  errors.complete(3);
  errors.add(error(3, Code::kInternal));
  EXPECT_TRUE(errors.any());
}

TEST(LateErrors, TheFirstShortageIsKnownUntilItIsTaken) {
  LateErrors errors;
  errors.add(error(2, Code::kInvalidArgument));
  EXPECT_EQ(errors.first_shortage(), 0u);
  errors.add(error(5, Code::kResourceExhausted));
  errors.add(error(4, Code::kCancelled));
  errors.add(error(7, Code::kResourceExhausted));
  EXPECT_EQ(errors.first_shortage(), 5u);
  EXPECT_EQ(errors.take_cancelled(9), 4u);
  EXPECT_EQ(roots(errors.take_alike({})), Roots{2});
  EXPECT_EQ(errors.first_shortage(), 5u);
  EXPECT_EQ(roots(errors.take_alike({})), (Roots{5, 7}));
  EXPECT_EQ(errors.first_shortage(), 0u);
  errors.add(error(9, Code::kResourceExhausted));
  EXPECT_EQ(errors.first_shortage(), 9u);
  EXPECT_EQ(roots(errors.take_all()), Roots{9});
  EXPECT_EQ(errors.first_shortage(), 0u);
}

TEST(LateErrors, CancelledCommandsUpToTheInterruptionAreTakenAlone) {
  LateErrors errors;
  errors.add(error(8, Code::kCancelled));
  errors.add(error(6, Code::kInternal));
  errors.add(error(4, Code::kCancelled));
  EXPECT_EQ(errors.first_cancelled(3), 0u);
  EXPECT_EQ(errors.first_cancelled(9), 4u);
  EXPECT_EQ(errors.take_cancelled(7), 4u);
  EXPECT_EQ(errors.take_cancelled(7), 0u);
  EXPECT_EQ(roots(errors.all()), (Roots{8, 6}));
}

TEST(Raises, ARaiseIsSettledByItsAnswerWhichIsUsedOnce) {
  Raises raises;
  raises.add({10, 3});
  raises.add({11, 4});
  const SentRaise first = raises.next();
  EXPECT_EQ(first.root, 3u);
  EXPECT_FALSE(raises.settled(first));
  raises.receive({10, 3, {5, 6}});
  EXPECT_TRUE(raises.settled(first));
  EXPECT_EQ(raises.finish(first), (Roots{5, 6}));
  // Another thread that waits for the same Raise is woken.
  EXPECT_TRUE(raises.settled(first));
  EXPECT_FALSE(raises.is_next(first));
  EXPECT_FALSE(raises.settled(raises.next()));
}

TEST(Raises, ARaiseOfALostSessionIsFinishedWithoutAnAnswer) {
  Raises raises;
  raises.add({10, 3});
  EXPECT_TRUE(raises.is_next({10, 3}));
  EXPECT_EQ(raises.finish({10, 3}), std::nullopt);
  EXPECT_FALSE(raises.open());
}

}  // namespace
}  // namespace teletensor::client
