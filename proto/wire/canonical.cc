#include "proto/wire/canonical.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/wire/fields.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

namespace {

using Kind = FieldRule::Kind;

constexpr FieldRule number(std::uint32_t field) { return {field, Kind::kNumber, {}}; }
constexpr FieldRule bytes(std::uint32_t field) { return {field, Kind::kBytes, {}}; }
constexpr FieldRule numbers(std::uint32_t field) { return {field, Kind::kNumbers, {}}; }
constexpr FieldRule reals(std::uint32_t field) { return {field, Kind::kReals, {}}; }
constexpr FieldRule kind(std::uint32_t field, std::span<const FieldRule> fields) {
  return {field, Kind::kOneof, fields};
}

constexpr FieldRule kOneNumber[] = {number(1)};
constexpr FieldRule kTwoNumbers[] = {number(1), number(2)};
constexpr FieldRule kThreeNumbers[] = {number(1), number(2), number(3)};
constexpr FieldRule kConstantFields[] = {number(1), number(2), numbers(3), bytes(4)};
constexpr FieldRule kUploadedFields[] = {number(1), number(2), numbers(3), number(4)};
constexpr FieldRule kPublishedFields[] = {number(1), number(2), numbers(3), number(4), number(5)};
constexpr FieldRule kBackwardFields[] = {numbers(1), numbers(2), numbers(3), number(4),
                                         number(5),  number(6),  number(7),  number(8)};
constexpr FieldRule kReleaseFields[] = {numbers(1)};
constexpr FieldRule kDefineFields[] = {number(1), bytes(2)};
constexpr FieldRule kCallFields[] = {number(1), numbers(2), bytes(3),  numbers(4), reals(5),
                                     number(6), number(7),  number(8), number(9),  numbers(10)};
constexpr FieldRule kKeepFields[] = {bytes(1), number(2)};
constexpr FieldRule kPublishFields[] = {bytes(1), number(2), number(3), bytes(4)};
constexpr FieldRule kJoinFields[] = {number(1), bytes(2), number(3), number(4), number(5)};

constexpr FieldRule kCommandFields[] = {
    number(field::kOp),
    number(field::kRecord),
    number(field::kInplace),
    number(field::kDefaultDType),
    numbers(field::kArguments),
    numbers(field::kAttributes),
    numbers(field::kIntegers),
    reals(field::kReals),
    {field::kTexts, Kind::kTexts, {}},
    numbers(field::kCounts),
    {field::kMade, Kind::kOptional, {}},
    kind(field::kConstant, kConstantFields),
    kind(field::kUploaded, kUploadedFields),
    kind(field::kFetch, kThreeNumbers),
    kind(field::kBackward, kBackwardFields),
    kind(field::kRelease, kReleaseFields),
    kind(field::kSaved, kTwoNumbers),
    kind(field::kSetFlag, kThreeNumbers),
    kind(field::kSetGrad, kTwoNumbers),
    kind(field::kSetData, kTwoNumbers),
    kind(field::kRaise, kOneNumber),
    kind(field::kForget, kOneNumber),
    kind(field::kDefine, kDefineFields),
    kind(field::kCall, kCallFields),
    kind(field::kUndefine, kOneNumber),
    kind(field::kTaken, kOneNumber),
    kind(field::kKeep, kKeepFields),
    kind(field::kPublish, kPublishFields),
    kind(field::kPublished, kPublishedFields),
    kind(field::kJoin, kJoinFields),
    kind(field::kLeave, kOneNumber),
};

void put(std::string& out, std::uint64_t value) {
  char at[kMaxVarint];
  out.append(at, put_varint(at, value));
}

bool whole_varints(std::string_view list) {
  std::uint64_t value = 0;
  for (Cursor cursor(list); !cursor.done();) {
    if (!cursor.varint(value)) return false;
  }
  return true;
}

// The occurrences of one field.
struct Slot {
  bool present = false;
  std::uint64_t number = 0;
  std::string_view last;  // kBytes
  std::string joined;     // kOneof, kNumbers, kReals: all occurrences
  std::vector<std::string_view> texts;

