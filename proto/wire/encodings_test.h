// Encodings: the encodings of one message that protobuf permits. Used only by tests.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/wire/varint.h"

namespace teletensor::wire::testing {

// Encodes messages at random: fields in any order, numbers and texts several times, of which the
// last counts, messages in parts that are to be merged, members of a oneof that a later one
// replaces, explicit zeros, and repeated numbers packed, not packed or both.
class Encodings {
 public:
  // `texts`: texts may occur several times.
  explicit Encodings(std::uint64_t seed, bool texts = true) : texts_(texts), random_(seed) {}

  std::string operator()(const google::protobuf::Message& message) {
    return joined(pieces(message));
  }

 private:
  using Message = google::protobuf::Message;
  using Field = google::protobuf::FieldDescriptor;
  using Pieces = std::vector<std::string>;

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool rarely() { return below(4) == 0; }

  static std::string joined(const Pieces& pieces) {
    std::string out;
    for (const std::string& piece : pieces) out += piece;
    return out;
  }
  static std::string varint(std::uint64_t value) {
    char at[kMaxVarint];
    return {at, put_varint(at, value)};
  }
  static std::string tag(const Field& field, WireType type) {
    return varint(tag_of(static_cast<std::uint32_t>(field.number()), type));
  }
  static std::string bytes(const Field& field, std::string_view body) {
    return tag(field, WireType::kBytes) + varint(body.size()) + std::string(body);
  }

  static bool is_text(const Field& field) { return field.cpp_type() == Field::CPPTYPE_STRING; }
  static bool is_message(const Field& field) { return field.cpp_type() == Field::CPPTYPE_MESSAGE; }
  static WireType type_of(const Field& field) {
    return field.type() == Field::TYPE_DOUBLE ? WireType::kFixed64 : WireType::kVarint;
  }

  // The value of a numeric field; of element `index` if the field is repeated.
  static std::string value_of(const Message& m, const Field& f, int index) {
    const auto& r = *m.GetReflection();
    const bool list = f.is_repeated();
    switch (f.type()) {
      case Field::TYPE_DOUBLE: {
        const auto bits = std::bit_cast<std::uint64_t>(list ? r.GetRepeatedDouble(m, &f, index)
                                                            : r.GetDouble(m, &f));
        return {reinterpret_cast<const char*>(&bits), 8};
      }
      case Field::TYPE_BOOL:
        return varint(r.GetBool(m, &f));
      case Field::TYPE_UINT32:
        return varint(list ? r.GetRepeatedUInt32(m, &f, index) : r.GetUInt32(m, &f));
      case Field::TYPE_UINT64:
        return varint(list ? r.GetRepeatedUInt64(m, &f, index) : r.GetUInt64(m, &f));
      case Field::TYPE_ENUM:
        return varint(static_cast<std::uint64_t>(r.GetEnumValue(m, &f)));
      case Field::TYPE_SINT64:
        return varint(zigzag(list ? r.GetRepeatedInt64(m, &f, index) : r.GetInt64(m, &f)));
      default:  // int64, the only other type in the files
        return varint(static_cast<std::uint64_t>(list ? r.GetRepeatedInt64(m, &f, index)
                                                      : r.GetInt64(m, &f)));
    }
  }

  Pieces repeated(const Message& m, const Field& f) {
    const auto& r = *m.GetReflection();
    const int size = r.FieldSize(m, &f);
    Pieces out;
    for (int i = 0; i < size;) {
      if (is_message(f)) {
        out.push_back(bytes(f, (*this)(r.GetRepeatedMessage(m, &f, i++))));
      } else if (is_text(f)) {
        out.push_back(bytes(f, r.GetRepeatedString(m, &f, i++)));
      } else if (rarely()) {
        out.push_back(tag(f, type_of(f)) + value_of(m, f, i++));
      } else {
        std::string part;
        for (int end = std::min<int>(size, i + 1 + static_cast<int>(below(8))); i < end; ++i) {
          part += value_of(m, f, i);
        }
        out.push_back(bytes(f, part));
      }
    }
    return out;
  }

  Pieces merged(const Message& m, const Field& f) {
    Pieces out;
    if (const auto* oneof = f.real_containing_oneof(); oneof != nullptr && rarely()) {
      const auto* other =
          oneof->field(static_cast<int>(below(static_cast<std::uint64_t>(oneof->field_count()))));
      if (other != &f) out.push_back(bytes(*other, ""));
    }
    std::string part;
    for (const std::string& piece : pieces(m.GetReflection()->GetMessage(m, &f))) {
      part += piece;
      if (rarely()) out.push_back(bytes(f, std::exchange(part, {})));
    }
    out.push_back(bytes(f, part));
    return out;
  }

  Pieces single(const Message& m, const Field& f) {
    Pieces out;
    if (is_text(f)) {
      if (texts_ && rarely()) out.push_back(bytes(f, "earlier"));
      out.push_back(bytes(f, m.GetReflection()->GetString(m, &f)));
      return out;
    }
    const bool small = f.type() == Field::TYPE_BOOL;
    const std::string earlier =
        type_of(f) == WireType::kFixed64 ? std::string(8, '\1') : varint(below(small ? 2 : 100));
    if (rarely()) out.push_back(tag(f, type_of(f)) + earlier);
    out.push_back(tag(f, type_of(f)) + value_of(m, f, 0));
    return out;
  }

  // Returns the encoded occurrences of all fields, in an order of the fields that a decoder must
  // accept. The occurrences of one field keep their order.
  Pieces pieces(const Message& m) {
    std::vector<Pieces> fields;
    const auto& r = *m.GetReflection();
    for (int i = 0; i < m.GetDescriptor()->field_count(); ++i) {
      const Field& f = *m.GetDescriptor()->field(i);
      if (f.is_repeated()) {
        fields.push_back(repeated(m, f));
      } else if (is_message(f)) {
        if (r.HasField(m, &f)) fields.push_back(merged(m, f));
      } else if (r.HasField(m, &f) || (!f.has_presence() && rarely())) {
        fields.push_back(single(m, f));
      }
    }
    Pieces out;
    std::vector<std::size_t> used(fields.size());
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < fields.size(); ++i) order.insert(order.end(), fields[i].size(), i);
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) out.push_back(fields[i][used[i]++]);
    return out;
  }

  const bool texts_;
  std::mt19937_64 random_;
};

}  // namespace teletensor::wire::testing
