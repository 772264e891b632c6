#include "engine/core/memory/reserve.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace teletensor::core {

namespace {

// Each failed allocation uses at least one block, because the handler does not learn its size.
constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
constexpr std::size_t kBlocks = 64;

std::array<std::atomic<void*>, kBlocks> blocks{};
thread_local bool uses_reserve = true;

// Called by operator new, which tries again if it returns.
void give_block() {
  if (uses_reserve) {
    for (std::atomic<void*>& block : blocks) {
      if (void* const taken = block.exchange(nullptr)) {
        std::free(taken);
        return;
      }
    }
  }
  throw std::bad_alloc();
}

}  // namespace

void keep_reserve() {
  refill_reserve();
  std::set_new_handler(give_block);
}

void refill_reserve() {
  for (std::atomic<void*>& block : blocks) {
    if (block.load(std::memory_order_relaxed) != nullptr) continue;
    void* const memory = std::malloc(kBlockBytes);
    if (memory == nullptr) return;
    std::free(block.exchange(memory));
  }
}

std::size_t reserve_left() {
  std::size_t left = 0;
  for (const std::atomic<void*>& block : blocks) left += block.load() != nullptr ? kBlockBytes : 0;
  return left;
}

UsesReserve::UsesReserve(bool uses) : before_(std::exchange(uses_reserve, uses)) {}

UsesReserve::~UsesReserve() { uses_reserve = before_; }

}  // namespace teletensor::core
