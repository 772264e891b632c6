#include "engine/memory/sharing.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

namespace teletensor::memory {
namespace {

struct Counter : LockRequest::Waiter {
  void on_unlocked() override { ++calls; }
  int calls = 0;
};

struct Requester : Counter {
  bool lock(std::vector<std::pair<Sharing*, bool>> locks) {
    std::vector<LockRequest::Use> uses;
    for (const auto& [sharing, write] : locks) {
      uses.push_back({core::Ref<core::Shared>(), sharing, write});
    }
    return request.try_lock(std::move(uses));
  }
  LockRequest request{this};
};

constexpr bool kRead = false, kWrite = true;

TEST(Sharing, SeveralReadersOrOneWriter) {
  Sharing sharing(1);
  Requester a, b, c;
  EXPECT_TRUE(a.lock({{&sharing, kRead}}));
  EXPECT_TRUE(b.lock({{&sharing, kRead}}));
  EXPECT_FALSE(c.lock({{&sharing, kWrite}}));
  a.request.unlock();
  EXPECT_EQ(c.calls, 0);
  b.request.unlock();
  EXPECT_EQ(c.calls, 1);
  EXPECT_TRUE(c.lock({{&sharing, kWrite}}));
  EXPECT_FALSE(a.lock({{&sharing, kRead}}));
  EXPECT_EQ(sharing.writes(), 1u);
  c.request.unlock();
  EXPECT_EQ(sharing.writes(), 2u);
  EXPECT_EQ(a.calls, 1);
}

TEST(Sharing, AStreamOfReadersDoesNotKeepAWriterOut) {
  Sharing sharing(1);
  Requester reader, writer, next;
  ASSERT_TRUE(reader.lock({{&sharing, kRead}}));
  ASSERT_FALSE(writer.lock({{&sharing, kWrite}}));
  EXPECT_FALSE(next.lock({{&sharing, kRead}}));  // behind the writer
  reader.request.unlock();
  EXPECT_EQ(writer.calls, 1);
  EXPECT_EQ(next.calls, 0);
  EXPECT_FALSE(next.lock({{&sharing, kRead}}));  // although no request holds the lock
  EXPECT_TRUE(writer.lock({{&sharing, kWrite}}));
  writer.request.unlock();
  EXPECT_EQ(next.calls, 1);
  EXPECT_TRUE(next.lock({{&sharing, kRead}}));
  next.request.unlock();
}

TEST(Sharing, AllLocksOrNone) {
  Sharing first(1), second(2);
  Requester holder, both, other;
  ASSERT_TRUE(holder.lock({{&second, kWrite}}));
  ASSERT_FALSE(both.lock({{&first, kWrite}, {&second, kWrite}}));
  EXPECT_FALSE(other.lock({{&first, kWrite}}));  // free, but `both` is older
  other.request.withdraw();
  holder.request.unlock();
  EXPECT_EQ(both.calls, 1);
  EXPECT_TRUE(both.lock({{&first, kWrite}, {&second, kWrite}}));
  EXPECT_FALSE(other.lock({{&second, kRead}}));
  both.request.unlock();
  EXPECT_EQ(other.calls, 1);
}

TEST(Sharing, ARequestThatIsWithdrawnLetsLaterOnesPass) {
  Sharing sharing(1);
  Requester reader, writer, next;
  ASSERT_TRUE(reader.lock({{&sharing, kRead}}));
  ASSERT_FALSE(writer.lock({{&sharing, kWrite}}));
  ASSERT_FALSE(next.lock({{&sharing, kRead}}));
  writer.request.withdraw();
  EXPECT_EQ(next.calls, 1);
  EXPECT_TRUE(next.lock({{&sharing, kRead}}));
  reader.request.unlock();
  next.request.unlock();
  EXPECT_EQ(writer.calls, 0);
}

TEST(Sharing, ARequestKeepsItsPlaceWithOtherLocks) {
  Sharing first(1), second(2);
  Requester holder, old, young;
  ASSERT_TRUE(holder.lock({{&first, kWrite}, {&second, kWrite}}));
  ASSERT_FALSE(old.lock({{&first, kWrite}}));
  ASSERT_FALSE(young.lock({{&second, kWrite}}));
  ASSERT_FALSE(old.lock({{&second, kWrite}}));
  holder.request.unlock();
  EXPECT_EQ(old.calls, 1);
  EXPECT_EQ(young.calls, 0);
  EXPECT_TRUE(old.lock({{&second, kWrite}}));
  old.request.unlock();
  EXPECT_EQ(young.calls, 1);
}

TEST(Sharing, ThreadsThatWaitForLocksOfEachOther) {
  Sharing first(1), second(2);
  std::pair<int, int> values{0, 0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      UnlockedSignal signal;
      LockRequest request(&signal);
      for (int i = 0; i < 1000; ++i) {
        const auto lock = [&] {
          std::vector<LockRequest::Use> uses;
          if (t != 1) uses.push_back({{}, &first, t % 2 == 0});
          if (t != 2) uses.push_back({{}, &second, t == 0});
          return request.try_lock(std::move(uses));
        };
        while (!lock()) ASSERT_TRUE(signal.wait_for(std::chrono::minutes(10)));
        if (t % 2 == 0) ++values.first;
        if (t == 0) ++values.second;
        request.unlock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(values.first, 3000);
  EXPECT_EQ(values.second, 1000);
  EXPECT_EQ(first.writes(), 3001u);
}

}  // namespace
}  // namespace teletensor::memory
