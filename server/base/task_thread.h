// TaskThread is a thread that runs tasks one after the other, each not before its time.
// Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "engine/core/mutex.h"

namespace teletensor::server {

class TaskThread {
 public:
  using Task = std::function<void()>;

  TaskThread();
  // Waits for the task that is running. Tasks that have not begun never run.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Runs the task after this time.
  void post(Task task, std::chrono::milliseconds later = {});
  // Runs the task and waits for its end. Must not be called by a task.
  void run(const Task& task);

 private:
  using Clock = std::chrono::steady_clock;

  void work();

  core::Mutex mutex_;
  core::CondVar changed_;
  std::multimap<Clock::time_point, Task> tasks_ TT_GUARDED_BY(mutex_);
  bool over_ TT_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Declared last, because it uses the other members.
};

}  // namespace teletensor::server
