// Keys (kernel_source.h) as bytes: a plan writes them, and the code that prints the kernel's text
// reads them.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace teletensor::backends::cuda {

enum class KernelKind : char {
  kLoop = 'L',
  kFold = 'F',
  kCheck = 'C',
  kIndex = 'I',
  kMatmul = 'M',
  kRows = 'R',
  kRandom = 'N',
  kRecipe = 'P'
};

class KeyWriter {
 public:
  explicit KeyWriter(KernelKind kind) { put(kind); }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    key_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string take() { return std::move(key_); }

 private:
  std::string key_;
};

class KeyReader {
 public:
  explicit KeyReader(std::string_view key) : key_(key) {}
  template <class T>
  T get() {
    T value{};
    if (key_.size() < sizeof value) return value;
    std::memcpy(&value, key_.data(), sizeof value);
    key_.remove_prefix(sizeof value);
    return value;
  }

 private:
  std::string_view key_;
};

}  // namespace teletensor::backends::cuda
