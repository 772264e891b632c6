// Writes the one parameter of a kernel field by field; every field begins at a multiple of 8 bytes.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace teletensor::backends::cuda {

class Params {
 public:
  void put_bytes(const void* from, std::size_t size) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + (size + 7) / 8 * 8);
    std::memcpy(bytes_.data() + at, from, size);
  }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace teletensor::backends::cuda