  // Reads one occurrence. False if it does not parse.
  bool read(const FieldRule& rule, WireType type, Cursor& cursor) {
    present = true;
    std::string_view body;
    switch (rule.kind) {
      case Kind::kNumber:
      case Kind::kOptional:
        return cursor.varint(number);
      case Kind::kBytes:
        return cursor.bytes(last);
      case Kind::kOneof:
        if (!cursor.bytes(body)) return false;
        joined += body;
        return true;
      case Kind::kTexts:
        return cursor.bytes(texts.emplace_back());
      case Kind::kNumbers:
        if (type == WireType::kBytes) {
          if (!cursor.bytes(body) || !whole_varints(body)) return false;
          joined += body;
          return true;
        }
        if (!cursor.varint(number)) return false;
        put(joined, number);
        return true;
      case Kind::kReals:
        if (type == WireType::kBytes) {
          if (!cursor.bytes(body) || body.size() % 8 != 0) return false;
          joined += body;
          return true;
        }
        if (!cursor.fixed64(number)) return false;
        joined.append(reinterpret_cast<const char*>(&number), 8);
        return true;
    }
    return false;
  }
};

bool allows(Kind kind, WireType type) {
  switch (kind) {
    case Kind::kNumber:
    case Kind::kOptional:
      return type == WireType::kVarint;
    case Kind::kNumbers:
      return type == WireType::kVarint || type == WireType::kBytes;
    case Kind::kReals:
      return type == WireType::kFixed64 || type == WireType::kBytes;
    case Kind::kBytes:
    case Kind::kOneof:
    case Kind::kTexts:
      return type == WireType::kBytes;
  }
  return false;
}

void put_text(std::string& out, std::uint32_t field, std::string_view text) {
  put(out, tag_of(field, WireType::kBytes));
  put(out, text.size());
  out += text;
}

core::Status append(std::string_view body, std::span<const FieldRule> rules, std::string& out) {
  std::vector<Slot> slots(rules.size());
  Slot* chosen = nullptr;  // of the oneof
  for (Cursor cursor(body); !cursor.done();) {
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type)) return core::invalid("a malformed tag");
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&](const FieldRule& each) { return each.number == field; });
    if (rule == rules.end()) return core::invalid("unknown field " + std::to_string(field));
    if (!allows(rule->kind, type)) {
      return core::invalid("field " + std::to_string(field) + " has the wrong wire type");
    }
    const auto place = static_cast<std::size_t>(rule - rules.begin());
    if (rule->kind == Kind::kOneof) {
      // Each part must be a message by itself, also if a later member of the oneof replaces it.
      Cursor ahead = cursor;
      std::string_view part;
      std::string unused;
      if (ahead.bytes(part) && !part.empty()) {
        TT_RETURN_IF_ERROR(append(part, rule->fields, unused));
      }
      if (chosen != nullptr && chosen != &slots[place]) *chosen = {};
      chosen = &slots[place];
    }
    if (!slots[place].read(*rule, type, cursor)) {
      return core::invalid("field " + std::to_string(field) + " is cut off or malformed");
    }
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const FieldRule& rule = rules[i];
    const Slot& slot = slots[i];
    if (!slot.present) continue;
    switch (rule.kind) {
      case Kind::kNumber:
      case Kind::kOptional:
        if (slot.number == 0 && rule.kind == Kind::kNumber) break;
        put(out, tag_of(rule.number, WireType::kVarint));
        put(out, slot.number);
        break;
      case Kind::kBytes:
        if (!slot.last.empty()) put_text(out, rule.number, slot.last);
        break;
      case Kind::kTexts:
        for (const std::string_view text : slot.texts) put_text(out, rule.number, text);
        break;
      case Kind::kNumbers:
      case Kind::kReals:
        if (!slot.joined.empty()) put_text(out, rule.number, slot.joined);
        break;
      case Kind::kOneof: {
        std::string inner;
        TT_RETURN_IF_ERROR(append(slot.joined, rule.fields, inner));
        put_text(out, rule.number, inner);
        break;
      }
    }
  }
  return {};
}

}  // namespace

std::span<const FieldRule> command_fields() { return kCommandFields; }

core::Result<std::string> canonical_command(std::string_view body) {
  std::string out;
  TT_RETURN_IF_ERROR(append(body, kCommandFields, out));
  return out;
}

}  // namespace teletensor::wire
