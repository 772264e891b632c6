// Tests the numbers, limits and releases of ProgramTable.
#include "clients/session/programs/program_table.h"

#include <gtest/gtest.h>

namespace teletensor::client {
namespace {

program::Amounts limits() {
  program::Amounts most;
  most.programs = 2;
  most.program_steps = 10;
  most.program_bytes = 100;
  return most;
}

TEST(ProgramTable, NumbersStartAtOneAndAreNotUsedAgain) {
  ProgramTable table(limits());
  EXPECT_EQ(table.next_number(), 1u);
  table.add(1, 1);
  table.release(1);
  EXPECT_EQ(table.take_released(), 1u);
  EXPECT_EQ(table.next_number(), 2u);
}

TEST(ProgramTable, EachLimitRefusesAProgramThatWouldExceedIt) {
  ProgramTable table(limits());
  table.add(6, 60);
  EXPECT_TRUE(table.fits(4, 40).ok());
  const core::Status steps = table.fits(5, 1), bytes = table.fits(1, 41);
  EXPECT_EQ(steps.code(), core::Code::kResourceExhausted);
  EXPECT_NE(steps.message().find("session_program_steps"), std::string::npos) << steps.message();
  EXPECT_NE(bytes.message().find("session_program_bytes"), std::string::npos) << bytes.message();
  table.add(1, 1);
  const core::Status programs = table.fits(1, 1);
  EXPECT_NE(programs.message().find("session_programs"), std::string::npos) << programs.message();
}

TEST(ProgramTable, AnUnknownLimitRefusesNothing) {
  ProgramTable table({});
  table.add(std::uint64_t{1} << 60, std::uint64_t{1} << 60);
  EXPECT_TRUE(table.fits(std::uint64_t{1} << 60, std::uint64_t{1} << 60).ok());
}

TEST(ProgramTable, AReleasedProgramCountsUntilItsReleaseIsTaken) {
  ProgramTable table(limits());
  table.add(6, 60);
  table.add(4, 40);
  EXPECT_FALSE(table.has_released());
  table.release(1);
  EXPECT_TRUE(table.has_released());
  EXPECT_FALSE(table.fits(1, 1).ok());
  EXPECT_EQ(table.take_released(), 1u);
  EXPECT_FALSE(table.has_released());
  EXPECT_TRUE(table.fits(6, 60).ok());
  EXPECT_FALSE(table.fits(7, 1).ok());
}

}  // namespace
}  // namespace teletensor::client
