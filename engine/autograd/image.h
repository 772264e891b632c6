// Names, cells and tape as an Image, and a graph made of one: the daemon's, with values.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/autograd/inventory.h"
#include "engine/program/image.h"

namespace teletensor::autograd {

// Values and storages by their place in an image.
class ImageMaker {
 public:
  explicit ImageMaker(program::Image& image) : image_(image) {}
  program::Image::Index value(const program::Value* value);
  // Bytes and seq of a new one are left to whoever knows what a storage is.
  program::Image::Index storage(const core::Ref<core::Shared>& contents, core::Device device);

 private:
  program::Image& image_;
  std::unordered_map<const void*, program::Image::Index> values_, storages_, failures_;
};

// Everything in the graph and the kept names; of `image` the lists up to `kept`, and tape_length.
// A handle's id is kept where `named` says that it is one.
void take_image(Graph& graph, const KeptNames& kept,
                const std::function<bool(const Handle&)>& named, ImageMaker& maker,
                program::Image& image);

// The image's values, with the contents of its storages, which are in place.
// INVALID_ARGUMENT where the image makes no sense.
core::Result<std::vector<program::ValueRef>> values_of(const program::Image& image);

// Fills an empty graph; `handles` holds each of them, in the image's order. INVALID_ARGUMENT where
// the image makes no sense; the graph is then of no use.
core::Status put_up_image(Graph& graph, const program::Image& image,
                          const std::vector<program::ValueRef>& values,
                          std::vector<HandleRef>& handles);

}  // namespace teletensor::autograd
