// CodeFolder: what the compiler made of kernels, as files named after what they were made from.
// Several processes may use one folder. What is damaged counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teletensor::backends::cuda {

class CodeFolder {
 public:
  // "": keeps nothing.
  explicit CodeFolder(std::string path) : path_(std::move(path)) {}

  // The name of code that was made of this text with these flags.
  static std::string name_of(std::string_view flags, std::string_view text);
  std::optional<std::string> read(const std::string& name) const;
  // Best effort: a full disk costs only time.
  void write(const std::string& name, std::string_view code) const;
  // Removes the oldest files where there are more than `most` bytes, until half is left.
  void trim(std::uint64_t most) const;

 private:
  const std::string path_;
};

}  // namespace teletensor::backends::cuda
