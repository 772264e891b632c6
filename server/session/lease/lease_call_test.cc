#include "server/session/lease/lease_call.h"

#include <gtest/gtest.h>

namespace teletensor::server {
namespace {

class Call final : public LeaseCall {
 public:
  void lease_ended(const Ending& ending) override { word = ending.word; }
  void abandon() override { abandoned = true; }
  std::string word;
  bool abandoned = false;
};

TEST(LingeringCalls, ACallThatDoesNotFinishIsCancelledAfterItsTime) {
  LingeringCalls lingering;
  const auto stuck = std::make_shared<Call>();
  auto finished = std::make_shared<Call>();
  lingering.dismiss(stuck, {core::Status(core::Code::kAborted, "replaced"), "fenced"});
  EXPECT_EQ(stuck->word, "fenced");
  lingering.add(finished);
  finished.reset();
  lingering.abandon(std::chrono::hours(1));
  EXPECT_FALSE(stuck->abandoned);
  lingering.abandon(std::chrono::milliseconds(0));
  EXPECT_TRUE(stuck->abandoned);
}

}  // namespace
}  // namespace teletensor::server
