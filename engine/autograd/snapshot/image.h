// Captures the handles, cells and tape of a graph in a snapshot (program::Image), and restores a
// daemon's graph from one.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/autograd/snapshot/inventory.h"
#include "engine/program/image.h"

namespace teletensor::autograd {

// Assigns indices in a snapshot to values and storages.
class ImageIndexer {
 public:
  explicit ImageIndexer(program::Image& image) : image_(image) {}
  program::Image::Index value(const program::Value* value);
  // Leaves bytes and seq of a new entry unset; the caller, which knows the storage, fills them in.
  program::Image::Index storage(const core::Ref<core::Shared>& contents, core::Device device);

 private:
  program::Image& image_;
  std::unordered_map<const void*, program::Image::Index> values_, storages_, failures_;
};

// Captures all objects of the graph and the kept names: fills the lists of `image` up to `kept`,
// and tape_length. Stores a handle's id only if `named` returns true for the handle.
void take_image(Graph& graph, const KeptNames& kept,
                const std::function<bool(const Handle&)>& named, ImageIndexer& maker,
                program::Image& image);

// Makes the values of a snapshot, whose storages already have their contents. Returns
// INVALID_ARGUMENT if the snapshot is inconsistent.
core::Result<std::vector<program::ValueRef>> values_of(const program::Image& image);

// Fills an empty graph from a snapshot; `handles` gets all handles, in the order of the snapshot.
// Returns INVALID_ARGUMENT if the snapshot is inconsistent; then the graph must not be used.
core::Status restore_image(Graph& graph, const program::Image& image,
                           const std::vector<program::ValueRef>& values,
                           std::vector<HandleRef>& handles);

}  // namespace teletensor::autograd
