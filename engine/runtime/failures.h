// Failures: makes the late errors of one session, counts their memory as long as they exist, and
// keeps those that the client has not raised yet. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/program/value.h"

namespace teletensor::runtime {

using FailureRef = std::shared_ptr<const program::Failure>;

class Failures {
 public:
  // Roots, each with the seqs of the in-place commands that failed because of it.
  using Open = std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>>;
  // Approximate memory of a failure without its text, of a root that is not taken, and of a rebind,
  // in bytes.
  static constexpr std::uint64_t kPerFailure = 224, kPerRoot = 96, kPerRebind = 16;

  // The failure of command `seq`. It may live longer than this object.
  FailureRef make(std::uint64_t seq, core::Status status) const;
  // Records that command `seq` failed because of `failure`; `rebinds` if it is an in-place command.
  void add(std::uint64_t seq, const program::Failure& failure, bool rebinds);
  // Returns the rebinds of this root in ascending order, and forgets the root.
  std::vector<std::uint64_t> take(std::uint64_t root);
  // The number of roots and rebinds that were not taken yet.
  std::size_t open() const;
  Open all() const;
  void restore(Open open);
  // The memory of all failures that exist, and of the roots and rebinds that were not taken, in
  // bytes.
  std::uint64_t bytes() const { return bytes_->load(std::memory_order_relaxed); }

 private:
  using Bytes = std::shared_ptr<std::atomic<std::uint64_t>>;
  class Counted;

  mutable core::Mutex mu_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> open_ TT_GUARDED_BY(mu_);  // root -> rebinds
  std::size_t size_ TT_GUARDED_BY(mu_) = 0;  // number of roots and rebinds in open_
  const Bytes bytes_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace teletensor::runtime
