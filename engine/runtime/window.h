// Window: instructions of a session between two marks of its stream, and the plans that are made of
// them. A plan says in which order they run and which run as one loop; it depends on the window's
// structure alone (ops, layouts, dtypes, which value is whose operand), never on numbers,
// attributes that only kernels read, or what else holds a value. So a training loop plans its step
// once.
//
// The strand's; not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/passes/loop.h"
#include "engine/program/instruction.h"
#include "engine/runtime/device.h"

namespace teletensor::runtime {

// Counted by the strand, read by anybody.
struct PlanStats {
  std::atomic<std::uint64_t> hits{0}, misses{0};       // windows whose plan was known, or made
  std::atomic<std::uint64_t> loops{0}, loop_steps{0};  // run as loops, and instructions in them

  static void add(std::atomic<std::uint64_t>& count, std::uint64_t n = 1) {
    count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

class WindowPlans {
 public:
  static constexpr std::size_t kMaxPlans = 256;

  // Both outlive it.
  WindowPlans(const ops::Catalog& catalog, const Devices& devices)
      : catalog_(catalog), devices_(devices) {}

  struct Plan {
    std::vector<passes::Unit> units;  // steps are indices into the window
    std::vector<bool> never;          // by unit: a loop that this device cannot run
  };
  // Null instructions are entries that are none; they stay where they are. The plan lives until the
  // next call.
  Plan& plan(std::span<program::Instruction* const> window);
  // Pointers into an interner are no longer valid.
  void clear() { plans_.clear(); }
  const PlanStats& stats() const { return stats_; }
  PlanStats& stats() { return stats_; }

 private:
  struct Kept {
    std::vector<std::uint64_t> key;
    Plan plan;
  };
  std::uint32_t number_of(const program::Value* value);
  bool too_many() const;
  void make_key(std::span<program::Instruction* const> window);
  Plan make(std::span<program::Instruction* const> window);

  const ops::Catalog& catalog_;
  const Devices& devices_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Kept>> plans_;
  Plan one_by_one_;
  PlanStats stats_;

  // Of the window being looked at; kept to reuse their memory.
  std::vector<std::uint64_t> key_;
  std::uint64_t hash_ = 0;
  struct Numbered {
    const program::Value* value = nullptr;
    std::uint32_t window = 0, number = 0;
  };
  std::vector<Numbered> numbers_;  // open addressing
  std::size_t places_ = 0;         // of them in use, less one: a power of two less one
  std::uint32_t window_ = 0, values_ = 0;
};

}  // namespace teletensor::runtime
