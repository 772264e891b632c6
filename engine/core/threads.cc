#include "engine/core/threads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/core/mutex.h"

namespace teletensor::core {

namespace {

std::string refusal(const std::system_error& error) {
  return "the system refuses another thread: " + error.code().message() +
         " (see ulimit -u, ulimit -v and the container's limit on pids)";
}

// A thread that has been joined counts against the limits until the kernel has released it.
void wait_until_released(pid_t thread) {
  constexpr std::chrono::microseconds kStep{100};
  constexpr int kSteps = 10'000;
  for (int i = 0; i < kSteps && syscall(SYS_tgkill, getpid(), thread, 0) == 0; ++i) {
    std::this_thread::sleep_for(kStep);
  }
}

}  // namespace

void end_without_thread(const std::system_error& error) {
  std::fprintf(stderr, "teletensord: %s\n", refusal(error).c_str());
  std::_Exit(1);
}

Status check_threads(int count) {
  Mutex mutex;
  CondVar changed;
  bool over = false;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  std::vector<pid_t> numbers(static_cast<std::size_t>(count));
  Status status;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        numbers[static_cast<std::size_t>(i)] = gettid();
        MutexLock lock(mutex);
        while (!over) changed.wait(mutex);
      });
    }
  } catch (const std::system_error& error) {
    status = Status(Code::kUnavailable, std::to_string(count) + " more threads are needed; after " +
                                            std::to_string(threads.size()) + " " + refusal(error));
  }
  {
    MutexLock lock(mutex);
    over = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  numbers.resize(threads.size());
  for (const pid_t number : numbers) wait_until_released(number);
  return status;
}

}  // namespace teletensor::core
