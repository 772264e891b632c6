#include "server/access/tokens.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

#include "engine/core/folder_test.h"

namespace teletensor::server {
namespace {

std::optional<Caller> found(Tokens& tokens, const std::string& secret) {
  const auto caller = tokens.find(secret);
  EXPECT_TRUE(caller.ok()) << caller.status().message();
  return caller.ok() ? *caller : std::nullopt;
}

TEST(Tokens, CountWhileTheirSessionMayArrive) {
  const core::TestFolder folder;
  Tokens source(folder.path + "/source"), target(folder.path + "/target");
  const NewToken ann = *source.create("ann", Role::kAdmin, 0);
  const auto hashes = *source.hashes_of("ann", 4);
  ASSERT_EQ(hashes.size(), 1u);
  EXPECT_FALSE(found(target, ann.secret));
  // A question alone makes no file.
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/target/tokens.db"));
  // Two sessions of ann are being moved here, and one of them does not arrive.
  target.expect("ann", hashes);
  target.expect("ann", hashes);
  target.disregard(hashes);
  const auto caller = found(target, ann.secret);
  ASSERT_TRUE(caller);
  EXPECT_EQ(caller->user, "ann");
  EXPECT_EQ(caller->role, Role::kUser);
  EXPECT_TRUE(target.list()->empty());
  EXPECT_FALSE(found(target, ann.secret + "0"));
  target.disregard(hashes);
  EXPECT_FALSE(found(target, ann.secret));
  target.disregard(hashes);
}

TEST(Tokens, WhatTheFileSaysOfAnExpectedTokenCounts) {
  const core::TestFolder folder;
  Tokens source(folder.path + "/source"), target(folder.path + "/target");
  const NewToken ann = *source.create("ann", Role::kUser, 0);
  const auto hashes = *source.hashes_of("ann", 4);
  target.expect("ann", hashes);
  ASSERT_TRUE(target.adopt("ann", hashes).ok());
  EXPECT_TRUE(found(target, ann.secret));
  ASSERT_TRUE(target.revoke(ann.id).ok());
  EXPECT_FALSE(found(target, ann.secret));
}

TEST(Tokens, AnExpectedTokenExpires) {
  const core::TestFolder folder;
  Tokens source(folder.path), target("");
  const NewToken ann = *source.create("ann", Role::kUser, 100);
  auto hashes = *source.hashes_of("ann", 4);
  target.expect("ann", hashes);
  EXPECT_TRUE(found(target, ann.secret));
  target.disregard(hashes);
  hashes[0].expires = std::time(nullptr) - 1;
  target.expect("ann", hashes);
  EXPECT_FALSE(found(target, ann.secret));
}

}  // namespace
}  // namespace teletensor::server
