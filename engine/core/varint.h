// Reading and writing of the parts of protobuf's encoding that frames and saved programs use:
// varints, tags, packed fields.
//
// Writing uses a bare pointer, for speed on the path of each command: the caller provides enough
// room, and each function returns the position after what it has written. Reading checks bounds,
// because the bytes come from a peer or a file. The format is described in
// https://protobuf.dev/programming-guides/encoding.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace teletensor::core {

// How the contents of a field are encoded. The deprecated groups (3 and 4) are never written and
// not accepted.
enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

inline constexpr int kMaxVarint = 10;  // bytes

// The number that precedes a field. Precondition: 1 <= field < 2^29.
constexpr std::uint32_t tag_of(std::uint32_t field, WireType type) {
  return field << 3 | static_cast<std::uint32_t>(type);
}
// Maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ..., so that negative numbers of small size have short
// varints (protobuf's sint64).
constexpr std::uint64_t zigzag(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
}
constexpr std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1 ^ (0 - (value & 1)));
}

// Needs room for varint_size(value) bytes, at most kMaxVarint.
inline char* put_varint(char* at, std::uint64_t value) {
  while (value >= 128) {
    *at++ = static_cast<char>(value | 128);
    value >>= 7;
  }
  *at++ = static_cast<char>(value);
  return at;
}
// The number of bytes that put_varint() writes.
constexpr int varint_size(std::uint64_t value) {
  int size = 1;
  while (value >= 128) {
    value >>= 7;
    ++size;
  }
  return size;
}
inline char* put_tag(char* at, std::uint32_t field, WireType type) {
  return put_varint(at, tag_of(field, type));
}
// Writes nothing for 0, as in proto3.
inline char* put_field(char* at, std::uint32_t field, std::uint64_t value) {
  return value == 0 ? at : put_varint(put_tag(at, field, WireType::kVarint), value);
}
// Writes the bytes themselves, without a length.
inline char* put_bytes(char* at, std::string_view bytes) {
  if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
  return at + bytes.size();
}

// A length that is known only after the body is written: the writer leaves one byte for it, and
// close_length() moves the body if the length needs more. The buffer must have room for the body
// and kMaxLength bytes.
inline constexpr int kMaxLength = 5;
inline char* close_length(char* opened, char* end) {
  const std::size_t size = static_cast<std::size_t>(end - opened - 1);
  if (size < 128) {
    *opened = static_cast<char>(size);
    return end;
  }
  const int more = varint_size(size) - 1;
  std::memmove(opened + 1 + more, opened + 1, size);
  put_varint(opened, size);
  return end + more;
}

// A position in untrusted bytes. Every read reports whether it was possible; after a failure the
// cursor must not be used. The bytes must outlive the cursor.
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(std::string_view bytes)
      : at_(reinterpret_cast<const std::uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  bool done() const { return at_ == end_; }
  // The number of bytes that were not read yet.
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  // Accepts an encoding that is longer than necessary, as protobuf does, but no number above 64
  // bits.
  bool varint(std::uint64_t& value) {
    if (at_ != end_ && *at_ < 128) {
      value = *at_++;
      return true;
    }
    return long_varint(value);
  }
  bool fixed64(std::uint64_t& value) {
    if (left() < 8) return false;
    std::memcpy(&value, at_, 8);
    at_ += 8;
    return true;
  }
  // Reads a length and that number of bytes. `value` refers to the bytes of the cursor.
  bool bytes(std::string_view& value) {
    std::uint64_t size = 0;
    if (!varint(size) || size > left()) return false;
    value = {reinterpret_cast<const char*>(at_), static_cast<std::size_t>(size)};
    at_ += size;
    return true;
  }
  // Returns false for field 0 and for a tag above 32 bits. `type` may be a number without a name,
  // which skip() refuses.
  bool tag(std::uint32_t& field, WireType& type) {
    std::uint64_t value = 0;
    if (!varint(value) || value >> 32 != 0) return false;
    field = static_cast<std::uint32_t>(value >> 3);
    type = static_cast<WireType>(value & 7);
    return field != 0;
  }
  // Reads over the contents of a field, for a field that this program does not know.
  bool skip(WireType type) {
    std::uint64_t number = 0;
    std::string_view text;
    switch (type) {
      case WireType::kVarint:
        return varint(number);
      case WireType::kFixed64:
        return fixed64(number);
      case WireType::kBytes:
        return bytes(text);
      case WireType::kFixed32:
        if (left() < 4) return false;
        at_ += 4;
        return true;
    }
    return false;
  }

 private:
  bool long_varint(std::uint64_t& value) {
    std::uint64_t sum = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) return false;
      const std::uint64_t byte = *at_++;
      if (shift == 63 && byte > 1) return false;
      sum |= (byte & 127) << shift;
      if (byte < 128) {
        value = sum;
        return true;
      }
    }
    return false;
  }

  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* end_ = nullptr;
};

}  // namespace teletensor::core
