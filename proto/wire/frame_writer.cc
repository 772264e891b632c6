#include <algorithm>
#include <variant>

#include "proto/wire/command_fields.h"
#include "proto/wire/fields.h"
#include "proto/wire/frame.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

using core::Attribute;
using core::Number;
using program::Apply;
using program::Argument;
using program::Command;

namespace {

constexpr char tag(std::uint32_t field, WireType type) {
  return static_cast<char>(tag_of(field, type));  // only for fields below 16
}
constexpr char kBytesTag(std::uint32_t field) { return tag(field, WireType::kBytes); }

char code_of(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kBool:
      return number.integer ? char{field::kTrue} : char{field::kFalse};
    case Number::Kind::kInt:
      return char{field::kInteger};
    case Number::Kind::kFloat:
      return char{field::kReal};
    case Number::Kind::kComplex:
      return char{field::kComplex};
    case Number::Kind::kUInt:
      break;
  }
  return char{field::kUnsigned};
}

// Writes the message of one command: a visitor of CommandFields. `next` is the session's next id
// before the command.
class BodyWriter {
 public:
  BodyWriter(char* at, program::HandleId next) : at_(at), next_(next) {}

  template <class Command>
  char* write(const Command& command) {
    char* opened = open(CommandFields<Command>::kKind);
    CommandFields<Command>::visit(*this, command);
    return close_length(opened, at_);
  }

  // ---- For CommandFields
  void number(std::uint32_t field, std::uint64_t value) { at_ = put_field(at_, field, value); }
  void number32(std::uint32_t field, std::uint32_t value) { number(field, value); }
  void made(std::uint32_t field, std::uint32_t value) { number(field, value); }
  void integer(std::uint32_t field, std::int64_t value) { number(field, zigzag(value)); }
  void flag(std::uint32_t field, bool value) { number(field, value); }
  void what(std::uint32_t field, program::SetFlag::What value) {
    number(field, static_cast<std::uint64_t>(value));
  }
  void handle(std::uint32_t field, program::HandleId id) { number(field, distance(id)); }
  void handles(std::uint32_t field, const std::vector<program::HandleId>& ids) {
    list(field, ids, [this](program::HandleId id) { return distance(id); });
  }
  void indices(std::uint32_t field, const std::vector<std::uint32_t>& values) {
    list(field, values, [](std::uint32_t value) { return value; });
  }
  void text(std::uint32_t field, const std::string& value) { bytes(field, value); }
  void bytes(std::uint32_t field, const std::string& value) {
    if (value.empty()) return;
    at_ = put_varint(put_tag(at_, field, WireType::kBytes), value.size());
    at_ = put_bytes(at_, value);
  }
  void layout(core::DType dtype, core::Device device, const core::Dims& shape) {
    number(1, static_cast<std::uint64_t>(dtype));
    number(2, field::code_of(device));
    list(3, shape, [](std::int64_t size) { return static_cast<std::uint64_t>(size); });
  }
  // Writes codes as in an Apply, and then the integers and reals that they refer to.
  void numbers(std::uint32_t first, const std::vector<Number>& values) {
    if (values.empty()) return;
    std::size_t integers = 0, reals = 0;
    char* opened = open(first);
    for (const Number& n : values) {
      *at_++ = code_of(n);
      integers += n.is_integer();
      reals += n.kind == Number::Kind::kFloat ? 1u : n.is_complex() ? 2u : 0u;
    }
    at_ = close_length(opened, at_);
    if (integers != 0) {
      opened = open(first + 1);
      for (const Number& n : values) {
        if (n.is_integer()) at_ = put_varint(at_, zigzag(n.integer));
      }
      at_ = close_length(opened, at_);
    }
    if (reals == 0) return;
    at_ = put_varint(put_tag(at_, first + 2, WireType::kBytes), reals * 8);
    for (const Number& n : values) {
      if (n.kind != Number::Kind::kFloat && !n.is_complex()) continue;
      std::memcpy(at_, &n.real, 8);
      at_ += 8;
      if (!n.is_complex()) continue;
      std::memcpy(at_, &n.imaginary, 8);
      at_ += 8;
    }
  }

