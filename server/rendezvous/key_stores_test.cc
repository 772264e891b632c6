#include "server/rendezvous/key_stores.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <random>

#include "server/testing.h"

namespace teletensor::server {
namespace {

using core::Code;
using Found = KeyStores::Found;
using Way = KeyStores::Way;

// Records the answer of a waiting call.
struct Told {
  std::optional<core::Result<Found>> found;
  KeyStores::Done done() {
    return [this](core::Result<Found> all) { found = std::move(all); };
  }
};

class KeyStoresTest : public ::testing::Test {
 protected:
  static KeyStores::Ref ref(const std::string& user, const std::string& name = "s") {
    return {user, name, 1};
  }
  std::unique_ptr<KeyStores> made(KeyStoreLimits limits = {}) {
    return std::make_unique<KeyStores>(limits, [this] { return now; });
  }
  // Returns KeyStores with the store of `ref`, kept in the folder.
  std::unique_ptr<KeyStores> kept() {
    auto stores = made();
    EXPECT_TRUE(stores->keep_in(folder.path).ok());
    return stores;
  }
  std::string only_file() const {
    std::string path;
    for (const auto& each : std::filesystem::directory_iterator(folder.path + "/stores")) {
      if (!each.path().string().ends_with(".store")) continue;
      EXPECT_EQ(path, "");
      path = each.path().string();
    }
    return path;
  }
  static std::string get(KeyStores& stores, const KeyStores::Ref& ref, std::string_view key) {
    const core::Result<Found> found = stores.find(ref, {key}, true);
    return !found.ok() ? found.status().message() : found->there ? found->values[0] : "none";
  }

