// Converts between session images (engine/program/image.h) and the messages of state.proto.
#pragma once

#include <string>

#include "engine/engine.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

// An operator's name and revision as in files: "add (revision 1)".
std::string op_title(const ops::OpDef& def);

// Converts a device to its number in files, kind * 256 + index, and back.
std::uint32_t number_of(core::Device device);
core::Device device_from(std::uint32_t number);

// Writes an image without the contents of its storages.
void write_image(const program::Image& image, const ops::Catalog& catalog, v1::SavedImage& out);
// Returns INVALID_ARGUMENT if the message is not a valid image, and UNIMPLEMENTED if it uses an
// operator that this daemon does not have in that revision. All indices in the result are in range;
// nothing else is checked.
core::Result<program::Image> read_image(const v1::SavedImage& saved, const ops::Catalog& catalog);

}  // namespace teletensor::server
