// An engine of its own and sessions of it that are fed frames: what fuzzers run against.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "proto/wire/frame.h"

namespace teletensor::fuzz {

// Says so and aborts.
[[noreturn]] void fail(const char* what);
// What is being tried, as printf has it: a line that says how to repeat it, written by a crash.
[[gnu::format(printf, 1, 2)]] void now_at(const char* format, ...);

engine::Engine& the_engine();

// Counts what a session says, so that the fuzzer can wait for it.
class Listener final : public engine::SessionListener {
 public:
  void on_completed(std::uint64_t seq) override;
  void on_fetched(engine::Fetched value) override;
  void on_error(engine::LateError) override {}
  void on_raised(engine::Raised) override {}

  void consumed(core::Status status);
  core::Status wait_consumed();
  engine::Fetched fetched();
  // False where it takes longer.
  bool wait_completed(std::uint64_t seq, std::chrono::milliseconds most);

 private:
  core::Mutex mutex_;
  core::CondVar changed_;
  bool consumed_ TT_GUARDED_BY(mutex_) = false;
  core::Status status_ TT_GUARDED_BY(mutex_);
  std::uint64_t completed_ TT_GUARDED_BY(mutex_) = 0;
  engine::Fetched fetched_ TT_GUARDED_BY(mutex_);  // the last
};

// A session that is fed frames until one is refused.
class Victim {
 public:
  static constexpr std::chrono::milliseconds kPatience{60'000};

  Victim();
  ~Victim() { end(); }
  void end() { session_.reset(); }
  // What sessions that have ended have left is a bug.
  static void check_all_gone();

  engine::Fetched fetched() { return listener_.fetched(); }

  // Not ok: the session refused it, and with it everything to come. What it took has run, unless
  // that takes longer than `most`: then `late` says so, and without it that is a bug.
  core::Status submit(wire::Frame frame, std::chrono::milliseconds most = kPatience,
                      bool* late = nullptr, bool thin = false);

 private:
  Listener listener_;
  std::unique_ptr<engine::Session> session_;
};

}  // namespace teletensor::fuzz
