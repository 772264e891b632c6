#include "engine/runtime/failures.h"

namespace teletensor::runtime {

class Failures::Counted : public program::Failure {
 public:
  Counted(std::uint64_t seq, core::Status status, Bytes total)
      : program::Failure{seq, std::move(status)},
        total_(std::move(total)),
        bytes_(kPerFailure + this->status.message().size()) {
    total_->fetch_add(bytes_, std::memory_order_relaxed);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { total_->fetch_sub(bytes_, std::memory_order_relaxed); }

 private:
  const Bytes total_;
  const std::uint64_t bytes_;
};

FailureRef Failures::make(std::uint64_t seq, core::Status status) const {
  return std::make_shared<const Counted>(seq, std::move(status), bytes_);
}

void Failures::add(std::uint64_t seq, const program::Failure& failure, bool rebinds) {
  core::MutexLock lock(mu_);
  const auto [entry, added] = open_.try_emplace(failure.seq);
  std::vector<std::uint64_t>& seqs = entry->second;
  if (added) {
    ++size_;
    bytes_->fetch_add(kPerRoot, std::memory_order_relaxed);
  }
  if (rebinds && (seqs.empty() || seqs.back() != seq)) {
    seqs.push_back(seq);
    ++size_;
    bytes_->fetch_add(kPerRebind, std::memory_order_relaxed);
  }
}

std::vector<std::uint64_t> Failures::take(std::uint64_t root) {
  core::MutexLock lock(mu_);
  const auto found = open_.find(root);
  if (found == open_.end()) return {};
  std::vector<std::uint64_t> rebinds = std::move(found->second);
  size_ -= 1 + rebinds.size();
  bytes_->fetch_sub(kPerRoot + kPerRebind * rebinds.size(), std::memory_order_relaxed);
  open_.erase(found);
  return rebinds;
}

std::size_t Failures::open() const {
  core::MutexLock lock(mu_);
  return size_;
}

Failures::Open Failures::all() const {
  core::MutexLock lock(mu_);
  return {open_.begin(), open_.end()};
}

void Failures::restore(Open open) {
  core::MutexLock lock(mu_);
  for (auto& [root, rebinds] : open) {
    size_ += 1 + rebinds.size();
    bytes_->fetch_add(kPerRoot + kPerRebind * rebinds.size(), std::memory_order_relaxed);
    open_.emplace(root, std::move(rebinds));
  }
}

}  // namespace teletensor::runtime
