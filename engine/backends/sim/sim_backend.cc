#include "engine/backends/sim/sim_backend.h"

#include <utility>

namespace teletensor::backends::sim {

void Faults::Counter::arm(std::uint64_t n, core::Status status, bool every) {
  core::MutexLock lock(mu_);
  period_ = left_ = n;
  every_ = every;
  status_ = std::move(status);
  armed_ = n > 0;
}

core::Status Faults::Counter::count() {
  seen_.fetch_add(1, std::memory_order_relaxed);
  if (!armed_.load(std::memory_order_relaxed)) return {};
  core::MutexLock lock(mu_);
  if (left_ == 0 || --left_ > 0) return {};
  left_ = every_ ? period_ : 0;
  return status_;
}

void Faults::fail_instruction(std::uint64_t n, core::Status status, bool every) {
  instructions_.arm(n, std::move(status), every);
}

void Faults::fail_allocation(std::uint64_t n, core::Status status, bool every) {
  allocations_.arm(n, std::move(status), every);
}

void Faults::lose_device(core::Status why) {
  core::MutexLock lock(mu_);
  lost_ = std::move(why);
}

core::Status SimBackend::health() const {
  core::MutexLock lock(faults_.mu_);
  return faults_.lost_;
}

Kernel SimBackend::find(ops::OpId op) const {
  if (null_mode_) return [](KernelCall&) { return core::Status(); };
  return CpuBackend::find(op);
}

core::Status SimBackend::copy(void* to, const void* from, std::size_t bytes) {
  faults_.copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return CpuBackend::copy(to, from, bytes);
}

}  // namespace teletensor::backends::sim
