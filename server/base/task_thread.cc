#include "server/base/task_thread.h"

#include <future>
#include <utility>

#include "engine/core/threads.h"

namespace teletensor::server {

using core::MutexLock;

TaskThread::TaskThread() : thread_(core::start_thread([this] { work(); })) {}

TaskThread::~TaskThread() {
  {
    MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TaskThread::post(Task task, std::chrono::milliseconds later) {
  {
    MutexLock lock(mutex_);
    tasks_.emplace(Clock::now() + later, std::move(task));
  }
  changed_.notify_all();
}

void TaskThread::run(const Task& task) {
  std::promise<void> done;
  post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void TaskThread::work() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      if (over_) return;
      const auto first = tasks_.begin();
      if (first == tasks_.end()) {
        changed_.wait(mutex_);
      } else if (const auto left = first->first - Clock::now(); left > left.zero()) {
        changed_.wait_for(mutex_, left);
      } else {
        task = std::move(first->second);
        tasks_.erase(first);
      }
    }
    if (task) task();
  }
}

}  // namespace teletensor::server
