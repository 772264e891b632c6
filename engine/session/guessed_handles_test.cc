// Tests that handles which the client did not create refer to nothing.
#include <gtest/gtest.h>

#include <random>

#include "engine/autograd/front.h"
#include "engine/autograd/graph.h"

namespace teletensor::session {
namespace {

using program::HandleId;

class NoSink final : public autograd::Sink {
 public:
  program::Instruction& instruction(std::uint64_t) override { return instruction_; }
  program::Interner& interner() override { return interner_; }
  core::Status constant(std::uint64_t, program::Constant, program::ValueRef) override { return {}; }
  core::Status uploaded(std::uint64_t, const program::Uploaded&, program::ValueRef) override {
    return {};
  }
  void fetch(std::uint64_t, bool, program::Operand) override { ++fetched; }
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t) override { return {}; }
  void raised(std::uint64_t, std::uint64_t, const std::vector<std::uint64_t>&) override {}

  int fetched = 0;

 private:
  program::Instruction instruction_;
  program::Interner interner_;
};

TEST(GuessedHandles, AMillionNameNothing) {
  constexpr HandleId kMade = 1000;
  NoSink sink;
  autograd::Front front(ops::catalog(), &sink);
  std::uint64_t seq = 0;
  std::vector<HandleId> released;
  for (HandleId id = 1; id <= kMade; ++id) {
    ASSERT_TRUE(front
                    .execute(++seq, program::Command(program::Constant{
                                        core::DType::kF32, {}, core::Dims{1}, "1234"}))
                    .ok());
    if (id % 2 == 0) released.push_back(id);
  }
  ASSERT_TRUE(front.execute(++seq, program::Command(program::Release{released})).ok());
  std::mt19937_64 random(5);
  std::vector<HandleId> guesses = released;
  for (HandleId i = 1; i <= 400'000; ++i) guesses.push_back(kMade + i);
  for (HandleId i = 0; i < 100'000; ++i) guesses.push_back(~i);
  while (guesses.size() < 1'000'000) {
    const HandleId guess = random() >> random() % 64;
    if (guess > kMade) guesses.push_back(guess);
  }
  for (const HandleId guess : guesses) ASSERT_FALSE(front.find(guess)) << guess;
  for (std::size_t i = 0; i < guesses.size(); i += 37) {
    const core::Status status =
        front.execute(seq + 1, program::Command(program::Fetch{guesses[i], i % 2 == 0}));
    ASSERT_FALSE(status.ok()) << guesses[i];
  }
  EXPECT_EQ(sink.fetched, 0);
  EXPECT_EQ(front.handles(), kMade / 2);
}

}  // namespace
}  // namespace teletensor::session
