// CodeFolder: stores compiled kernels as files whose names are derived from their source text and
// compiler flags. Several processes may use one folder. A damaged file counts as missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teletensor::backends::cuda {

class CodeFolder {
 public:
  // With an empty path nothing is stored.
  explicit CodeFolder(std::string path) : path_(std::move(path)) {}

  // The file name of the code that is compiled from this text with these flags.
  static std::string name_of(std::string_view flags, std::string_view text);
  std::optional<std::string> read(const std::string& name) const;
  // Errors are ignored: with a full disk the kernel is only compiled again later.
  void write(const std::string& name, std::string_view code) const;
  // If the files have more than `most` bytes in total, removes the oldest ones until half of that
  // is left.
  void trim(std::uint64_t most) const;

 private:
  const std::string path_;
};

}  // namespace teletensor::backends::cuda
