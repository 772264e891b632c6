// An engine, and sessions of it that are fed frames: the target of fuzzers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "proto/wire/frame.h"

namespace teletensor::fuzz {

// Prints the message and aborts.
[[noreturn]] void fail(const char* what);
// Records what is being tried, in printf's format; a crash prints it, as a line that says how to
// repeat it.
[[gnu::format(printf, 1, 2)]] void now_at(const char* format, ...);

engine::Engine& the_engine();

// Counts the events of a session, so that the fuzzer can wait for it.
class Listener final : public engine::SessionListener {
 public:
  void on_completed(std::uint64_t seq) override;
  void on_fetched(engine::Fetched value) override;
  void on_error(engine::LateError) override {}
  void on_raised(engine::Raised) override {}

  void consumed(core::Status status);
  core::Status wait_consumed();
  engine::Fetched fetched();
  // Returns false if it takes longer.
  bool wait_completed(std::uint64_t seq, std::chrono::milliseconds most);

 private:
  core::Mutex mutex_;
  core::CondVar changed_;
  bool consumed_ TT_GUARDED_BY(mutex_) = false;
  core::Status status_ TT_GUARDED_BY(mutex_);
  std::uint64_t completed_ TT_GUARDED_BY(mutex_) = 0;
  engine::Fetched fetched_ TT_GUARDED_BY(mutex_);  // the last fetched value
};

// A session that is fed frames until it refuses one.
class Victim {
 public:
  static constexpr std::chrono::milliseconds kPatience{60'000};

  Victim();
  ~Victim() { end(); }
  void end() { session_.reset(); }
  // Memory that ended sessions have left behind is a bug.
  static void check_all_gone();

  engine::Fetched fetched() { return listener_.fetched(); }

  // Not ok: the session refused the frame, and all later ones. The commands that it accepted have
  // run, unless that takes longer than `most`: this sets `late`, if it is given, and is a bug
  // otherwise.
  core::Status submit(wire::Frame frame, std::chrono::milliseconds most = kPatience,
                      bool* late = nullptr, bool thin = false);

 private:
  Listener listener_;
  std::unique_ptr<engine::Session> session_;
};

}  // namespace teletensor::fuzz
