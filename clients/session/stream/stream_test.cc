// Tests the stream with a fake of clients/wire: which thread writes and reads, what is kept, and
// how it ends.
#include "clients/session/stream/stream.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "clients/session/plain_session_test.h"
#include "proto/wire/frame.h"

namespace teletensor::client {
namespace {

using core::MutexLock;

// Maximum time of a wait in microseconds. No test depends on how long something takes.
constexpr std::int64_t kHang = 240'000'000;

// One call whose other side is the test.
struct Peer {
  core::Mutex mutex;
  core::CondVar changed;
  std::vector<std::string> frames;
  std::vector<std::thread::id> writers;
  std::deque<std::string> progress;
  // The thread inside read(), and the last thread that was inside.
  std::thread::id reader, last_reader;
  bool slow = false;  // Whether writes stay in progress, as on a slow connection.
  bool ended = false, half_closed = false;

  void say(const wire::Progress& message) {
    MutexLock lock(mutex);
    progress.push_back(wire::encode_progress(message));
    changed.notify_all();
  }
  template <class Ready>
  bool wait(Ready ready, std::int64_t micros) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(micros);
    MutexLock lock(mutex);
    while (!ready()) {
      if (micros < 0) {
        changed.wait(mutex);
      } else if (!changed.wait_for(mutex, until - std::chrono::steady_clock::now())) {
        return ready();
      }
    }
    return true;
  }
};

Peer& of(tt_wire_call* call) { return *reinterpret_cast<Peer*>(call); }

// Called by the thread that reads, without a lock, when it has processed a message.
std::function<void()> on_forget;

tt_wire_api fake() {
  tt_wire_api api{};
  api.version = TT_WIRE_VERSION;
  api.write = [](tt_wire_call* call, const tt_wire_part* parts, size_t count) {
    Peer& peer = of(call);
    MutexLock lock(peer.mutex);
    if (parts == nullptr) {
      peer.half_closed = true;
    } else {
      std::string frame;
      for (size_t i = 0; i < count; ++i) {
        frame.append(static_cast<const char*>(parts[i].data), parts[i].size);
        if (parts[i].drop != nullptr) parts[i].drop(parts[i].owner);
      }
      peer.frames.push_back(std::move(frame));
      peer.writers.push_back(std::this_thread::get_id());
    }
    peer.changed.notify_all();
  };
  api.written = [](tt_wire_call* call, int64_t timeout) -> int {
    Peer& peer = of(call);
    if (!peer.wait([&] { return !peer.slow || peer.ended; }, timeout)) return TT_WIRE_TIMEOUT;
    MutexLock lock(peer.mutex);
    return peer.ended ? TT_WIRE_OVER : TT_WIRE_DONE;
  };
  api.read = [](tt_wire_call* call, int64_t timeout, tt_wire_message* message) -> int {
    Peer& peer = of(call);
    {
      MutexLock lock(peer.mutex);
      peer.reader = std::this_thread::get_id();
      peer.changed.notify_all();
    }
    const bool come = peer.wait([&] { return !peer.progress.empty() || peer.ended; }, timeout);
    MutexLock lock(peer.mutex);
    peer.reader = {};
    if (!come) return TT_WIRE_TIMEOUT;
    peer.last_reader = std::this_thread::get_id();
    if (peer.progress.empty()) return TT_WIRE_OVER;
    auto* bytes = new std::string(std::move(peer.progress.front()));
    peer.progress.pop_front();
    *message = {new tt_wire_part{bytes->data(), bytes->size(), nullptr, bytes}, 1, nullptr};
    return TT_WIRE_DONE;
  };
  api.forget = [](tt_wire_message* message) {
    if (on_forget) on_forget();
    delete static_cast<std::string*>(message->parts->owner);
    delete message->parts;
  };
  api.status = [](tt_wire_call*, const char** text) -> int {
    *text = "cut by the test";
    return 14;
  };
  api.trailer = [](tt_wire_call*, const char*) -> const char* { return "tested"; };
  api.cancel = [](tt_wire_call* call) {
    MutexLock lock(of(call).mutex);
    of(call).ended = true;
    of(call).changed.notify_all();
  };
  api.end = [](tt_wire_call*) {};
  return api;
}
const tt_wire_api kFake = fake();

class Client final : public PlainSession {
 public:
  using PlainSession::PlainSession;
  std::mutex api;  // Used if a release and the tick that sends it may come from two threads.

