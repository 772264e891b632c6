// Groups: sessions of one daemon that run collectives together.
//
// A session joins a group as one of its ranks. The state machine of engine/collective decides which
// collectives belong together and which additions are made; a group of this class has all its ranks
// at one place. The session that brings the last operand computes the result for all ranks, on its
// lane; the other sessions wait without a lane.
//
// The group keeps what a rank sends until the receiving rank asks for it, so two ranks that send to
// each other first do not wait for each other.
//
// A rank that leaves, is interrupted or exceeds the timeout ends the group: the open and all later
// collectives of every rank fail with that cause. The sessions keep their tensors, and can join a
// new group.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "engine/collective/message.h"
#include "engine/core/mutex.h"
#include "engine/memory/storage.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

class Groups {
 public:
  using Clock = std::chrono::steady_clock;

  // A session that waits for a collective.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // The wait is over. Called once for each wait, on any thread.
    virtual void met() = 0;
  };

  // Contents are on the host; empty: the call has none.
  struct Part {
    collective::Call call;
    RowMajor operand, result;
  };

  // Computes for all ranks. The session that brings the last operand provides it.
  class Adder {
   public:
    using Address = std::function<char*(const collective::Slice&)>;
    virtual ~Adder() = default;
    // Jobs that do not depend on each other.
    virtual core::Status add(std::span<const collective::Job> jobs, const Address& address) = 0;
    // Temporary memory on the host, charged to the session; null: there is none.
    virtual core::Ref<memory::Storage> allocate(std::size_t bytes) = 0;
  };

  // A rank of a group. One thread at a time uses it, but for give_up() and lose().
  class Member {
   public:
    virtual ~Member() = default;  // the rank leaves
    virtual collective::Rank rank() const = 0;
    virtual collective::Rank ranks() const = 0;
    // The rank's next collective, send or receive. Precondition: the last one has ended. A send
    // ends here: the group keeps its operand until it is received.
    virtual void deposit(Part part, Adder& adder) = 0;
    // The rank cannot take part in its next collective, which fails on all ranks, or in a send or
    // receive, which fails on the other rank.
    virtual void decline(collective::Call call, const core::Status& why, Adder& adder) = 0;
    // Ends when all that the rank has sent has been received. Precondition as of deposit().
    virtual void await_sends() = 0;
    virtual bool ended() = 0;  // what was deposited
    // False: it has ended by now. True: the waiter will be told.
    virtual bool wait(Waiter* waiter) = 0;
    // How it has ended. Precondition: it has.
    virtual core::Status take() = 0;
    // The rank that sent what the last receive has taken.
    virtual collective::Rank sender() = 0;
    // The group ends where the rank waits for something that has not ended. Any thread.
    virtual void give_up(const std::string& why) = 0;
    // The group ends, because "rank n `why`". Any thread.
    virtual void lose(const std::string& why) = 0;
  };

  struct Join {
    std::string user, name;  // together they name the group
    collective::Rank rank = 0, ranks = 1;
    std::chrono::milliseconds timeout{0};  // for a collective, from its deposit on
    std::string who;                       // "session 7 (training)", for the text of errors
  };

  Groups() = default;
  // Precondition: no members.
  ~Groups();
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // The first rank that joins makes the group. A rank that is there already, or another number of
  // ranks, begins the group anew: a program that is started again does not wait for what is left
  // of its last run, whose ranks are told.
  core::Result<std::shared_ptr<Member>> join(Join join);

 private:
  class Epoch;
  class Rank;
  using Key = std::pair<std::string, std::string>;  // user, name

  void watch();  // deadlines
  void left(const Epoch& epoch, const Key& key);

  core::Mutex mu_;
  core::CondVar changed_;
  std::map<Key, std::shared_ptr<Epoch>> epochs_ TT_GUARDED_BY(mu_);
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::thread watcher_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::runtime
