// Helpers for reading commands. Used only by frame_reader.cc and the headers that it includes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/fields.h"
#include "proto/wire/frame.h"
#include "proto/wire/protocol.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

// The fields of a message in canonical form (canonical.h): ascending, each at most once. The
// functions that read a value return false after they have reported an error; the first error is
// kept, and nothing may be read after it. The message must outlive the object and the views that it
// returns.
class Fields {
 public:
  explicit Fields(std::string_view body) : cursor_(body) {}

  // Advances to the next field. Returns false at the end and after an error.
  bool next() {
    if (cursor_.done() || !status_.ok()) return false;
    const std::uint32_t before = field_;
    if (!cursor_.tag(field_, type_)) return bad("a malformed tag");
    if (field_ <= before) return bad("field " + std::to_string(field_) + " twice or out of order");
    return true;
  }
  // The number and the encoding of the field that next() has found.
  std::uint32_t field() const { return field_; }
  WireType type() const { return type_; }

  // Read the value of the current field; each may be called once per field.
  bool number(std::uint64_t& value) {
    if (type_ != WireType::kVarint) return wrong_type();
    return cursor_.varint(value) || bad("a number that is cut off or too long");
  }
  bool number32(std::uint32_t& value) {
    std::uint64_t wide = 0;
    if (!number(wide)) return false;
    if (wide >> 32 != 0) return bad("field " + std::to_string(field_) + " is over 32 bits");
    value = static_cast<std::uint32_t>(wide);
    return true;
  }
  bool flag(bool& value) {
    std::uint64_t wide = 0;
    if (!number(wide)) return false;
    if (wide > 1) return bad("field " + std::to_string(field_) + " is a flag, not 0 or 1");
    value = wide == 1;
    return true;
  }
  bool bytes(std::string_view& value) {
    if (type_ != WireType::kBytes) return wrong_type();
    return cursor_.bytes(value) || bad("a field that is longer than its message");
  }
  // Returns true if several entries of a repeated field follow one after another.
  bool repeated() {
    Cursor ahead = cursor_;
    std::uint32_t field = 0;
    WireType type{};
    if (ahead.done() || !ahead.tag(field, type) || field != field_) return false;
    cursor_ = ahead;
    type_ = type;
    return true;
  }

  // Report an error, unless there is one already, and return false.
  bool unknown() { return bad("unknown field " + std::to_string(field_)); }
  bool wrong_type() { return bad("field " + std::to_string(field_) + " has the wrong wire type"); }
  bool bad(std::string text) {
    if (status_.ok()) status_ = core::invalid(std::move(text));
    return false;
  }
  bool fail(core::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  core::Status& status() { return status_; }

 private:
  Cursor cursor_;
  std::uint32_t field_ = 0;
  WireType type_ = WireType::kVarint;
  core::Status status_;
};

// The limits that one frame may still use up, and the tables that its commands need to be read.
struct ReadContext {
  const FrameLimits& limits;
  std::span<const program::OpId> ops;
  std::span<const std::string> names;
  bool thin = false;
  std::uint32_t protocol = kProtocol;
  std::size_t items = 0;
  program::HandleId next = 0;
  core::Status late = {};  // Why a value of a thin client's command is wrong; see wrong().
};

// The base of the readers of one command. They report errors through `fields` and append to `out`.
class PartReader {
 public:
  PartReader(ReadContext& context, Fields& fields, std::vector<program::Command>& out)
      : context_(context), fields_(fields), out_(out) {}

 protected:
  // Maximum number of ids that one command makes.
  static constexpr std::uint32_t kMaxMade = 1 << 20;
  static constexpr int kMaxDeviceIndex = 255;

  // Counts the ids that a command has made; the handles of later commands are relative to them.
  void advance(std::uint64_t made) { context_.next += made; }

  bool read_made(std::uint32_t& made) {
    if (!fields_.number32(made)) return false;
    return made <= kMaxMade || fields_.bad("makes too many handles: " + std::to_string(made));
  }

  // Counts items towards the frame's limit, before memory is allocated for them.
  bool take_items(std::size_t count) {
    if (count <= context_.limits.items - context_.items) {
      context_.items += count;
      return true;
    }
    return fields_.fail(core::Status(core::Code::kResourceExhausted,
                                     "more than " + std::to_string(context_.limits.items) +
                                         " arguments, numbers and handles in one frame"));
  }

  // Converts a distance from the next id into a handle; 0 is no handle. A thin client's handle that
  // was never made becomes one that no session has, which the front end refuses.
  bool handle_at(std::uint64_t distance, program::HandleId& id) {
    if (distance >= context_.next) {
      id = UINT64_MAX;
      if (context_.thin) return true;
      return fields_.bad("a handle that was never made (distance " + std::to_string(distance) +
                         ")");
    }
    id = distance == 0 ? 0 : context_.next - distance;
    return true;
  }

  // Reports a wrong value in a command whose fields can be read. A thin client's command becomes a
  // program::Refused when all of it was read; the frame of another client is refused.
  void wrong(Fields& fields, core::Status status) {
    if (!context_.thin) {
      fields.fail(std::move(status));
    } else if (context_.late.ok()) {
      context_.late = std::move(status);
    }
  }
  void wrong(Fields& fields, std::string text) { wrong(fields, core::invalid(std::move(text))); }

  static bool find_device(std::uint64_t code, core::Device& device) {
    if (code > static_cast<std::uint64_t>(core::DeviceKind::kSim) * 256 + kMaxDeviceIndex) {
      return false;
    }
    device = {static_cast<core::DeviceKind>(code / 256), static_cast<std::uint8_t>(code % 256)};
    return true;
  }

  template <class T>
  T& add() {
    return std::get<T>(out_.emplace_back(std::in_place_type<T>));
  }

  ReadContext& context_;
  Fields& fields_;
  std::vector<program::Command>& out_;
};

}  // namespace teletensor::wire