 private:
  std::uint64_t distance(program::HandleId id) const { return id == 0 ? 0 : next_ - id; }
  char* open(std::uint32_t field) {
    at_ = put_tag(at_, field, WireType::kBytes);
    return at_++;
  }
  template <class List, class Code>
  void list(std::uint32_t field, const List& values, Code code) {
    if (values.empty()) return;
    char* opened = open(field);
    for (const auto& value : values) at_ = put_varint(at_, code(value));
    at_ = close_length(opened, at_);
  }

  char* at_;
  const program::HandleId next_;
};

// Counts the items (FrameLimits) and bytes that a command may need, apart from the fixed part: a
// visitor of CommandFields.
struct Need {
  std::size_t items = 0, size = 0;

  void number(std::uint32_t, std::uint64_t) {}
  void number32(std::uint32_t, std::uint32_t) {}
  void made(std::uint32_t, std::uint32_t) {}
  void integer(std::uint32_t, std::int64_t) {}
  void flag(std::uint32_t, bool) {}
  void what(std::uint32_t, program::SetFlag::What) {}
  void handle(std::uint32_t, program::HandleId) {}
  void handles(std::uint32_t, const std::vector<program::HandleId>& ids) { items += ids.size(); }
  void indices(std::uint32_t, const std::vector<std::uint32_t>& values) { items += values.size(); }
  void text(std::uint32_t, const std::string& value) { size += value.size(); }
  void bytes(std::uint32_t, const std::string& value) { size += value.size(); }
  void layout(core::DType, core::Device, const core::Dims& shape) {
    items += static_cast<std::size_t>(shape.size());
  }
  void numbers(std::uint32_t, const std::vector<Number>& values) { items += 3 * values.size(); }
};

// Calls `action` with the command unless it is an Apply, which is written separately.
template <class Action>
void with_message(const Command& command, Action action) {
  std::visit(
      [&]<class C>(const C& c) {
        if constexpr (Message<C>) action(c);
      },
      command);
}

Need need_of(const Command& command) {
  Need need;
  with_message(command, [&]<class C>(const C& c) { CommandFields<C>::visit(need, c); });
  return need;
}

// A SetFlag for a daemon that speaks an earlier protocol than kViewNodeKind, which has no kNode.
Command for_earlier(Command command) {
  using What = program::SetFlag::What;
  auto* set = std::get_if<program::SetFlag>(&command);
  if (set != nullptr && set->what == What::kNode) {
    set->what = What::kRetainGrad;
    set->on = false;
  }
  return command;
}

// Bytes for tags, lengths and scalars of any command.
constexpr std::size_t kFixed = 160;

std::size_t text_bytes_of(const core::Attributes& attributes) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    bytes += kMaxVarint + attributes.at(i).text.size();
  }
  return bytes;
}

ApplyView view_of(const Apply& apply) {
  return {apply.op,
          apply.record,
          apply.inplace,
          apply.default_dtype,
          {apply.arguments.data(), apply.arguments.size()},
          {apply.counts.data(), apply.counts.size()},
          apply.attributes};
}

}  // namespace

std::size_t items_of(const ApplyView& apply) {
  // Numbers among the arguments count as items themselves; complex numbers count as two.
  return 3 * apply.arguments.size() + apply.counts.size() + items_of(apply.attributes);
}

std::size_t items_of(const Command& command) {
  if (const auto* apply = std::get_if<Apply>(&command)) return items_of(view_of(*apply));
  if (const auto* repeated = std::get_if<program::Repeated>(&command)) {
    return items_of(view_of(repeated->known->apply));
  }
  return need_of(command).items;
}

