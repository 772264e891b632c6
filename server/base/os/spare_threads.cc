#include "server/base/os/spare_threads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/threads.h"

namespace teletensor::server {

namespace {

// A joined thread counts against the limits until the kernel has released it.
void wait_until_released(pid_t thread) {
  constexpr std::chrono::microseconds kStep{100};
  constexpr int kSteps = 10'000;
  for (int i = 0; i < kSteps && syscall(SYS_tgkill, getpid(), thread, 0) == 0; ++i) {
    std::this_thread::sleep_for(kStep);
  }
}

}  // namespace

core::Status check_threads(int count) {
  core::Mutex mutex;
  core::CondVar changed;
  bool over = false;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  std::vector<pid_t> numbers(static_cast<std::size_t>(count));
  core::Status status;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        numbers[static_cast<std::size_t>(i)] = gettid();
        core::MutexLock lock(mutex);
        while (!over) changed.wait(mutex);
      });
    }
  } catch (const std::system_error& error) {
    status = core::Status(core::Code::kUnavailable,
                          std::to_string(count) + " more threads are needed; after " +
                              std::to_string(threads.size()) + " " + core::refused_thread(error));
  }
  {
    core::MutexLock lock(mutex);
    over = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  numbers.resize(threads.size());
  for (const pid_t number : numbers) wait_until_released(number);
  return status;
}

}  // namespace teletensor::server
