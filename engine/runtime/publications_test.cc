#include "engine/runtime/publications.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/memory/pool.h"
#include "engine/runtime/kit_test.h"

namespace teletensor::runtime {
namespace {

using core::Code;

struct Shelf {
  memory::DevicePool& device() { return box.devices.at(0).pool(); }
  memory::PoolHandle pool(memory::OwnerId owner) {
    return memory::PoolHandle(memory::Pool::create(device(), owner, 0));
  }
  std::uint64_t used() { return device().budget().used(); }

  Publications table;
  testing::Box box;
};

Publications::Facts facts(std::string user, std::string name, memory::OwnerId owner,
                          std::string users = "") {
  Publications::Facts facts;
  facts.user = std::move(user);
  facts.name = std::move(name);
  facts.users = std::move(users);
  facts.owner = owner;
  facts.shape = {4};
  return facts;
}

program::Published described(const Publications::Facts& facts) {
  return {facts.id, facts.dtype, facts.device, facts.shape, facts.writable};
}

TEST(Publications, NameAndStorageGoWithTheLastHolder) {
  Shelf box;
  auto pool = box.pool(1);
  core::Ref<memory::Storage> held = pool->allocate_shared(16, 1);
  ASSERT_TRUE(box.table.add(facts("alice", "w", 1), *held).ok());
  const auto found = box.table.find_all("w", "alice");
  ASSERT_EQ(found.size(), 1u);
  auto second = box.table.take(described(found[0]), "alice");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->get(), held.get());
  held = nullptr;
  pool = nullptr;  // ends the publisher's session
  EXPECT_EQ(box.table.find_all("w", "alice").size(), 1u);
  EXPECT_GT(box.used(), 0u);
  second = core::Status(Code::kCancelled, "");
  EXPECT_TRUE(box.table.find_all("w", "alice").empty());
  EXPECT_TRUE(box.table.all().empty());
  EXPECT_EQ(box.used(), 0u);
  EXPECT_EQ(box.table.take(described(found[0]), "alice").status().code(), Code::kNotFound);
}

TEST(Publications, NamesBelongToUsersAndSessions) {
  Shelf box;
  auto one = box.pool(1), two = box.pool(2);
  const auto a = one->allocate_shared(16, 1), b = one->allocate_shared(16, 2);
  const auto c = two->allocate_shared(16, 1);
  ASSERT_TRUE(box.table.add(facts("alice", "w", 1), *a).ok());
  EXPECT_EQ(box.table.add(facts("alice", "w", 2), *c).code(), Code::kAlreadyExists);
  EXPECT_EQ(box.table.add(facts("bob", "x", 2), *a).code(), Code::kPermissionDenied);
  EXPECT_TRUE(box.table.add(facts("bob", "w", 2), *c).ok());
  const std::uint64_t old = box.table.find_all("w", "alice")[0].id;
  // Session 1 publishes another tensor under its own name, which replaces the publication.
  ASSERT_TRUE(box.table.add(facts("alice", "w", 1), *b).ok());
  EXPECT_NE(box.table.find_all("w", "alice")[0].id, old);
  EXPECT_EQ(box.table.all().size(), 2u);
  EXPECT_EQ(box.table.withdraw(2, "nothing").code(), Code::kNotFound);
  EXPECT_TRUE(box.table.withdraw(1, "w").ok());
  EXPECT_EQ(box.table.withdraw(1, "w").code(), Code::kNotFound);
  EXPECT_TRUE(box.table.find_all("w", "alice").empty());
  EXPECT_EQ(box.table.find_all("w", "bob").size(), 1u);
}

TEST(Publications, RightsAreDeniedUnlessGranted) {
  Shelf box;
  auto pool = box.pool(1);
  const auto s = pool->allocate_shared(16, 1);
  ASSERT_TRUE(box.table.add(facts("alice", "own", 1), *s).ok());
  ASSERT_TRUE(box.table.add(facts("alice", "some", 1, "bob bobby"), *s).ok());
  ASSERT_TRUE(box.table.add(facts("alice", "all", 1, "*"), *s).ok());
  const auto may = [&](const std::string& who, const std::string& name) {
    bool may = false;
    for (const auto& each : box.table.all()) {
      if (each.name == name) may = box.table.take(described(each), who).ok();
    }
    EXPECT_EQ(may, !box.table.find_all("alice/" + name, who).empty()) << who << " " << name;
    return may;
  };
  EXPECT_TRUE(may("alice", "own") && may("alice", "some") && may("alice", "all"));
  EXPECT_TRUE(!may("bob", "own") && may("bob", "some") && may("bob", "all"));
  EXPECT_TRUE(may("bobby", "some") && !may("bobb", "some") && !may("bob bobby", "some"));
  EXPECT_TRUE(!may("carol", "own") && !may("carol", "some") && may("carol", "all"));
  EXPECT_TRUE(!may("", "own") && !may("", "some"));
  // A description that does not match the publication is refused.
  program::Published forged = described(box.table.find_all("all", "alice")[0]);
  forged.writable = true;
  EXPECT_FALSE(box.table.take(forged, "carol").ok());
  forged = described(box.table.find_all("all", "alice")[0]);
  forged.shape = {5};
  EXPECT_FALSE(box.table.take(forged, "carol").ok());
}

TEST(Publications, TakenWhileTheLastReferenceGoes) {
  Shelf box;
  for (int round = 0; round < 300; ++round) {
    auto pool = box.pool(static_cast<memory::OwnerId>(round + 1));
    core::Ref<memory::Storage> held = pool->allocate_shared(16, 1);
    ASSERT_TRUE(
        box.table.add(facts("alice", "w", static_cast<memory::OwnerId>(round + 1)), *held).ok());
    const auto what = described(box.table.find_all("w", "alice")[0]);
    std::thread taker([&] {
      for (int i = 0; i < 20; ++i) {
        const auto got = box.table.take(what, "alice");
        if (got.ok()) {
          EXPECT_EQ((*got)->bytes(), 16u);
        }
      }
    });
    held = nullptr;
    taker.join();
    EXPECT_TRUE(box.table.all().empty());
  }
  EXPECT_EQ(box.used(), 0u);
}

}  // namespace
}  // namespace teletensor::runtime
