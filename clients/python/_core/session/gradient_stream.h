// GradientStream fetches the gradients of leaves as soon as a backward has computed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "clients/session/session.h"

namespace teletensor::client {

class GradientStream {
 public:
  struct Fetched {
    HandleRef leaf;
    std::uint64_t seq;  // Number of the Fetch.
    bool bulk;
  };

  // From here to end(), gradients are fetched; those above `inline_bytes` bytes in bulk.
  void begin(std::size_t inline_bytes) {
    on_ = true;
    inline_bytes_ = inline_bytes;
    fetched_.clear();
  }
  std::vector<Fetched> end() {
    on_ = false;
    return std::exchange(fetched_, {});
  }
  // Reports that the gradient of the leaf is complete. The daemon's error is raised later.
  void leaf_done(Session& session, Handle& leaf) {
    if (!on_ || leaf.grad == nullptr) return;
    const core::Layout& layout = leaf.grad->layout;
    const auto elements = static_cast<std::size_t>(layout.geometry.numel());
    const bool bulk = elements * core::size_of(layout.dtype) > inline_bytes_;
    const auto seq = session.fetch(*leaf.grad, bulk);
    if (seq.ok()) fetched_.push_back({HandleRef(&leaf), *seq, bulk});
  }

 private:
  bool on_ = false;
  std::size_t inline_bytes_ = 0;
  std::vector<Fetched> fetched_;
};

}  // namespace teletensor::client
