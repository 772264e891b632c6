// UndoLog: what is needed to undo the in-place writes of commands that may still fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "engine/autograd/objects.h"

namespace teletensor::autograd {

// Owns the records of the writes, and of the nodes of views that were rebuilt because of them, of
// all commands that have not been reported as completed. Both lists are in the order of the
// commands.
class UndoLog {
 public:
  struct Write {
    std::uint64_t seq;
    core::Ref<Cell> cell;
    core::Ref<Clock> clock;
    std::uint32_t tick;
    HandleRef base{};        // the base whose history changed; null if the write was not recorded
    core::Ref<Node> node{};  // the node that the write recorded
    core::Ref<Node> old_node{};
    std::uint32_t old_output = 0;
  };
  // A node of a view that was rebuilt because the clock had advanced, by writes that may still turn
  // out to have failed.
  struct Rebuilt {
    std::uint64_t seq;
    core::Ref<Clock> clock;
    core::Ref<Node> node;
    Edge old;
    std::uint32_t old_seen, seen;
  };

  explicit UndoLog(GraphObjects& objects) : objects_(objects) {}

  void add(Write write) { writes_.push_back(std::move(write)); }
  void add(Rebuilt rebuilt) { rebuilt_.push_back(std::move(rebuilt)); }
  // Adds to the last write that it was recorded: `node` has replaced result `old_output` of
  // `old_node` as the history of the base. Precondition: has_writes().
  void note_history(Handle& base, core::Ref<Node> node, core::Ref<Node> old_node,
                    std::uint32_t old_output);
  bool has_writes() const { return !writes_.empty(); }
  const std::deque<Write>& writes() const { return writes_; }
  const std::deque<Rebuilt>& rebuilt() const { return rebuilt_; }
  // Approximate memory of the records.
  std::size_t bytes() const {
    return writes_.size() * sizeof(Write) + rebuilt_.size() * sizeof(Rebuilt);
  }

  // All commands up to seq have run; drops their records.
  void completed(std::uint64_t seq);
  // Undoes the in-place commands `rebinds` (ascending), which failed because of the error of
  // command `root`.
  void take_back(const std::vector<std::uint64_t>& rebinds, std::uint64_t root);
  // After this, undoing a failed write restores only the value and not the history, because the
  // handles that had a history are gone.
  void forget_history();

 private:
  // A node whose write was undone, and the edge that replaces it.
  struct Lost {
    core::Ref<Node> node;
    Edge old;
    HandleRef base;  // null if it was the node of a view
  };

  void undo_rebuild(Handle& h, const Rebuilt& rebuilt);
  void replace(std::vector<Lost>& lost);

  GraphObjects& objects_;
  std::deque<Write> writes_;
  std::deque<Rebuilt> rebuilt_;
};

}  // namespace teletensor::autograd
