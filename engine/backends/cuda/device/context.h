// DeviceContext is the driver's context of one device, and knows whether the device still answers.
//
// A device is lost for good if it reports an error that ends its context, or if it stops answering:
// every later call then returns that cause. Thread-safe after open().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/backends/cuda/driver/driver.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

using Log = std::function<void(bool bad, const std::string& line)>;

class DeviceContext {
 public:
  // What the driver tells about the device. Sizes are in bytes.
  struct Facts {
    std::string model;   // for example "NVIDIA H100 80GB HBM3"
    int number = 0;      // the driver's number of the device
    int capability = 0;  // 90 means 9.0
    int multiprocessors = 0;
    bool pools = false;  // whether the device supports stream-ordered memory
    std::array<std::uint64_t, 2> uuid{};
    std::uint64_t memory = 0, free_at_start = 0;
  };

  // `name` ("cuda:0") is used in messages. `driver` must outlive the context.
  DeviceContext(const Driver& driver, std::string name, Log log);
  // Releases the context if it is usable().
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  // Opens device `ordinal` of the driver. Refuses devices that are too old or may not compute.
  core::Status open(int ordinal);

  const Driver& driver() const { return driver_; }
  const std::string& name() const { return name_; }
  const Facts& facts() const { return facts_; }
  Context handle() const { return handle_; }

  // Makes the context current for the driver calls of this thread.
  core::Status enter() const;
  // Returns an error once the device is lost.
  core::Status health() const;
  // Makes the context current. Returns false if it is not open or the device is lost, which may
  // never answer: then objects of the driver are not destroyed, because the process is about to
  // end.
  bool usable() const { return handle_ != nullptr && enter().ok(); }
  // Returns the error of a driver call that has returned `code`. If it has ended the context, the
  // device is lost.
  core::Status check(int code, const char* what) const;
  // Marks the device as lost, unless it already is.
  void lose(std::string cause) const;
  // Waits until the event has happened.
  core::Status wait(Event event) const;

  // These functions create an object of the driver. Precondition: the context is current.
  core::Status create(Stream* stream) const;
  core::Status create(Event* event) const;
  // Allocates page-locked host memory.
  core::Status create_pinned(std::size_t bytes, char** memory) const;
  // Destroys those that are not null.
  void destroy(char* pinned, Event event, Stream stream = nullptr) const;

 private:
  core::Status read_facts(int ordinal);

  const Driver& driver_;
  const std::string name_;
  const Log log_;
  Facts facts_;
  Context handle_ = nullptr;

  mutable std::atomic<bool> lost_{false};
  mutable core::Mutex lost_mu_;
  mutable core::Status lost_status_ TT_GUARDED_BY(lost_mu_);
};

}  // namespace teletensor::backends::cuda
