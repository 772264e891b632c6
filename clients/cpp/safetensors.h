// Reads a safetensors file: 8 bytes with the header length (little-endian), a JSON header, and
// data. Source: github.com/huggingface/safetensors. Reading never goes beyond the file, whatever
// the header says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/status.h"

namespace teletensor::client {

class SafetensorsFile {
 public:
  struct Entry {
    core::DType dtype = core::DType::kF32;
    std::vector<std::int64_t> shape;
    std::string_view bytes;  // Contents in row-major order; owned by the file object.
  };
  // Reads a file. Errors: NOT_FOUND, or INVALID_ARGUMENT with a description of the damage.
  static core::Result<SafetensorsFile> read(const std::string& path);

  // The entry or metadata with this name. Null if there is none.
  const Entry* find(const std::string& name) const;
  const std::string* metadata(const std::string& key) const;
  const std::map<std::string, Entry>& entries() const { return entries_; }

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

 private:
  SafetensorsFile() = default;
  core::Status parse();

  // The contents of the file, whose address does not change when the object is moved.
  std::vector<char> contents_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace teletensor::client
