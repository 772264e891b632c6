// Device: a backend with the memory pool and the table of kernels of one device. Devices: all
// devices of a machine. Both are immutable after construction and used by every lane.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backends/accelerator.h"
#include "engine/memory/blocks/device_pool.h"
#include "engine/memory/blocks/size_class.h"
#include "engine/memory/blocks/source.h"
#include "engine/ops/op.h"

namespace teletensor::runtime {

class Device {
 public:
  // `budget` is the memory that all sessions together may use on the device, in bytes. The catalog
  // must outlive the device.
  Device(std::unique_ptr<backends::Backend> backend, std::uint64_t budget,
         const ops::Catalog& catalog);

  core::Device id() const { return id_; }
  backends::Backend& backend() { return *backend_; }
  backends::Accelerator* accelerator() { return accelerator_; }  // null if the host computes
  memory::DevicePool& pool() { return pool_; }
  // nullptr if the device cannot compute the op.
  backends::Kernel kernel(ops::OpId op) const { return kernels_[op]; }

 private:
  // Lets the pool obtain, clear and copy the memory of the backend.
  class BackendSource : public memory::Source {
   public:
    BackendSource(backends::Backend* backend, backends::Accelerator* accelerator)
        : backend_(backend), accelerator_(accelerator) {}
    void* allocate(std::size_t bytes) override { return backend_->allocate(bytes); }
    void deallocate(void* memory, std::size_t bytes) override {
      backend_->deallocate(memory, bytes);
    }
    core::Status copy_in(void* memory, const void* host, std::size_t bytes) override {
      return backend_->copy_in(memory, host, bytes);
    }
    core::Status copy_out(void* host, const void* memory, std::size_t bytes) override {
      return backend_->copy_out(host, memory, bytes);
    }
    void zero(void* memory, std::size_t bytes, memory::OwnerId from, memory::OwnerId to) override {
      if (accelerator_ != nullptr) return accelerator_->transfer_ownership(memory, bytes, from, to);
      backend_->zero(memory, bytes);
    }
    bool lock(void* host, std::size_t bytes) override {
      return accelerator_ != nullptr && accelerator_->lock(host, bytes);
    }
    bool unlock(void* host) override {
      return accelerator_ != nullptr && accelerator_->unlock(host);
    }
    bool lost() const override { return !backend_->health().ok(); }
    core::Status copy_in_locked(void* memory, const void* host, std::size_t bytes,
                                const std::function<bool()>& go_on) override {
      return accelerator_->copy_in_locked(memory, host, bytes, go_on);
    }
    core::Status copy_out_locked(void* host, const void* memory, std::size_t bytes,
                                 const std::function<bool()>& go_on) override {
      return accelerator_->copy_out_locked(host, memory, bytes, go_on);
    }
    std::size_t open_unit() const override {
      if (accelerator_ != nullptr) return accelerator_->open_unit();
      return backend_->device().kind == core::DeviceKind::kCpu ? memory::kPage : 0;
    }
    int open(std::size_t bytes, void** memory) override {
      return accelerator_ != nullptr ? accelerator_->open_memory(bytes, memory)
                                     : Source::open(bytes, memory);
    }
    void withdraw(int descriptor, void* memory, std::size_t bytes) override {
      if (accelerator_ == nullptr) return Source::withdraw(descriptor, memory, bytes);
      accelerator_->withdraw(descriptor, memory, bytes);
    }

   private:
    backends::Backend* const backend_;
    backends::Accelerator* const accelerator_;
  };

  std::unique_ptr<backends::Backend> backend_;
  backends::Accelerator* const accelerator_;
  const core::Device id_;
  BackendSource source_;
  memory::DevicePool pool_;
  std::vector<backends::Kernel> kernels_;  // by op
};

inline constexpr std::size_t kHostIndex = 0;  // the index of the host among the devices

class Devices {
 public:
  explicit Devices(std::vector<std::unique_ptr<Device>> devices) : devices_(std::move(devices)) {}
  // The host's pool keeps memory that other devices have page-locked.
  ~Devices() {
    if (!devices_.empty()) devices_[kHostIndex]->pool().unlock_all();
  }
  Devices(Devices&&) = default;
  std::size_t size() const { return devices_.size(); }
  Device& at(std::size_t i) const { return *devices_[i]; }
  // Returns -1 if the machine has no such device.
  int find(core::Device id) const {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i]->id() == id) return static_cast<int>(i);
    }
    return -1;
  }
  // The error of an op or a transfer, named by `what`, that refers to a device which the machine
  // does not have.
  core::Status missing(std::string_view what, core::Device id) const {
    std::string text =
        std::string(what) + ": this daemon has no " + core::to_string(id) + "; it has ";
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      text += (i > 0 ? ", " : "") + core::to_string(devices_[i]->id());
    }
    return core::invalid(text);
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace teletensor::runtime
