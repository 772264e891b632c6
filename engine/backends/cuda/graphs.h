// Graphs: what a session asks of a device again and again, as graphs of the driver.
//
// What a captured program asks is not handed to the driver at once but gathered (queues.h), and the
// list goes to it as one thing where such a list has come before: as it is where its parameters are
// those of a former one (a program's memory comes back to the same places), else with the new ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/backends/cuda/convolution.h"
#include "engine/backends/cuda/driver.h"
#include "engine/backends/cuda/kernel_source.h"
#include "engine/backends/cuda/product.h"
#include "engine/core/status.h"

namespace teletensor::backends::cuda {

// A library of kernels, which starts a call of its kind in a stream; an error of its own, 0: none.
using LibraryCall = std::variant<Product, Convolution>;
class Library {
 public:
  virtual int start(const LibraryCall& call, Stream stream) = 0;

 protected:
  ~Library() = default;
};

// One thing to do in a stream: a kernel, a library's call, a copy, or a clearing where there is no
// `from`.
struct Task {
  Function function = nullptr;
  LaunchShape shape;
  std::span<const std::byte> params;  // a kernel's one parameter, a structure

  Library* library = nullptr;
  const LibraryCall* call = nullptr;

  Address to = 0, from = 0;
  std::size_t bytes = 0;

  bool starts() const { return function != nullptr || library != nullptr; }
  bool clears() const { return !starts() && from == 0; }
  // An error of the driver, or of the library.
  int start(const Driver& driver, Stream stream) const;
};

// Tasks, with their parameters.
class TaskList {
 public:
  void add(const Task& task);
  std::size_t size() const { return nodes_.size(); }
  std::size_t starts() const { return starts_; }  // kernels and calls of libraries among them
  void clear();
  // What stays the same when only addresses, sizes and numbers change.
  std::uint64_t structure() const { return structure_; }
  // In their order; the error of one ends it, `*library`: it is not the driver's.
  int start(const Driver& driver, Stream stream, bool* library) const;
  friend bool operator==(const TaskList&, const TaskList&) = default;

 private:
  struct Node {
    Function function = nullptr;
    LaunchShape shape;
    std::size_t at = 0, bytes = 0;  // in params_; of memory where there is no function
    Library* library = nullptr;
    Address to = 0, from = 0;
    friend bool operator==(const Node&, const Node&) = default;
  };

  std::vector<Node> nodes_;
  std::vector<std::uint64_t> params_;  // in eights: as aligned as structures are
  std::vector<LibraryCall> calls_;
  std::size_t starts_ = 0;
  std::uint64_t structure_ = 0;
};

// A session's graphs. Not thread-safe.
class Graphs {
 public:
  static constexpr std::size_t kMin = 4;       // tasks that are worth a graph
  static constexpr int kSightings = 3;         // of a structure, until it is worth one
  static constexpr std::size_t kVariants = 4;  // graphs of one structure
  static constexpr std::size_t kMax = 64;

  // Runs the list in the stream; `*graph`: as one. Precondition: the context is entered.
  int start(const Driver& driver, Stream stream, const TaskList& list, bool* library, bool* graph);
  // Forgets all; what runs goes on. Precondition: the context is entered.
  void clear(const Driver& driver);

 private:
  struct Known {
    TaskList list;
    GraphExec exec = nullptr;
  };

  GraphExec find(const Driver& driver, const TaskList& list);
  GraphExec make(const Driver& driver, const TaskList& list, GraphExec former);
  Graph capture(const Driver& driver, const TaskList& list);

  std::list<Known> known_;  // the latest in front
  std::unordered_map<std::uint64_t, int> seen_;
  Stream aside_ = nullptr;  // where lists are captured; runs nothing
};

}  // namespace teletensor::backends::cuda
