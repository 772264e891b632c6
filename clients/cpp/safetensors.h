// A safetensors file: 8 bytes header length (little-endian), header (JSON), data. Source:
// github.com/huggingface/safetensors. Whatever the file says, reading stays inside it.
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
    std::string_view bytes;  // row-major; the file's
  };
  // Errors: NOT_FOUND, INVALID_ARGUMENT with what is damaged.
  static core::Result<SafetensorsFile> read(const std::string& path);

  // Null where there is none.
  const Entry* find(const std::string& name) const;
  const std::string* metadata(const std::string& key) const;
  const std::map<std::string, Entry>& entries() const { return entries_; }

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

 private:
  SafetensorsFile() = default;
  core::Status parse();

  std::vector<char> contents_;  // stays where it is when the file is moved
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace teletensor::client
