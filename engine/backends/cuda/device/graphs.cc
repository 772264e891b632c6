#include "engine/backends/cuda/device/graphs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace teletensor::backends::cuda {
namespace {

// Stored as the number of sightings: the driver cannot make a graph of this list.
constexpr int kNotWorthIt = -1;
constexpr std::size_t kMaxSeen = 4096;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  return (hash ^ word) * 0x9e3779b97f4a7c15ull + (hash >> 29);
}

std::uint64_t form(const Product& p) {
  std::uint64_t hash = 0;
  for (const std::int64_t size : {p.m, p.n, p.k})
    hash = mixed(hash, static_cast<std::uint64_t>(size));
  return hash;
}

std::uint64_t form(const Convolution& c) {
  std::uint64_t hash = 1 + static_cast<std::uint64_t>(c.pass);
  for (const auto* side : {&c.x, &c.weight}) {
    for (const std::int64_t size : side->sizes)
      hash = mixed(hash, static_cast<std::uint64_t>(size));
  }
  return hash;
}

}  // namespace

int Task::start(const Driver& driver, Stream stream) const {
  if (library != nullptr) return library->start(*call, stream);
  if (function == nullptr) {
    return from == 0 ? driver.cuMemsetD8Async(to, 0, bytes, stream)
                     : driver.cuMemcpyDtoDAsync(to, from, bytes, stream);
  }
  std::size_t size = params.size();
  // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END.
  void* extra[] = {reinterpret_cast<void*>(1), const_cast<std::byte*>(params.data()),
                   reinterpret_cast<void*>(2), &size, nullptr};
  return driver.cuLaunchKernel(function, shape.grid[0], shape.grid[1], shape.grid[2],
                               shape.block[0], shape.block[1], shape.block[2], shape.shared_bytes,
                               stream, nullptr, extra);
}

// ---------------------------------------------------------------- lists

void TaskList::add(const Task& task) {
  Node& node = nodes_.emplace_back();
  node.function = task.function;
  node.library = task.library;
  starts_ += task.starts() ? 1 : 0;
  const auto word = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  structure_ = mixed(structure_, word(task.function) ^ word(task.library));
  if (task.library != nullptr) {
    node.at = calls_.size();
    calls_.push_back(*task.call);
    structure_ =
        mixed(structure_, std::visit([](const auto& call) { return form(call); }, *task.call));
  } else if (task.function != nullptr) {
    node.shape = task.shape;
    node.at = params_.size();
    node.bytes = task.params.size();
    params_.resize(node.at + (node.bytes + 7) / 8);
    std::memcpy(params_.data() + node.at, task.params.data(), node.bytes);
  } else {
    node.to = task.to;
    node.from = task.from;
    node.bytes = task.bytes;
    structure_ = mixed(structure_, task.from == 0 ? 1 : 2);
  }
}

void TaskList::clear() {
  nodes_.clear();
  params_.clear();
  calls_.clear();
  starts_ = 0;
  structure_ = 0;
}

int TaskList::start(const Driver& driver, Stream stream, bool* library) const {
  for (const Node& node : nodes_) {
    Task task;
    task.function = node.function;
    task.shape = node.shape;
    task.library = node.library;
    task.to = node.to;
    task.from = node.from;
    task.bytes = node.bytes;
    *library = node.library != nullptr;
    if (*library) task.call = &calls_[node.at];
    if (node.function != nullptr) {
      task.params = std::as_bytes(std::span(params_)).subspan(8 * node.at, node.bytes);
    }
    if (const int code = task.start(driver, stream); code != 0) return code;
  }
  return kSuccess;
}

// ---------------------------------------------------------------- graphs

int Graphs::start(const Driver& driver, Stream stream, const TaskList& list, bool* library,
                  bool* graph) {
  const GraphExec exec = list.size() < kMin ? nullptr : find(driver, list);
  *graph = exec != nullptr;
  *library = false;
  return *graph ? driver.cuGraphLaunch(exec, stream) : list.start(driver, stream, library);
}

// Returns null if a graph is not worthwhile, or if the driver cannot make one.
GraphExec Graphs::find(const Driver& driver, const TaskList& list) {
  std::size_t variants = 0;
  auto oldest = known_.end();
  for (auto at = known_.begin(); at != known_.end(); ++at) {
    if (at->list.structure() != list.structure()) continue;
    if (at->list == list) {
      known_.splice(known_.begin(), known_, at);
      return known_.front().exec;
    }
    ++variants;
    oldest = at;
  }
  if (seen_.size() >= kMaxSeen) seen_.clear();
  int& seen = seen_[list.structure()];
  if (seen == kNotWorthIt || (seen < kSightings && ++seen < kSightings)) return nullptr;
  if (variants < kVariants) {
    if (known_.size() >= kMax) {
      driver.cuGraphExecDestroy(known_.back().exec);
      known_.pop_back();
    }
    known_.emplace_front();
  } else {
    known_.splice(known_.begin(), known_, oldest);
  }
  Known& known = known_.front();
  known.exec = make(driver, list, known.exec);
  if (known.exec == nullptr) {
    seen = kNotWorthIt;
    known_.pop_front();
    return nullptr;
  }
  known.list = list;
  return known.exec;
}

// Makes a graph of the list, by updating the parameters of `former` if the driver can. Earlier
// launches of `former` run with their old parameters.
GraphExec Graphs::make(const Driver& driver, const TaskList& list, GraphExec former) {
  const Graph graph = capture(driver, list);
  GraphExec made = former;
  GraphUpdate update;
  if (graph == nullptr || former == nullptr ||
      driver.cuGraphExecUpdate(former, graph, &update) != kSuccess) {
    if (former != nullptr) driver.cuGraphExecDestroy(former);
    if (graph == nullptr || driver.cuGraphInstantiate(&made, graph, 0) != kSuccess) made = nullptr;
  }
  if (graph != nullptr) driver.cuGraphDestroy(graph);
  return made;
}

Graph Graphs::capture(const Driver& driver, const TaskList& list) {
  if (aside_ == nullptr && driver.cuStreamCreate(&aside_, kStreamNonBlocking) != kSuccess) {
    aside_ = nullptr;
    return nullptr;
  }
  if (driver.cuStreamBeginCapture(aside_, kCaptureRelaxed) != kSuccess) return nullptr;
  bool library = false;
  Graph graph = nullptr;
  const bool whole = list.start(driver, aside_, &library) == kSuccess;
  if (driver.cuStreamEndCapture(aside_, &graph) != kSuccess) return nullptr;
  if (whole) return graph;
  driver.cuGraphDestroy(graph);
  return nullptr;
}

void Graphs::clear(const Driver& driver) {
  for (const Known& each : known_) driver.cuGraphExecDestroy(each.exec);
  known_.clear();
  seen_.clear();
  if (aside_ != nullptr) driver.cuStreamDestroy(std::exchange(aside_, nullptr));
}

}  // namespace teletensor::backends::cuda