void FrameWriter::begin(std::uint64_t first_seq, program::HandleId first_id) {
  size_ = kHeader;
  commands_ = items_ = 0;
  first_seq_ = first_seq;
  first_id_ = next_id_ = first_id;
}

char* FrameWriter::room(std::size_t bytes) {
  if (size_ + bytes > capacity_) {
    const std::size_t capacity = std::max<std::size_t>({4096, 2 * capacity_, size_ + bytes});
    auto bigger = std::make_unique_for_overwrite<char[]>(capacity);
    if (buffer_) std::copy_n(buffer_.get(), size_, bigger.get());
    buffer_ = std::move(bigger);
    capacity_ = capacity;
  }
  return buffer_.get() + size_;
}

void FrameWriter::end_command(char* opened, char* end, std::uint32_t made) {
  size_ = static_cast<std::size_t>(close_length(opened, end) - buffer_.get());
  next_id_ += made;
  ++commands_;
}

void FrameWriter::append(const Apply& apply, std::uint32_t made) { append(view_of(apply), made); }

void FrameWriter::append(const ApplyView& apply, std::uint32_t made) {
  const std::size_t attributes = apply.attributes.size();
  std::size_t integers = 0, reals = 0, texts = 0;
  char* at = room(kFixed + items_of(apply) * kMaxVarint + text_bytes_of(apply.attributes));

  *at++ = kBytesTag(field::kCommands);
  char* const opened = at++;
  *at++ = tag(field::kOp, WireType::kVarint);
  at = put_varint(at, std::uint64_t{apply.op} + 1);
  if (apply.record) {
    *at++ = tag(field::kRecord, WireType::kVarint);
    *at++ = 1;
  }
  if (apply.inplace) {
    *at++ = tag(field::kInplace, WireType::kVarint);
    *at++ = 1;
  }
  if (apply.default_dtype != core::DType::kF32) {
    *at++ = tag(field::kDefaultDType, WireType::kVarint);
    *at++ = static_cast<char>(apply.default_dtype);
  }
  if (!apply.arguments.empty()) {
    *at++ = kBytesTag(field::kArguments);
    char* const list = at++;
    for (const Argument& a : apply.arguments) {
      switch (a.kind) {
        case Argument::Kind::kAbsent:
          *at++ = 0;
          break;
        case Argument::Kind::kHandle:
          at = put_varint(at, (next_id_ - a.handle) << 1);
          break;
        case Argument::Kind::kNumber:
          *at++ = code_of(a.number);
          integers += a.number.is_integer();
          reals += a.number.kind == Number::Kind::kFloat ? 1u : a.number.is_complex() ? 2u : 0u;
          break;
      }
    }
    at = close_length(list, at);
  }
  if (attributes != 0) {
    *at++ = kBytesTag(field::kAttributes);
    char* const list = at++;
    for (std::size_t i = 0; i < attributes; ++i) {
      const Attribute& a = apply.attributes.at(i);
      std::uint64_t x = 0;
      switch (a.kind) {
        case Attribute::Kind::kBool:
          x = a.integer != 0;
          break;
        case Attribute::Kind::kInts:
          x = a.ints.size();
          integers += a.ints.size();
          break;
        case Attribute::Kind::kDType:
        case Attribute::Kind::kDevice:
          x = static_cast<std::uint64_t>(a.integer);
          break;
        case Attribute::Kind::kInt:
          ++integers;
          break;
        case Attribute::Kind::kFloat:
          ++reals;
          break;
        case Attribute::Kind::kString:
          ++texts;
          break;
        case Attribute::Kind::kNone:
          break;
      }
      at = put_varint(at, x << field::kAttributeKindBits | static_cast<std::uint64_t>(a.kind));
    }
    at = close_length(list, at);
  }
  if (integers != 0) {
    *at++ = kBytesTag(field::kIntegers);
    char* const list = at++;
    for (const Argument& a : apply.arguments) {
      if (a.kind == Argument::Kind::kNumber && a.number.is_integer()) {
        at = put_varint(at, zigzag(a.number.integer));
      }
    }
    for (std::size_t i = 0; i < attributes; ++i) {
      const Attribute& a = apply.attributes.at(i);
      if (a.kind == Attribute::Kind::kInt) at = put_varint(at, zigzag(a.integer));
      if (a.kind == Attribute::Kind::kInts) {
        for (std::int64_t value : a.ints) at = put_varint(at, zigzag(value));
      }
    }
    at = close_length(list, at);
  }
  if (reals != 0) {
    *at++ = kBytesTag(field::kReals);
    at = put_varint(at, reals * 8);
    const auto put = [&at](double value) {
      std::memcpy(at, &value, 8);
      at += 8;
    };
    for (const Argument& a : apply.arguments) {
      if (a.kind != Argument::Kind::kNumber) continue;
      if (a.number.kind == Number::Kind::kFloat) put(a.number.real);
      if (a.number.is_complex()) {
        put(a.number.real);
        put(a.number.imaginary);
      }
    }
    for (std::size_t i = 0; i < attributes; ++i) {
      const Attribute& a = apply.attributes.at(i);
      if (a.kind == Attribute::Kind::kFloat) put(a.real);
    }
  }
  if (texts != 0) {
    for (std::size_t i = 0; i < attributes; ++i) {
      const Attribute& a = apply.attributes.at(i);
      if (a.kind != Attribute::Kind::kString) continue;
      *at++ = kBytesTag(field::kTexts);
      at = put_bytes(put_varint(at, a.text.size()), a.text);
    }
  }
  if (!apply.counts.empty()) {
    *at++ = kBytesTag(field::kCounts);
    char* const list = at++;
    for (std::uint32_t count : apply.counts) at = put_varint(at, count);
    at = close_length(list, at);
  }
  if (made != (apply.inplace ? 0u : 1u)) {
    *at++ = tag(field::kMade, WireType::kVarint);
    at = put_varint(at, made);
  }
  items_ += apply.arguments.size() + attributes + integers + reals + texts + apply.counts.size();
  end_command(opened, at, made);
}

