// Watcher: a thread that finds the problems of a device that no caller is waiting for: an error
// that a kernel has left, and a stream without progress. The device is then lost.
#pragma once

#include <thread>

#include "engine/backends/cuda/device/work_queues.h"

namespace teletensor::backends::cuda {

class Watcher {
 public:
  // The device is lost after `patience` seconds without progress. The other two must outlive this
  // object.
  Watcher(const DeviceContext& context, WorkQueues& work, double patience);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  core::Status start();
  // Ends the thread.
  void stop();

 private:
  void watch();

  const DeviceContext& context_;
  WorkQueues& work_;
  const double patience_;
  Event probe_ = nullptr;
  Stream marks_ = nullptr;  // only waits for the queues
  core::Mutex mu_;
  core::CondVar ended_;
  bool ending_ TT_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace teletensor::backends::cuda