  testing::Folder folder;
  KeyStores::Clock::time_point now{std::chrono::hours(1000)};
};

TEST_F(KeyStoresTest, UsersDoNotMeet) {
  const auto stores = made();
  ASSERT_EQ(*stores->open(ref("ann"), Way::kNew), 1u);
  ASSERT_EQ(stores->set(ref("bob"), {{"k", "bob's"}}).code(), Code::kNotFound);
  ASSERT_EQ(*stores->open(ref("bob"), Way::kNew), 1u);
  ASSERT_TRUE(stores->set(ref("ann"), {{"k", "ann's"}}).ok());
  EXPECT_EQ(get(*stores, ref("bob"), "k"), "none");
  Told told;
  ASSERT_TRUE(stores->wait(ref("bob"), {"k"}, true, told.done()).ok());
  ASSERT_TRUE(stores->set(ref("ann"), {{"k", "again"}}).ok());
  EXPECT_FALSE(told.found);
  ASSERT_TRUE(stores->drop(ref("bob")).ok());
  EXPECT_EQ(told.found->status().code(), Code::kAborted);
  EXPECT_EQ(get(*stores, ref("ann"), "k"), "again");
}

TEST_F(KeyStoresTest, AMasterBeginsAnewAndOthersWaitForIt) {
  const auto stores = made();
  Told joined, waits;
  ASSERT_TRUE(stores->join({"u", "s", 0}, joined.done()).ok());
  EXPECT_FALSE(joined.found);
  ASSERT_EQ(*stores->open({"u", "s", 7}, Way::kBegin), 7u);
  EXPECT_EQ((**joined.found).generation, 7u);
  ASSERT_EQ(*stores->open({"u", "s", 7}, Way::kBegin), 7u);  // The same call is sent again.
  ASSERT_TRUE(stores->set({"u", "s", 7}, {{"k", "v"}}).ok());
  EXPECT_EQ(*stores->open({"u", "s", 8}, Way::kShare), 7u);
  EXPECT_EQ(stores->open({"u", "s", 8}, Way::kNew).status().code(), Code::kAlreadyExists);
  ASSERT_TRUE(stores->wait({"u", "s", 7}, {"l"}, false, waits.done()).ok());
  ASSERT_EQ(*stores->open({"u", "s", 8}, Way::kBegin), 8u);
  EXPECT_EQ(waits.found->status().code(), Code::kAborted);
  EXPECT_EQ(stores->count({"u", "s", 7}).status().code(), Code::kAborted);
  EXPECT_EQ(*stores->count({"u", "s", 8}), 0u);
}

TEST_F(KeyStoresTest, WhoWaitsIsAnsweredWhenAllKeysAreThere) {
  const auto stores = made();
  (void)stores->open(ref("u"), Way::kNew);
  Told told, deleted;
  ASSERT_TRUE(stores->wait(ref("u"), {"a", "b", "c"}, true, told.done()).ok());
  ASSERT_TRUE(stores->wait(ref("u"), {"a", "b"}, true, deleted.done()).ok());
  ASSERT_TRUE(stores->set(ref("u"), {{"c", "3"}, {"a", "1"}}).ok());
  EXPECT_FALSE(told.found);
  ASSERT_TRUE(*stores->erase(ref("u"), {}, "a"));
  ASSERT_TRUE(stores->set(ref("u"), {{"b", "2"}}).ok());
  EXPECT_FALSE(told.found);  // "a" existed earlier, but was deleted.
  EXPECT_FALSE(deleted.found);
  ASSERT_EQ(*stores->add(ref("u"), {}, "a", 5), 5);
  EXPECT_EQ((**told.found).values, (std::vector<std::string>{"5", "2", "3"}));
  EXPECT_EQ((**deleted.found).values, (std::vector<std::string>{"5", "2"}));
  stores->sent("u", (**told.found).bytes + (**deleted.found).bytes);
  EXPECT_EQ(stores->total().waits, 0u);
}

TEST_F(KeyStoresTest, ACallerThatIsGoneLeavesNothing) {
  const auto stores = made();
  (void)stores->open(ref("u"), Way::kNew);
  const KeyStores::Total before = stores->total();
  Told told, joining;
  auto wait = stores->wait(ref("u"), {"a", std::string(4000, 'b')}, true, told.done());
  auto join = stores->join(ref("u", "other"), joining.done());
  ASSERT_TRUE(wait.ok() && join.ok());
  EXPECT_EQ(stores->total().waits, 2u);
  EXPECT_TRUE(stores->cancel(*wait) && stores->cancel(*join));
  EXPECT_FALSE(stores->cancel(*wait) || stores->cancel(*join));
  EXPECT_EQ(stores->total(), before);
  ASSERT_TRUE(stores->set(ref("u"), {{"a", ""}}).ok());
  (void)stores->open(ref("u", "other"), Way::kNew);
  EXPECT_FALSE(told.found || joining.found);
}

TEST_F(KeyStoresTest, AChangeThatIsSentAgainIsMadeOnce) {
  const auto stores = made();
  (void)stores->open(ref("u"), Way::kNew);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*stores->add(ref("u"), {9, 1}, "n", 5), 5);
  }
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(stores->append(ref("u"), {9, 2}, "log", "x").ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*stores->compare_set(ref("u"), {9, 3}, "log", "x", "y"), "y");
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(*stores->erase(ref("u"), {9, 4}, "log"));
  EXPECT_FALSE(*stores->erase(ref("u"), {9, 5}, "log"));
  EXPECT_EQ(stores->add(ref("u"), {9, 1}, "n", 5).status().code(), Code::kAborted);
  // The call of another client with the same number takes effect.
  EXPECT_EQ(*stores->add(ref("u"), {10, 1}, "n", 5), 10);
  EXPECT_EQ(*stores->add(ref("u"), {}, "n", 5), 15);
}

