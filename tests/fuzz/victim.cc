#include "victim.h"

#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace teletensor::fuzz {
namespace {

char current[200];

void say_current(int signal) {
  (void)!write(2, current, std::strlen(current));
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

void now_at(const char* format, ...) {
  static const bool ready = [] {
    for (int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) signal(number, say_current);
    return true;
  }();
  (void)ready;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(current, sizeof current, format, arguments);
  va_end(arguments);
}

void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

engine::Engine& the_engine() {
  static const std::unique_ptr<engine::Engine> engine = [] {
    engine::EngineOptions options;
    options.lanes = 1;
    options.host_memory = 64 << 20;
    return engine::Engine::create(options);
  }();
  return *engine;
}

// ---------------------------------------------------------------- Listener

void Listener::on_completed(std::uint64_t seq) {
  {
    core::MutexLock lock(mutex_);
    completed_ = std::max(completed_, seq);
  }
  changed_.notify_all();
}

void Listener::on_fetched(engine::Fetched value) {
  core::MutexLock lock(mutex_);
  fetched_ = std::move(value);
}

void Listener::consumed(core::Status status) {
  {
    core::MutexLock lock(mutex_);
    consumed_ = true;
    status_ = std::move(status);
  }
  changed_.notify_all();
}

core::Status Listener::wait_consumed() {
  core::MutexLock lock(mutex_);
  while (!consumed_) {
    if (!changed_.wait_for(mutex_, Victim::kPatience)) {
      fail("the session took a frame and did not say so");
    }
  }
  consumed_ = false;
  return status_;
}

engine::Fetched Listener::fetched() {
  core::MutexLock lock(mutex_);
  return fetched_;
}

bool Listener::wait_completed(std::uint64_t seq, std::chrono::milliseconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  core::MutexLock lock(mutex_);
  while (completed_ < seq) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    (void)changed_.wait_for(mutex_, std::chrono::duration_cast<std::chrono::milliseconds>(left) +
                                        std::chrono::milliseconds(1));
  }
  return true;
}

// ---------------------------------------------------------------- Victim

Victim::Victim() {
  engine::SessionOptions options;
  options.memory_quota = 16 << 20;
  auto opened = the_engine().open(options, &listener_);
  if (!opened.ok()) fail("no session");
  session_ = std::move(*opened);
}

void Victim::check_all_gone() {
  for (const engine::MemoryUse& use : the_engine().memory()) {
    if (use.device_used == 0) continue;
    std::fprintf(stderr, "%s: %llu bytes: ", core::to_string(use.device).c_str(),
                 static_cast<unsigned long long>(use.device_used));
    fail("left behind");
  }
}

core::Status Victim::submit(wire::Frame frame, std::chrono::milliseconds most, bool* late,
                            bool thin) {
  const std::uint64_t count = frame.commands.size();
  session_->submit(
      frame.first_seq, frame.first_id, std::move(frame.commands),
      [this](core::Status status) { listener_.consumed(std::move(status)); }, thin);
  if (core::Status status = listener_.wait_consumed(); !status.ok()) return status;
  if (count != 0 && !listener_.wait_completed(frame.first_seq + count - 1, most)) {
    if (late == nullptr) fail("a command did not complete");
    *late = true;
  }
  return {};
}

}  // namespace teletensor::fuzz
