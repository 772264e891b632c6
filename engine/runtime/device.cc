#include "engine/runtime/device.h"

namespace teletensor::runtime {

Device::Device(std::unique_ptr<backends::Backend> backend, std::uint64_t budget,
               const ops::Catalog& catalog)
    : backend_(std::move(backend)),
      accelerator_(dynamic_cast<backends::Accelerator*>(backend_.get())),
      id_(backend_->device()),
      source_(backend_.get(), accelerator_),
      pool_(id_, budget, &source_) {
  for (std::size_t op = 0; op < catalog.size(); ++op) {
    kernels_.push_back(backend_->find(static_cast<ops::OpId>(op)));
  }
}

}  // namespace teletensor::runtime
