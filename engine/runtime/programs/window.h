// WindowPlans: plans of windows, which are the instructions of a session between two marks of its
// stream. A plan determines in which order the instructions run and which of them run as one loop.
// It depends only on the structure of the window (ops, layouts, dtypes, which value is whose
// operand), never on numbers, on attributes that only kernels read, or on other references to a
// value. Therefore a training loop plans its step only once.
//
// Used by the session task only; not thread-safe.
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

// Written by the session task, read by any thread.
struct PlanStats {
  std::atomic<std::uint64_t> hits{0}, misses{0};  // windows with a known plan, and with a new one
  std::atomic<std::uint64_t> loops{0}, loop_steps{0};  // loops that ran, and instructions in them

  static void add(std::atomic<std::uint64_t>& count, std::uint64_t n = 1) {
    count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

class WindowPlans {
 public:
  static constexpr std::size_t kMaxPlans = 256;

  // Both must outlive this object.
  WindowPlans(const ops::Catalog& catalog, const Devices& devices);

  struct Plan {
    std::vector<passes::Unit> units;  // steps are indices into the window
    std::vector<bool> never;          // by unit: true for a loop that this device cannot run
  };
  // Returns the plan of a window. Null instructions stand for entries without an instruction; they
  // keep their position. The plan is valid until the next call.
  Plan& plan(std::span<program::Instruction* const> window);
  // Must be called when pointers into an interner become invalid.
  void clear() {
    plans_.clear();
    last_ = nullptr;
  }
  const PlanStats& stats() const { return stats_; }
  PlanStats& stats() { return stats_; }

 private:
  struct Kept {
    std::vector<std::uint64_t> key;
    Plan plan;
    Kept* next = nullptr;  // the plan that ran after this one last time; may be itself
  };
  // Numbers the values in the order in which a window refers to them.
  std::uint32_t number_of(program::Value& value) {
    if (value.window != window_) {
      value.window = window_;
      value.number_in_window = values_++;
    }
    return value.number_in_window;
  }
  void make_key(std::span<program::Instruction* const> window);
  // Finds or makes the plan of the window with the key `key_`.
  Kept& find(std::span<program::Instruction* const> window);
  Plan make(std::span<program::Instruction* const> window);

  const ops::Catalog& catalog_;
  const Devices& devices_;
  std::vector<bool> folds_;  // by op: whether it is a reduction on any device
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Kept>> plans_;
  Kept* last_ = nullptr;  // of the window before
  Plan one_by_one_;
  PlanStats stats_;

  // Data of the current window; kept to reuse their memory.
  std::vector<std::uint64_t> key_;
  std::uint64_t window_ = 0;  // its number among all windows of the process
  std::uint32_t values_ = 0;
};

}  // namespace teletensor::runtime
