#include "server/session/lease/command_history.h"

#include <gtest/gtest.h>

#include "teletensor/v1/state.pb.h"

namespace teletensor::server {
namespace {

using Numbers = std::vector<std::uint64_t>;
const core::Status kFailed(core::Code::kInvalidArgument, "bad index");

TEST(CommandHistory, AsksForTheLinesOfDisplayedAndFailedCommands) {
  CommandHistory history;
  history.failed(4, kFailed);
  history.add_sites({{2, "a.py:2"}});
  // without_site() leaves out number 0, which no command has, and command 9, because the client
  // asks for commands up to 5 only.
  EXPECT_EQ(history.without_site({0, 2, 3, 9}, {2, 3}, 5), (Numbers{3, 4}));
  EXPECT_EQ(history.site_of(2), "a.py:2");
}

TEST(CommandHistory, DiscardsTheLinesOfTensorsThatNoLongerExist) {
  CommandHistory history;
  history.failed(4, kFailed);
  history.add_sites({{2, "a.py:2"}, {3, "a.py:3"}, {4, "a.py:4"}});
  EXPECT_EQ(history.without_site({}, {3}, 9), Numbers{});
  EXPECT_EQ(history.site_of(2), "");
  EXPECT_EQ(history.site_of(3), "a.py:3");
  EXPECT_EQ(history.site_of(4), "a.py:4");  // The line of a failed command.
}

TEST(CommandHistory, HasTheLastErrorsNewestFirst) {
  CommandHistory history;
  for (std::uint64_t seq = 1; seq <= CommandHistory::kMaxErrors + 2; ++seq) {
    history.failed(seq, core::Status(core::Code::kInternal, std::string(2000, 'x')));
  }
  history.raised(5);
  const auto errors = history.errors();
  ASSERT_EQ(errors.size(), CommandHistory::kMaxErrors);
  EXPECT_EQ(errors.front().seq, CommandHistory::kMaxErrors + 2);
  EXPECT_EQ(errors.back().seq, 3u);
  EXPECT_EQ(errors.front().text.size(), CommandHistory::kMaxErrorText);
  for (const auto& error : errors) EXPECT_EQ(error.raised, error.seq == 5);
}

TEST(CommandHistory, TheNextClientIsToldWhatWasNotRaised) {
  CommandHistory history, next;
  history.add_sites({{1, "a.py:1"}});
  history.failed(1, kFailed);
  history.failed(2, kFailed);
  history.raised(2);
  const auto open = history.hand_on(next);
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open.at(1).message(), "bad index");
  EXPECT_EQ(next.site_of(1), "a.py:1");
  EXPECT_EQ(history.site_of(1), "");
}

TEST(CommandHistory, ASnapshotKeepsLinesAndOpenErrors) {
  CommandHistory history, restored, next;
  history.add_sites({{1, "a.py:1"}});
  history.failed(1, kFailed);
  v1::SavedBody body;
  history.save(body);
  restored.restore(body);
  EXPECT_EQ(restored.site_of(1), "a.py:1");
  const auto open = restored.hand_on(next);
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open.at(1).code(), core::Code::kInvalidArgument);
}

}  // namespace
}  // namespace teletensor::server