void FrameWriter::append(const Command& command, std::uint32_t made) {
  if (const auto* apply = std::get_if<Apply>(&command)) return append(*apply, made);
  if (const auto* repeated = std::get_if<program::Repeated>(&command)) {
    return append(repeated->expanded(), made);
  }
  if (protocol_ < kViewNodeKind && std::holds_alternative<program::SetFlag>(command)) {
    return append_message(for_earlier(command), made);
  }
  append_message(command, made);
}

void FrameWriter::append_message(const Command& command, std::uint32_t made) {
  const Need need = need_of(command);
  items_ += need.items;
  char* at = room(kFixed + need.items * kMaxVarint + need.size);
  *at++ = kBytesTag(field::kCommands);
  char* const opened = at++;
  // `made` is written before the kind, because fields are in ascending order.
  if (made != usual_made(command))
    at = put_varint(put_tag(at, field::kMade, WireType::kVarint), made);
  with_message(command, [&](const auto& c) { at = BodyWriter(at, next_id_).write(c); });
  end_command(opened, at, made);
}

std::string_view FrameWriter::finish(std::uint64_t ack_upto, std::uint64_t attach_counter) {
  char header[kHeader];
  char* end = put_field(header, field::kFirstSeq, first_seq_);
  end = put_field(end, field::kFirstId, first_id_);
  end = put_field(end, field::kAckUpto, ack_upto);
  end = put_field(end, field::kAttachCounter, attach_counter);
  room(0);
  if (!buffer_) room(1);
  char* const start = buffer_.get() + kHeader - (end - header);
  std::copy(header, end, start);
  return {start, static_cast<std::size_t>(buffer_.get() + size_ - start)};
}

}  // namespace teletensor::wire
