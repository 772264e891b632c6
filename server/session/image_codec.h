// Images of sessions as protobuf: state.proto and engine/program/image.h meet here.
#pragma once

#include <string>

#include "engine/engine.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

// "add (revision 1)".
std::string op_title(const ops::OpDef& def);

// In a file: kind * 256 + index.
std::uint32_t number_of(core::Device device);
core::Device device_from(std::uint32_t number);

// Without the bytes of storages.
void write_image(const program::Image& image, const ops::Catalog& catalog, v1::SavedImage& out);
// INVALID_ARGUMENT for what is no image; UNIMPLEMENTED where it uses an op that this daemon has not
// got, or at another revision. What it gives refers to what is there, and is checked no further.
core::Result<program::Image> read_image(const v1::SavedImage& saved, const ops::Catalog& catalog);

}  // namespace teletensor::server