TEST_F(KeyStoresTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  KeyStoreLimits limits;
  limits.key_bytes = 10;
  limits.value_bytes = 100;
  limits.user_bytes = 4096;
  limits.user_stores = limits.user_waits = 2;
  const auto stores = made(limits);
  (void)stores->open(ref("u"), Way::kNew);
  const auto before = stores->total();
  const std::string key(11, 'k'), value(101, 'v'), half(60, 'h');
  EXPECT_EQ(stores->set(ref("u"), {{"k", "v"}, {key, "v"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(stores->set(ref("u"), {{"", "v"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(stores->set(ref("u"), {{"k", value}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(stores->find(ref("u"), {key}, true).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(stores->open(ref("u", std::string(257, 'n')), Way::kNew).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(stores->open(ref("u", ""), Way::kNew).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(stores->total(), before);
  ASSERT_TRUE(stores->append(ref("u"), {}, "k", half).ok());
  EXPECT_EQ(stores->append(ref("u"), {}, "k", half).code(), Code::kInvalidArgument);
  EXPECT_EQ(get(*stores, ref("u"), "k"), half);

  core::Status full;
  for (int i = 0; full.ok(); ++i) full = stores->set(ref("u"), {{std::to_string(i), half}});
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_LE(stores->total().bytes, limits.user_bytes);
  // The new value uses no more memory than the replaced one.
  EXPECT_TRUE(stores->set(ref("u"), {{"k", half}}).ok());
  Told told;
  EXPECT_EQ(stores->wait(ref("u"), std::vector<std::string_view>(9, "none"), true, told.done())
                .status()
                .code(),
            Code::kResourceExhausted);

  const auto others = ref("other");  // The other user has its own budget.
  (void)stores->open(others, Way::kNew);
  EXPECT_TRUE(stores->set(others, {{"k", half}}).ok());
  (void)stores->open(ref("other", "2"), Way::kNew);
  EXPECT_EQ(stores->open(ref("other", "3"), Way::kNew).status().code(), Code::kResourceExhausted);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(stores->wait(others, {"none"}, true, told.done()).ok());
  }
  EXPECT_EQ(stores->wait(others, {"none"}, true, told.done()).status().code(),
            Code::kResourceExhausted);
}

// Entries that are deleted, and clients that are forgotten, leave room for as many others.
TEST_F(KeyStoresTest, DeletedEntriesAndForgottenClientsUseNothing) {
  KeyStoreLimits limits;
  limits.user_bytes = 4096;
  limits.clients = 4;
  const auto stores = made(limits);
  (void)stores->open(ref("u"), Way::kNew);
  const auto empty = stores->total().bytes;
  const std::string key(200, 'k'), value(300, 'v');
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(stores->set(ref("u"), {{key, value}}).ok()) << i;
    EXPECT_GE(stores->total().bytes, empty + key.size() + value.size());
    ASSERT_TRUE(*stores->erase(ref("u"), {}, key));
    ASSERT_EQ(stores->total().bytes, empty);
  }
  ASSERT_TRUE(stores->set(ref("u"), {{"n", "0"}}).ok());
  const auto without = stores->total().bytes;
  std::uint64_t known = 0;  // bytes with as many clients as are remembered
  for (std::uint64_t client = 1; client <= 100; ++client) {
    ASSERT_TRUE(stores->compare_set(ref("u"), {client, 1}, "n", "0", "0").ok()) << client;
    if (client == limits.clients) known = stores->total().bytes;
    if (client > limits.clients) {
      ASSERT_EQ(stores->total().bytes, known) << client;
    }
  }
  EXPECT_GE(known, without + limits.clients * sizeof(std::uint64_t));
}

TEST_F(KeyStoresTest, NumbersThatAreNone) {
  const auto stores = made();
  (void)stores->open(ref("u"), Way::kNew);
  for (const std::string text : {"", "1x", " 1", "0x1", "9223372036854775808", "1.5"}) {
    ASSERT_TRUE(stores->set(ref("u"), {{"k", text}}).ok());
    EXPECT_EQ(stores->add(ref("u"), {}, "k", 1).status().code(), Code::kFailedPrecondition);
    EXPECT_EQ(get(*stores, ref("u"), "k"), text);
  }
  ASSERT_TRUE(stores->set(ref("u"), {{"k", "9223372036854775807"}}).ok());
  EXPECT_EQ(stores->add(ref("u"), {}, "k", 1).status().code(), Code::kOutOfRange);
  EXPECT_EQ(*stores->add(ref("u"), {}, "k", -1), 9223372036854775806);
}

TEST_F(KeyStoresTest, AnswersThatNobodyTakesAreBounded) {
  KeyStoreLimits limits;
  limits.user_answers = 100;
  limits.answer_bytes = 40;
  const auto stores = made(limits);
  (void)stores->open(ref("u"), Way::kNew);
  const std::string value(30, 'v');
  ASSERT_TRUE(stores->set(ref("u"), {{"a", value}, {"b", value}}).ok());
  for (int i = 0; i < 3; ++i) {
    const auto found = stores->find(ref("u"), {"a", "b"}, true);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->values.size(), 1u);  // The caller then asks for the other key.
  }
  EXPECT_EQ(stores->find(ref("u"), {"a"}, true).status().code(), Code::kUnavailable);
  stores->sent("u", 30);
  EXPECT_TRUE(stores->find(ref("u"), {"a"}, true).ok());
}

TEST_F(KeyStoresTest, AStoreThatNobodyUsesGoesAfterAnHour) {
  const auto stores = kept();
  (void)stores->open(ref("u"), Way::kNew);
  (void)stores->open(ref("u", "waited for"), Way::kNew);
  Told told;
  const auto wait = stores->wait(ref("u", "waited for"), {"k"}, true, told.done());
  now += std::chrono::minutes(59);
  ASSERT_TRUE(stores->count(ref("u")).ok());
  now += std::chrono::minutes(59);
  stores->sweep();
  EXPECT_EQ(stores->total().stores, 2u);
  now += std::chrono::minutes(1);
  stores->sweep();
  EXPECT_EQ(stores->count(ref("u")).status().code(), Code::kNotFound);
  EXPECT_EQ(*stores->count(ref("u", "waited for")), 0u);
  ASSERT_TRUE(stores->cancel(*wait));
  now += std::chrono::minutes(61);
  stores->sweep();
  EXPECT_EQ(stores->total(), KeyStores::Total{});
  EXPECT_EQ(only_file(), "");
}

TEST_F(KeyStoresTest, AClosedDaemonAnswersWhoWaits) {
  const auto stores = made();
  (void)stores->open(ref("u"), Way::kNew);
  Told waits, joins;
  ASSERT_TRUE(stores->wait(ref("u"), {"k"}, true, waits.done()).ok());
  ASSERT_TRUE(stores->join(ref("u", "other"), joins.done()).ok());
  stores->close();
  EXPECT_EQ(waits.found->status().code(), Code::kUnavailable);
  EXPECT_EQ(joins.found->status().code(), Code::kUnavailable);
  EXPECT_EQ(stores->count(ref("u")).status().code(), Code::kUnavailable);
}

TEST_F(KeyStoresTest, TheNextDaemonGoesOn) {
  auto stores = kept();
  (void)stores->open(ref("u"), Way::kNew);
  ASSERT_TRUE(stores->set(ref("u"), {{"a", "1"}, {"empty", ""}, {"gone", "x"}}).ok());
  ASSERT_TRUE(stores->append(ref("u"), {}, "a", "2").ok());
  ASSERT_TRUE(*stores->erase(ref("u"), {}, "gone"));
  ASSERT_EQ(*stores->add(ref("u"), {9, 1}, "n", 5), 5);
  const auto before = stores->total();
  struct stat info {};
  ASSERT_EQ(stat(only_file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  {
    KeyStores second({}, [this] { return now; });
    EXPECT_EQ(second.keep_in(folder.path).code(), Code::kUnavailable);
  }
  stores.reset();  // The destructor writes nothing, so the state is the same as after kill -9.
  stores = kept();
  EXPECT_EQ(stores->total(), before);
  EXPECT_EQ(get(*stores, ref("u"), "a"), "12");
  EXPECT_EQ(get(*stores, ref("u"), "empty"), "");
  EXPECT_EQ(get(*stores, ref("u"), "gone"), "none");
  EXPECT_EQ(*stores->add(ref("u"), {9, 1}, "n", 5), 5);  // This change was already made.
  EXPECT_EQ(*stores->add(ref("u"), {9, 2}, "n", 5), 10);
  ASSERT_TRUE(stores->drop(ref("u")).ok());
  EXPECT_EQ(only_file(), "");
}

// Makes many random changes, so that the file is rewritten several times.
TEST_F(KeyStoresTest, AFileIsWrittenAnewWhenItIsMostlyOld) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 chance(seed);
  std::map<std::string, std::string> model;
  auto stores = kept();
  (void)stores->open(ref("u"), Way::kNew);
  std::uint64_t written = 0, most = 0;
  for (std::uint64_t i = 1; i <= 600; ++i) {
    const std::string key = "k" + std::to_string(chance() % 8), value(chance() % 30'000, 'v');
    if (chance() % 4 == 0) {
      EXPECT_EQ(*stores->erase(ref("u"), {3, i}, key), model.erase(key) == 1);
    } else if (chance() % 2 == 0) {
      ASSERT_TRUE(stores->set(ref("u"), {{key, value}}).ok());
      model[key] = value;
    } else if (model[key].size() < 100'000) {
      ASSERT_TRUE(stores->append(ref("u"), {3, i}, key, value).ok());
      model[key] += value;
    } else {
      ASSERT_TRUE(stores->set(ref("u"), {{key, ""}}).ok());
      model[key].clear();
    }
    written += value.size();
    most = std::max<std::uint64_t>(most, std::filesystem::file_size(only_file()));
    if (i % 200 == 0) {
      stores.reset();
      stores = kept();
    }
  }
  EXPECT_GT(written, most);
  EXPECT_EQ(*stores->count(ref("u")), model.size());
  for (const auto& [key, value] : model) EXPECT_EQ(get(*stores, ref("u"), key), value) << key;
}

// A file that is truncated anywhere, or has a wrong byte, restores the changes before that
// position.
TEST_F(KeyStoresTest, DamagedFiles) {
  auto stores = kept();
  (void)stores->open(ref("u"), Way::kNew);
  for (const char* key : {"0", "1", "2", "3"}) {
    ASSERT_TRUE(stores->set(ref("u"), {{key, std::string("value of ") + key}}).ok());
  }
  stores.reset();
  const std::string path = only_file();
  std::ifstream file(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string spoilt = whole;
    spoilt[at] = static_cast<char>(spoilt[at] ^ 0x10);
    for (const std::string& bytes : {whole.substr(0, at), spoilt}) {
      write(bytes);
      stores = kept();
      const auto there = stores->count(ref("u"));
      if (there.ok()) {
        EXPECT_LT(*there, 4u) << at;
        for (std::uint64_t i = 0; i < *there; ++i) {
          const std::string key = std::to_string(i);
          EXPECT_EQ(get(*stores, ref("u"), key), "value of " + key) << at;
        }
        ASSERT_TRUE(stores->set(ref("u"), {{"new", "value"}}).ok());
        stores.reset();
        stores = kept();
        EXPECT_EQ(get(*stores, ref("u"), "new"), "value") << at;
      } else {
        EXPECT_EQ(stores->total(), KeyStores::Total{}) << at;
      }
      stores.reset();
    }
  }
  // A file that is too large to be that of a store is not read.
  write(whole);
  std::filesystem::resize_file(path, (std::uint64_t{1} << 31) + 1);
  stores = kept();
  EXPECT_EQ(stores->total(), KeyStores::Total{});
}

TEST_F(KeyStoresTest, AFolderThatCannotBeWritten) {
  const auto stores = kept();
  (void)stores->open(ref("u"), Way::kNew);
  ASSERT_TRUE(stores->set(ref("u"), {{"k", "v"}}).ok());
  std::filesystem::remove_all(folder.path + "/stores");
  EXPECT_EQ(stores->set(ref("u"), {{"k", "w"}}).code(), Code::kUnavailable);
  EXPECT_EQ(get(*stores, ref("u"), "k"), "v");
  EXPECT_EQ(stores->open(ref("u", "2"), Way::kNew).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace teletensor::server
