#include "engine/core/threads.h"

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
  Status status;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
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
  return status;
}

}  // namespace teletensor::core
