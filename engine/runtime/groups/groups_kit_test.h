// Helpers of the tests of groups: ranks, and an adder of float32 with plain loops.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory/pool.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/kit_test.h"

namespace teletensor::runtime::testing {

using collective::Call;
using collective::Job;
using collective::Op;
using core::Code;
using core::Status;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A rank with at most one operation at a time: its outcome is taken before the next deposit.
class TestRank {
 public:
  explicit TestRank(std::shared_ptr<Groups::Member> member) : member_(std::move(member)) {}
  collective::Rank rank() const { return member_->rank(); }
  collective::Rank ranks() const { return member_->ranks(); }
  bool begin() {
    const auto ticket = member_->begin();
    if (ticket) open(*ticket);
    return !ticket;
  }
  Groups::Ticket deposit(Groups::Part part) {
    open(member_->deposit(std::move(part)));
    return ticket_;
  }
  void await_sends() { open(member_->await_sends()); }
  void decline(Call call, const Status& why) {
    member_->decline(std::move(call), why);
    outcome_ = {why};
  }
  bool ended() { return outcome_ || member_->ended(ticket_); }
  bool wait(Groups::Waiter* waiter) { return !outcome_ && member_->wait(ticket_, waiter); }
  Status take() {
    if (!outcome_) outcome_ = member_->take(ticket_);
    return outcome_->status;
  }
  collective::Rank sender() {
    (void)take();
    return outcome_->sender;
  }
  void give_up(const std::string& why) { member_->give_up(why); }
  void leave(const std::string& why) { member_->leave(why); }
  Groups::Member& member() { return *member_; }

 private:
  void open(Groups::Ticket ticket) {
    ticket_ = ticket;
    outcome_.reset();
  }
  std::shared_ptr<Groups::Member> member_;
  Groups::Ticket ticket_ = 0;
  std::optional<Groups::Outcome> outcome_ = Groups::Outcome();
};
using MemberRef = std::shared_ptr<TestRank>;

class Counted : public Groups::Waiter {
 public:
  void met() override {
    ++times;
    times.notify_all();
  }
  void wait_for(int wanted) const {
    for (int now = times; now < wanted; now = times) times.wait(now);
  }
  std::atomic<int> times{0};
};

// Adds float32 by plain loops.
class Plain : public Groups::Adder {
 public:
  explicit Plain(memory::PoolHandle& pool) : pool_(pool) {}
  Status add(std::span<const Job> jobs, const Address& address) override {
    if (!fails.ok()) return fails;
    for (const Job& job : jobs) {
      const auto n = static_cast<std::size_t>(job.elements);
      std::vector<std::vector<float>> slots;
      for (const Job::Source& source : job.sources) {
        const auto* data = reinterpret_cast<const float*>(address(source.at));
        slots.emplace_back(data, data + n);
      }
      for (const auto& addition : job.additions) {
        for (std::size_t i = 0; i < n; ++i) slots[addition.into][i] += slots[addition.from][i];
      }
      for (const Job::Output& output : job.outputs) {
        for (const collective::Slice& to : output.to) {
          std::memcpy(address(to), slots[output.slot].data(), n * sizeof(float));
        }
      }
    }
    return {};
  }
  core::Ref<memory::Storage> allocate(std::size_t bytes) override {
    return has_memory ? pool_->allocate_shared(bytes, 1) : nullptr;
  }
  Status fails;
  bool has_memory = true;

 private:
  memory::PoolHandle& pool_;
};

class GroupsKit : public ::testing::Test {
 protected:
  RowMajor row(const std::vector<float>& values) {
    RowMajor row;
    row.bytes = values.size() * sizeof(float);
    row.storage = memory::Pinned(pool_->allocate_shared(row.bytes, 1));
    std::memcpy(row.data(), values.data(), row.bytes);
    return row;
  }
  static std::vector<float> floats(const RowMajor& row) {
    const auto* data = reinterpret_cast<const float*>(row.data());
    return {data, data + row.bytes / sizeof(float)};
  }
  static Call sum(std::int64_t elements) {
    Call call;
    call.op = Op::kAllReduce;
    call.shape = {elements};
    call.count = elements;
    return call;
  }
  // Deposits an all_reduce and returns the memory of its result.
  RowMajor deposit(const MemberRef& member, const std::vector<float>& values) {
    Groups::Part part{sum(static_cast<std::int64_t>(values.size())), row(values),
                      row(std::vector<float>(values.size()))};
    RowMajor result = part.result;
    member->deposit(std::move(part));
    return result;
  }

  // The join of a session that was restored from this image.
  static Groups::Join returning(const program::Image::Group& image) {
    return {"alice",
            image.name,
            image.rank,
            image.ranks,
            milliseconds(image.timeout_ms),
            "a session that is back"};
  }

  static Call transfer(Op op, collective::Rank peer, std::int64_t elements) {
    Call call;
    call.op = op;
    call.shape = {elements};
    call.count = elements;
    call.peer = peer;
    return call;
  }
  void send(const MemberRef& member, collective::Rank to, const std::vector<float>& values) {
    const auto elements = static_cast<std::int64_t>(values.size());
    member->deposit({transfer(Op::kSend, to, elements), row(values), row({})});
  }
  // Deposits a receive and returns the memory of its result.
  RowMajor receive(const MemberRef& member, collective::Rank from, std::size_t elements) {
    RowMajor result = row(std::vector<float>(elements));
    const Call call = transfer(Op::kRecv, from, static_cast<std::int64_t>(elements));
    member->deposit({call, result, result});
    return result;
  }

  static constexpr milliseconds kLong{600'000};
  Box box_{256u << 20};
  memory::PoolHandle pool_{memory::Pool::create(box_.devices.at(0).pool(), 1, 0)};
  Plain adder_{pool_};
};

}  // namespace teletensor::runtime::testing
