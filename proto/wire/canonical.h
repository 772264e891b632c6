// The canonical form of a command. Protobuf permits many encodings of one message; the readers of
// commands expect the one that every protobuf library writes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::wire {

// The fields of a message as far as its encoding depends on them.
struct FieldRule {
  enum class Kind : std::uint8_t {
    kNumber,    // one varint
    kOptional,  // one varint that may be present and zero
    kBytes,     // one string or bytes
    kOneof,     // one message with the fields `fields`; a command has one such field
    kNumbers,   // repeated varints
    kReals,     // repeated doubles
    kTexts,     // repeated strings
  };
  std::uint32_t number = 0;
  Kind kind = Kind::kNumber;
  std::span<const FieldRule> fields;
};

// The fields of a Command, in ascending order.
std::span<const FieldRule> command_fields();

// Returns the same Command with its fields in ascending order, each at most once, without zeros,
// and with packed repeated numbers. As in protobuf's parsers, the last value of a number or a
// string counts, as does the last message of the oneof; occurrences of one message are merged, and
// repeated numbers may be packed or not. INVALID_ARGUMENT for bytes that do not parse, for unknown
// fields and for wrong wire types.
core::Result<std::string> canonical_command(std::string_view body);

}  // namespace teletensor::wire
