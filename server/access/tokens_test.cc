#include "server/access/tokens.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

namespace teletensor::server {
namespace {

std::string fresh_folder(const char* name) {
  const std::string folder = testing::TempDir() + "/tokens-" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

std::optional<Caller> found(Tokens& tokens, const std::string& secret) {
  const auto caller = tokens.find(secret);
  EXPECT_TRUE(caller.ok()) << caller.status().message();
  return caller.ok() ? *caller : std::nullopt;
}

TEST(Tokens, CountWhileTheirSessionMayArrive) {
  Tokens source(fresh_folder("source")), target(fresh_folder("target"));
  const NewToken ann = *source.create("ann", Role::kAdmin, 0);
  const auto hashes = *source.hashes_of("ann", 4);
  ASSERT_EQ(hashes.size(), 1u);
  EXPECT_FALSE(found(target, ann.secret));
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
  Tokens source(fresh_folder("source")), target(fresh_folder("target"));
  const NewToken ann = *source.create("ann", Role::kUser, 0);
  const auto hashes = *source.hashes_of("ann", 4);
  target.expect("ann", hashes);
  ASSERT_TRUE(target.adopt("ann", hashes).ok());
  EXPECT_TRUE(found(target, ann.secret));
  ASSERT_TRUE(target.revoke(ann.id).ok());
  EXPECT_FALSE(found(target, ann.secret));
}

TEST(Tokens, AnExpectedTokenExpires) {
  Tokens source(fresh_folder("source")), target("");
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
