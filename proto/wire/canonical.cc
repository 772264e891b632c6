#include "proto/wire/canonical.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/wire/command_fields.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

namespace {

using Kind = FieldRule::Kind;

// Collects the rules of the fields of one message: a visitor of CommandFields.
struct Rules {
  std::vector<FieldRule> list;

  void add(std::uint32_t field, Kind kind) { list.push_back({field, kind, {}}); }
  void number(std::uint32_t field, std::uint64_t) { add(field, Kind::kNumber); }
  void number32(std::uint32_t field, std::uint32_t) { add(field, Kind::kNumber); }
  void made(std::uint32_t field, std::uint32_t) { add(field, Kind::kNumber); }
  void integer(std::uint32_t field, std::int64_t) { add(field, Kind::kNumber); }
  void flag(std::uint32_t field, bool) { add(field, Kind::kNumber); }
  void what(std::uint32_t field, program::SetFlag::What) { add(field, Kind::kNumber); }
  void handle(std::uint32_t field, program::HandleId) { add(field, Kind::kNumber); }
  void handles(std::uint32_t field, const std::vector<program::HandleId>&) {
    add(field, Kind::kNumbers);
  }
  void indices(std::uint32_t field, const std::vector<std::uint32_t>&) {
    add(field, Kind::kNumbers);
  }
  void text(std::uint32_t field, const std::string&) { add(field, Kind::kBytes); }
  void bytes(std::uint32_t field, const std::string&) { add(field, Kind::kBytes); }
  void layout(core::DType, core::Device, const core::Dims&) {
    add(1, Kind::kNumber);
    add(2, Kind::kNumber);
    add(3, Kind::kNumbers);
  }
  void numbers(std::uint32_t first, const std::vector<core::Number>&) {
    add(first, Kind::kBytes);
    add(first + 1, Kind::kNumbers);
    add(first + 2, Kind::kReals);
  }
};

template <class Command>
std::span<const FieldRule> rules_of() {
  static const std::vector<FieldRule> rules = [] {
    Rules visitor;
    Command command;
    CommandFields<Command>::visit(visitor, command);
    return std::move(visitor.list);
  }();
  return rules;
}

std::vector<FieldRule> rules_of_commands() {
  std::vector<FieldRule> rules = {
      {field::kOp, Kind::kNumber, {}},         {field::kRecord, Kind::kNumber, {}},
      {field::kInplace, Kind::kNumber, {}},    {field::kDefaultDType, Kind::kNumber, {}},
      {field::kArguments, Kind::kNumbers, {}}, {field::kAttributes, Kind::kNumbers, {}},
      {field::kIntegers, Kind::kNumbers, {}},  {field::kReals, Kind::kReals, {}},
      {field::kTexts, Kind::kTexts, {}},       {field::kCounts, Kind::kNumbers, {}},
      {field::kMade, Kind::kOptional, {}},
  };
  for (std::uint32_t kind = field::kMade + 1; kind <= field::kLastKind; ++kind) {
    with_kind(kind, [&]<class Command>(std::type_identity<Command>) {
      rules.push_back({kind, Kind::kOneof, rules_of<Command>()});
    });
  }
  return rules;
}

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

std::span<const FieldRule> command_fields() {
  static const std::vector<FieldRule> rules = rules_of_commands();
  return rules;
}

core::Result<std::string> canonical_command(std::string_view body) {
  std::string out;
  TT_RETURN_IF_ERROR(append(body, command_fields(), out));
  return out;
}

}  // namespace teletensor::wire