 protected:
  Status block(const std::function<bool()>& ready) override {
    while (!stream().wait_for(ready, std::chrono::milliseconds(100))) {
    }
    return {};
  }
  void tick() override {
    const std::lock_guard lock(api);
    commands().idle();
  }
};

class StreamTest : public testing::Test {
 protected:
  StreamTest() : session_(limits()) { attach(session_, peer_); }
  std::shared_ptr<StreamEnd> attach(Client& session, Peer& peer) {
    session.stream().take_up(1, 0);
    return session.stream().attach(
        std::make_unique<Call>(kFake, reinterpret_cast<tt_wire_call*>(&peer), nullptr));
  }
  static SessionLimits limits() {
    SessionLimits limits;
    limits.keeps = true;
    return limits;
  }
  HandleRef constant() {
    return *session_.constant(core::DType::kF32, {}, core::Dims{}, std::string(4, '\0'));
  }
  bool comes(std::size_t frames) {
    return peer_.wait([&] { return peer_.frames.size() >= frames; }, kHang);
  }
  wire::Frame frame(std::size_t i) {
    wire::Frame out;
    MutexLock lock(peer_.mutex);
    EXPECT_TRUE(wire::FrameReader().read(peer_.frames[i], out).ok());
    return out;
  }

  Peer peer_;
  Client session_;
};

TEST_F(StreamTest, TheFirstCommandLeavesByItself) {
  const HandleRef h = constant();
  ASSERT_TRUE(comes(1));
  EXPECT_EQ(frame(0).first_seq, 1u);
  EXPECT_NE(peer_.writers[0], std::this_thread::get_id());
}

TEST_F(StreamTest, WhatGathersDuringAWriteIsOneFrame) {
  peer_.slow = true;
  std::vector<HandleRef> kept = {constant()};
  ASSERT_TRUE(comes(1));
  for (int i = 0; i < 10; ++i) kept.push_back(constant());
  {
    MutexLock lock(peer_.mutex);
    EXPECT_EQ(peer_.frames.size(), 1u);
    peer_.slow = false;
    peer_.changed.notify_all();
  }
  ASSERT_TRUE(comes(2));
  EXPECT_EQ(frame(1).first_seq, 2u);
  EXPECT_EQ(frame(1).commands.size(), 10u);
}

// With a pace of an hour, only a waiting thread can send the second frame.
TEST_F(StreamTest, WhatNobodyWaitsForGathersWhoWaitsSendsAtOnce) {
  SessionLimits limits;
  limits.pace = std::chrono::hours(1);
  Peer peer;
  Client client(limits);
  attach(client, peer);
  const auto constant = [&] {
    return *client.constant(core::DType::kF32, {}, core::Dims{}, std::string(4, '\0'));
  };
  std::vector<HandleRef> kept = {constant()};
  ASSERT_TRUE(peer.wait([&] { return peer.frames.size() == 1; }, kHang));
  for (int i = 0; i < 10; ++i) kept.push_back(constant());
  EXPECT_FALSE(peer.wait([&] { return peer.frames.size() > 1; }, 100'000));
  std::thread daemon([&] {
    peer.wait([&] { return peer.frames.size() > 1; }, kHang);
    wire::Progress progress;
    progress.completed_upto = 11;
    progress.credit_upto = 1 << 16;
    progress.credit_bytes = 1 << 20;
    peer.say(progress);
  });
  EXPECT_TRUE(client.stream().wait_for([&] { return client.stream().completed_upto() == 11; },
                                       std::chrono::milliseconds(kHang / 1000)));
  daemon.join();
  wire::Frame second;
  ASSERT_TRUE(wire::FrameReader().read(peer.frames.at(1), second).ok());
  EXPECT_EQ(second.commands.size(), 10u);
}

// Frames to which no commands can be added are sent at once.
TEST_F(StreamTest, WholeFramesDoNotWait) {
  SessionLimits limits;
  limits.pace = std::chrono::hours(1);
  limits.frame.commands = 4;
  Peer peer;
  Client client(limits);
  std::vector<HandleRef> kept;
  for (int i = 0; i < 14; ++i) {
    kept.push_back(*client.constant(core::DType::kF32, {}, core::Dims{}, std::string(4, '\0')));
  }
  attach(client, peer);
  EXPECT_TRUE(peer.wait([&] { return peer.frames.size() >= 3; }, kHang));
}

TEST_F(StreamTest, FramesAreKeptUntilTheirCommandsHaveRun) {
  std::vector<HandleRef> kept;
  for (std::size_t i = 1; i <= 3; ++i) {
    kept.push_back(constant());
    ASSERT_TRUE(comes(i));
  }
  EXPECT_EQ(session_.stream().unconfirmed().size(), 3u);
  wire::Progress progress;
  progress.completed_upto = 2;
  progress.credit_upto = 1 << 16;
  progress.credit_bytes = 1 << 20;
  peer_.say(progress);
  EXPECT_TRUE(session_.stream().wait_for([&] { return session_.stream().completed_upto() == 2; },
                                         std::chrono::milliseconds(kHang / 1000)));
  const std::vector<FrameRef> left = session_.stream().unconfirmed();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(*left[0], peer_.frames[2]);
}

// The client can undo an in-place command until it knows that the command has run.
TEST_F(StreamTest, WhatUndoesACommandIsDroppedWhenTheCommandHasRun) {
  const HandleRef h = constant();
  wire::Progress progress;
  progress.credit_upto = 1 << 16;
  progress.credit_bytes = 1 << 20;
  peer_.say(progress);
  const Var arguments[] = {Var(&session_, h)};
  const auto neg = session_.catalog().id(*session_.catalog().find("neg"));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(session_.apply_inplace(neg, arguments, {}, {}).ok());
  const std::size_t before = session_.graph().bookkeeping_bytes();
  progress.completed_upto = 1001;
  peer_.say(progress);
  EXPECT_TRUE(session_.stream().wait_for([&] { return session_.stream().completed_upto() == 1001; },
                                         std::chrono::milliseconds(kHang / 1000)));
  ASSERT_TRUE(session_.apply_inplace(neg, arguments, {}, {}).ok());
  EXPECT_LT(session_.graph().bookkeeping_bytes(), before / 4);
}

TEST_F(StreamTest, WhoWaitsReadsOnItsOwnThread) {
  const HandleRef h = constant();
  wire::Progress progress;
  progress.credit_upto = 1 << 16;
  progress.credit_bytes = 1 << 20;
  const auto seq = session_.fetch(*h, false);
  ASSERT_TRUE(seq.ok());
  const std::thread::id waiter = std::this_thread::get_id();
  std::thread daemon([&] {
    comes(1);
    // The keeper may be reading; it stops after the next message.
    do {
      peer_.say(progress);
    } while (!peer_.wait([&] { return peer_.reader == waiter; }, 20'000));
    wire::FetchedValue value;
    value.seq = *seq;
    value.data = std::string(4, '\0');
    progress.fetched = {value};
    peer_.say(progress);
  });
  EXPECT_TRUE(session_.wait_fetched(*seq).ok());
  daemon.join();
  EXPECT_EQ(peer_.last_reader, std::this_thread::get_id());
}

TEST_F(StreamTest, WhenTheReaderIsContentAnotherThreadThatWaitsReads) {
  wire::Progress progress;
  progress.credit_upto = 1 << 16;
  progress.credit_bytes = 1 << 20;
  CommandStream& stream = session_.stream();
  // What the threads wait for, and how often they have looked; with the stream's lock.
  struct Wait {
    int looks = 0;
    bool told = false;
  } first, second;
  const auto wait = [&](Wait& mine) {
    const auto ready = [&] { return ++mine.looks, mine.told; };
    EXPECT_TRUE(stream.wait_for(ready, std::chrono::milliseconds(kHang / 1000)));
  };
  const auto tell = [&](Wait& whom) {
    {
      MutexLock lock(stream.mutex());
      whom.told = true;
    }
    peer_.say(progress);
  };
  std::thread one([&] { wait(first); });
  do {
    peer_.say(progress);  // The keeper may be reading; it stops after the next message.
  } while (!peer_.wait([&] { return peer_.reader == one.get_id(); }, 20'000));
  std::thread two([&] { wait(second); });
  // The lock is free again when the second thread waits, because the first one reads.
  const auto looks = [&] {
    MutexLock lock(stream.mutex());
    return second.looks;
  };
  while (looks() == 0) std::this_thread::yield();
  // The message wakes the second thread before the first one has stopped reading.
  on_forget = [&, before = looks()] {
    while (looks() == before) std::this_thread::yield();
  };
  tell(first);
  one.join();
  on_forget = nullptr;
  EXPECT_TRUE(peer_.wait([&] { return peer_.reader == two.get_id(); }, kHang));
  tell(second);
  two.join();
}

// A restarted daemon computes a value again that its client has never received.
TEST_F(StreamTest, AnExpectedValueIsTakenFromADaemonThatComputesItAgain) {
  const HandleRef h = constant();
  const auto seq = session_.fetch(*h, false);
  ASSERT_TRUE(seq.ok());
  wire::FetchedValue value;
  value.seq = *seq;
  value.data = std::string(4, '\0');
  MutexLock lock(session_.stream().mutex());
  Fetches& fetches = session_.stream().received().fetches;
  fetches.receive(value, *seq + 10);
  EXPECT_TRUE(fetches.received(*seq));
}

// A program that has read its values at once several times is expected to do so again, also a
// moment later.
TEST_F(StreamTest, WhoReadsAtOnceSendsItsCommandsItself) {
  constexpr int kQuick = 5;
  std::atomic<bool> over{false};
  std::thread daemon([&] {
    for (std::size_t seen = 0;; ++seen) {
      if (!comes(seen + 1) || over) return;
      const wire::Frame frame = this->frame(seen);
      wire::Progress progress;
      progress.credit_upto = 1 << 16;
      progress.credit_bytes = 1 << 20;
      for (std::size_t i = 0; i < frame.commands.size(); ++i) {
        if (!std::holds_alternative<program::Fetch>(frame.commands[i])) continue;
        wire::FetchedValue& value = progress.fetched.emplace_back();
        value.seq = frame.first_seq + i;
        value.data = std::string(4, '\0');
      }
      peer_.say(progress);
    }
  });
  const auto frames = [this] {
    MutexLock lock(peer_.mutex);
    return peer_.frames.size();
  };
  // One round may fail to show it, because a thread may lose its core; so it is repeated.
  bool together = false;
  std::vector<HandleRef> kept;
  for (int i = 0; !together; ++i) {
    const bool slow = i % (kQuick + 1) == kQuick;
    const std::size_t before = frames();
    kept.push_back(constant());
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto seq = session_.fetch(*kept.back(), false);
    EXPECT_TRUE(seq.ok());
    EXPECT_TRUE(session_.wait_fetched(*seq).ok());
    together = slow && frames() == before + 1;
    // Long enough for the writer to sleep again.
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  over = true;
  kept.push_back(constant());  // The command wakes the daemon's thread.
  daemon.join();
}

TEST_F(StreamTest, NothingIsSentBeyondTheCredits) {
  SessionLimits limits;
  limits.credit_bytes = 1;
  Peer peer;
  Client poor(limits);
  attach(poor, peer);
  const HandleRef h = *poor.constant(core::DType::kF32, {}, core::Dims{}, std::string(4, '\0'));
  EXPECT_FALSE(peer.wait([&] { return !peer.frames.empty(); }, 100'000));
  wire::Progress progress;
  progress.credit_upto = 1 << 16;
  progress.credit_bytes = 1 << 20;
  peer.say(progress);
  EXPECT_TRUE(peer.wait([&] { return !peer.frames.empty(); }, kHang));
}

TEST_F(StreamTest, ALastReleaseDoesNotWaitForEver) {
  HandleRef h;
  {
    const std::lock_guard lock(session_.api);
    h = constant();
  }
  ASSERT_TRUE(comes(1));
  {
    const std::lock_guard lock(session_.api);
    h = nullptr;
  }
  ASSERT_TRUE(comes(2));
  EXPECT_TRUE(std::holds_alternative<program::Release>(frame(1).commands.at(0)));
}

// Returns how often each thread of this process has given up its core.
std::map<std::string, long> switches() {
  std::map<std::string, long> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) {
        found[thread.path().filename()] = std::stol(line.substr(24));
      }
    }
  }
  return found;
}

TEST_F(StreamTest, AnIdleStreamSleepsUntilAReleaseWaits) {
  const auto others = switches();  // among them threads of a sanitizer, which do not sleep
  const auto of_stream = [&] {
    auto found = switches();
    std::erase_if(found, [&](const auto& each) { return others.contains(each.first); });
    return found;
  };
  Peer peer;
  Client client(limits());
  attach(client, peer);
  HandleRef h;
  {
    const std::lock_guard lock(client.api);
    h = *client.constant(core::DType::kF32, {}, core::Dims{}, std::string(4, '\0'));
  }
  ASSERT_TRUE(peer.wait([&] { return peer.frames.size() == 1; }, kHang));
  // A writer that looks for releases at intervals would never let this loop end.
  auto before = of_stream();
  ASSERT_EQ(before.size(), 2u);
  while (true) {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const auto now = of_stream();
    if (now == before) break;
    before = now;
  }
  {
    const std::lock_guard lock(client.api);
    h = nullptr;
  }
  ASSERT_TRUE(peer.wait([&] { return peer.frames.size() == 2; }, kHang));
  wire::Frame released;
  ASSERT_TRUE(wire::FrameReader().read(peer.frames[1], released).ok());
  EXPECT_TRUE(std::holds_alternative<program::Release>(released.commands.at(0)));
}

TEST_F(StreamTest, AfterACutTheNextStreamSendsAgainWhatHadNotCome) {
  std::vector<HandleRef> kept;
  for (std::size_t i = 1; i <= 3; ++i) {
    kept.push_back(constant());
    ASSERT_TRUE(comes(i));
  }
  kFake.cancel(reinterpret_cast<tt_wire_call*>(&peer_));
  Peer second;
  session_.stream().take_up(2, 1);  // The daemon has received the first command.
  session_.stream().attach(
      std::make_unique<Call>(kFake, reinterpret_cast<tt_wire_call*>(&second), nullptr));
  EXPECT_TRUE(second.wait([&] { return second.frames.size() >= 2; }, kHang));
  EXPECT_EQ(second.frames[0], peer_.frames[1]);
  EXPECT_EQ(second.frames[1], peer_.frames[2]);
  kept.push_back(constant());
  EXPECT_TRUE(second.wait([&] { return second.frames.size() >= 3; }, kHang));
  session_.stream().detach();
}

TEST_F(StreamTest, TheEndOfTheCallIsTold) {
  Peer peer;
  Client client((SessionLimits()));
  const std::shared_ptr<StreamEnd> end = attach(client, peer);
  EXPECT_FALSE(end->wait(std::chrono::milliseconds(20)));
  kFake.cancel(reinterpret_cast<tt_wire_call*>(&peer));
  EXPECT_TRUE(end->wait(std::chrono::milliseconds(kHang / 1000)));
  EXPECT_EQ(end->status().code(), core::Code::kUnavailable);
  EXPECT_EQ(end->status().message(), "cut by the test");
  EXPECT_EQ(end->word(), "tested");
}

TEST_F(StreamTest, TheChildOfAForkTakesNoLockOfTheSession) {
  pid_t child = -1;
  // Forks while the lock is held, as if another thread held it.
  const auto fork_under_the_lock = [&] {
    child = fork();
    if (child == 0) {
      alarm(kHang / 1'000'000);  // Ends a child process that hangs.
      session_.stream().lost(core::internal("lost"));
      session_.stream().close();
      session_.stream().detach();
      _exit(session_.errors().any() || !session_.errors().all().empty());
    }
    return true;
  };
  ASSERT_TRUE(session_.stream().wait_for(fork_under_the_lock, std::chrono::milliseconds(1)));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(StreamTest, CloseSendsTheRestAndThenTheEnd) {
  std::vector<HandleRef> kept;
  for (int i = 0; i < 100; ++i) kept.push_back(constant());
  session_.stream().close();
  EXPECT_TRUE(peer_.wait([&] { return peer_.half_closed; }, kHang));
  const wire::Frame last = frame(peer_.frames.size() - 1);
  EXPECT_EQ(last.first_seq + last.commands.size() - 1, 100u);
  session_.stream().detach();
}

}  // namespace
}  // namespace teletensor::client
