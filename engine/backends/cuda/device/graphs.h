// Graphs: turns work that a session queues again and again into CUDA graphs.
//
// The work of a captured program is not sent to the driver at once but gathered (queues.h). If a
// list of the same structure has been gathered before, the list is sent as one graph: unchanged if
// its parameters are those of an earlier list (the memory of a program often has the same addresses
// again), and otherwise with updated parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/backends/cuda/codegen/kernel_source.h"
#include "engine/backends/cuda/driver/driver.h"
#include "engine/backends/cuda/library/convolution.h"
#include "engine/backends/cuda/library/product.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// A library of kernels. start() queues a call on a stream and returns an error code of the library;
// 0 means success.
using LibraryCall = std::variant<Product, Convolution>;
class Library {
 public:
  virtual int start(const LibraryCall& call, Stream stream) = 0;

 protected:
  ~Library() = default;
};

// One task for a stream: a kernel, a call of a library, a copy, or, if `from` is 0, clearing
// memory.
struct Task {
  Function function = nullptr;
  LaunchShape shape;
  std::span<const std::byte> params;  // the kernel's one parameter, a struct

  Library* library = nullptr;
  const LibraryCall* call = nullptr;

  Address to = 0, from = 0;
  std::size_t bytes = 0;

  bool starts() const { return function != nullptr || library != nullptr; }
  bool clears() const { return !starts() && from == 0; }
  // Returns an error code of the driver or of the library.
  int start(const Driver& driver, Stream stream) const;
};

// A list of tasks with copies of their parameters.
class TaskList {
 public:
  void add(const Task& task);
  std::size_t size() const { return nodes_.size(); }
  std::size_t starts() const { return starts_; }  // number of kernels and library calls
  void clear();
  // A hash of everything except addresses, sizes and numbers.
  std::uint64_t structure() const { return structure_; }
  // Queues the tasks in order and stops at the first error. Sets `*library` if the error is the
  // library's and not the driver's.
  int start(const Driver& driver, Stream stream, bool* library) const;
  friend bool operator==(const TaskList&, const TaskList&) = default;

 private:
  struct Node {
    Function function = nullptr;
    LaunchShape shape;
    std::size_t at = 0, bytes = 0;  // range in params_; for a task without a function, of memory
    Library* library = nullptr;
    Address to = 0, from = 0;
    friend bool operator==(const Node&, const Node&) = default;
  };

  std::vector<Node> nodes_;
  std::vector<std::uint64_t> params_;  // 8-byte units, for the alignment of structs
  std::vector<LibraryCall> calls_;
  std::size_t starts_ = 0;
  std::uint64_t structure_ = 0;
};

// The graphs of one session. Not thread-safe.
class Graphs {
 public:
  static constexpr std::size_t kMin = 4;  // minimum number of tasks for a graph
  // A structure gets a graph when it occurs for this many times.
  static constexpr int kSightings = 3;
  static constexpr std::size_t kVariants = 4;  // maximum number of graphs with the same structure
  static constexpr std::size_t kMax = 64;

  // Runs the list on the stream; sets `*graph` if it ran as a graph. Precondition: the context is
  // current.
  int start(const Driver& driver, Stream stream, const TaskList& list, bool* library, bool* graph);
  // Drops all graphs; launches in progress continue. Precondition: the context is current.
  void clear(const Driver& driver);

 private:
  struct Known {
    TaskList list;
    GraphExec exec = nullptr;
  };

  GraphExec find(const Driver& driver, const TaskList& list);
  GraphExec make(const Driver& driver, const TaskList& list, GraphExec former);
  Graph capture(const Driver& driver, const TaskList& list);

  std::list<Known> known_;  // the most recently used one first
  std::unordered_map<std::uint64_t, int> seen_;
  Stream aside_ = nullptr;  // a stream for capturing lists; it never runs anything
};

}  // namespace teletensor::backends::cuda
