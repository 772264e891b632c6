#include <algorithm>
#include <variant>

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

// Writes the body of one command; `next` is the session's next id before the command.
class BodyWriter {
 public:
  BodyWriter(char* at, program::HandleId next, std::uint32_t protocol)
      : at_(at), next_(next), protocol_(protocol) {}
  char* at() const { return at_; }

  void operator()(const program::Constant& c) {
    char* opened = open(field::kConstant);
    layout(c.dtype, c.device, c.shape);
    if (!c.bytes.empty()) {
      at_ = put_tag(at_, 4, WireType::kBytes);
      at_ = put_bytes(put_varint(at_, c.bytes.size()), c.bytes);
    }
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Uploaded& u) {
    char* opened = open(field::kUploaded);
    layout(u.dtype, u.device, u.shape);
    at_ = put_field(at_, 4, u.upload);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Fetch& f) {
    char* opened = open(field::kFetch);
    at_ = put_field(at_, 1, distance(f.handle));
    at_ = put_field(at_, 2, f.bulk);
    at_ = put_field(at_, 3, f.describe);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Refused&) {}   // only a reader makes this command
  void operator()(const program::Repeated&) {}  // append() writes the Apply
  void operator()(const program::Backward& b) {
    char* opened = open(field::kBackward);
    handles(1, b.roots);
    handles(2, b.seeds);
    handles(3, b.inputs);
    at_ = put_field(at_, 4, b.has_inputs);
    at_ = put_field(at_, 5, b.retain_graph);
    at_ = put_field(at_, 6, b.allow_unused);
    at_ = put_field(at_, 7, b.expanded);
    at_ = put_field(at_, 8, b.made);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Release& r) {
    char* opened = open(field::kRelease);
    handles(1, r.handles);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Saved& s) { pair(field::kSaved, s.node, s.slot); }
  void operator()(const program::SetFlag& s) {
    using What = program::SetFlag::What;
    char* opened = open(field::kSetFlag);
    const bool earlier = s.what == What::kNode && protocol_ < kViewNodeKind;
    const What what = earlier ? What::kRetainGrad : s.what;
    at_ = put_field(at_, 1, static_cast<std::uint64_t>(what));
    at_ = put_field(at_, 2, distance(s.handle));
    at_ = put_field(at_, 3, s.on && !earlier);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::SetGrad& s) {
    pair(field::kSetGrad, distance(s.handle), distance(s.grad));
  }
  void operator()(const program::SetData& s) {
    pair(field::kSetData, distance(s.handle), distance(s.other));
  }
  void operator()(const program::Raise& r) { pair(field::kRaise, r.root, 0); }
  void operator()(const program::Forget& f) { pair(field::kForget, f.node, 0); }
  void operator()(const program::Taken& t) { pair(field::kTaken, t.fetch, 0); }
  void operator()(const program::Keep& k) {
    char* opened = open(field::kKeep);
    at_ = put_bytes(put_varint(put_tag(at_, 1, WireType::kBytes), k.name.size()), k.name);
    at_ = put_field(at_, 2, distance(k.handle));
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Publish& p) {
    char* opened = open(field::kPublish);
    at_ = put_bytes(put_varint(put_tag(at_, 1, WireType::kBytes), p.name.size()), p.name);
    at_ = put_field(at_, 2, distance(p.handle));
    at_ = put_field(at_, 3, p.writable);
    if (!p.users.empty()) {
      at_ = put_bytes(put_varint(put_tag(at_, 4, WireType::kBytes), p.users.size()), p.users);
    }
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Published& p) {
    char* opened = open(field::kPublished);
    layout(p.dtype, p.device, p.shape);
    at_ = put_field(at_, 4, p.publication);
    at_ = put_field(at_, 5, p.writable);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Join& j) {
    char* opened = open(field::kJoin);
    at_ = put_field(at_, 1, j.group);
    at_ = put_bytes(put_varint(put_tag(at_, 2, WireType::kBytes), j.name.size()), j.name);
    at_ = put_field(at_, 3, j.rank);
    at_ = put_field(at_, 4, j.ranks);
    at_ = put_field(at_, 5, j.timeout_ms);
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Leave& l) { pair(field::kLeave, l.group, 0); }
  void operator()(const program::Define& d) {
    char* opened = open(field::kDefine);
    at_ = put_field(at_, 1, d.program);
    if (!d.bytes.empty()) {
      at_ = put_tag(at_, 2, WireType::kBytes);
      at_ = put_bytes(put_varint(at_, d.bytes.size()), d.bytes);
    }
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Call& c) {
    char* opened = open(field::kCall);
    at_ = put_field(at_, 1, c.program);
    handles(2, c.inputs);
    numbers(c.numbers);
    at_ = put_field(at_, 6, zigzag(c.seed));
    at_ = put_field(at_, 7, zigzag(c.ordinal));
    at_ = put_field(at_, 8, c.made);
    at_ = put_field(at_, 9, c.times);
    if (!c.sliced.empty()) {
      char* list = open(10);
      for (std::uint32_t each : c.sliced) at_ = put_varint(at_, each);
      at_ = close_length(list, at_);
    }
    at_ = close_length(opened, at_);
  }
  void operator()(const program::Undefine& u) { pair(field::kUndefine, u.program, 0); }
  void operator()(const Apply&) {}  // an Apply is written separately

 private:
  std::uint64_t distance(program::HandleId id) const { return id == 0 ? 0 : next_ - id; }
  char* open(std::uint32_t field) {
    at_ = put_tag(at_, field, WireType::kBytes);
    return at_++;
  }
  void pair(std::uint32_t field, std::uint64_t first, std::uint64_t second) {
    char* opened = open(field);
    at_ = put_field(at_, 1, first);
    at_ = put_field(at_, 2, second);
    at_ = close_length(opened, at_);
  }
  void handles(std::uint32_t field, const std::vector<program::HandleId>& ids) {
    if (ids.empty()) return;
    char* opened = open(field);
    for (program::HandleId id : ids) at_ = put_varint(at_, distance(id));
    at_ = close_length(opened, at_);
  }
  // Writes codes as in an Apply, and then the integers and reals that they refer to.
  void numbers(const std::vector<Number>& list) {
    if (list.empty()) return;
    std::size_t integers = 0, reals = 0;
    char* opened = open(3);
    for (const Number& n : list) {
      *at_++ = code_of(n);
      integers += n.is_integer();
      reals += n.kind == Number::Kind::kFloat ? 1u : n.is_complex() ? 2u : 0u;
    }
    at_ = close_length(opened, at_);
    if (integers != 0) {
      opened = open(4);
      for (const Number& n : list) {
        if (n.is_integer()) at_ = put_varint(at_, zigzag(n.integer));
      }
      at_ = close_length(opened, at_);
    }
    if (reals == 0) return;
    at_ = put_varint(put_tag(at_, 5, WireType::kBytes), reals * 8);
    for (const Number& n : list) {
      if (n.kind != Number::Kind::kFloat && !n.is_complex()) continue;
      std::memcpy(at_, &n.real, 8);
      at_ += 8;
      if (!n.is_complex()) continue;
      std::memcpy(at_, &n.imaginary, 8);
      at_ += 8;
    }
  }
  void layout(core::DType dtype, core::Device device, const core::Dims& shape) {
    at_ = put_field(at_, 1, static_cast<std::uint64_t>(dtype));
    at_ = put_field(at_, 2, field::code_of(device));
    if (shape.empty()) return;
    char* opened = open(3);
    for (std::int64_t size : shape) at_ = put_varint(at_, static_cast<std::uint64_t>(size));
    at_ = close_length(opened, at_);
  }

  char* at_;
  const program::HandleId next_;
  const std::uint32_t protocol_;
};

// The number of items (FrameLimits) and bytes that a command may need, apart from the fixed part.
struct Need {
  std::size_t items = 0, bytes = 0;
};
Need need_of(const Command& command) {
  if (const auto* c = std::get_if<program::Constant>(&command)) {
    return {static_cast<std::size_t>(c->shape.size()), c->bytes.size()};
  }
  if (const auto* b = std::get_if<program::Backward>(&command)) {
    return {b->roots.size() + b->seeds.size() + b->inputs.size(), 0};
  }
  if (const auto* r = std::get_if<program::Release>(&command)) return {r->handles.size(), 0};
  if (const auto* k = std::get_if<program::Keep>(&command)) return {1, k->name.size()};
  if (const auto* p = std::get_if<program::Publish>(&command)) {
    return {1, p->name.size() + p->users.size()};
  }
  if (const auto* j = std::get_if<program::Join>(&command)) return {0, j->name.size()};
  if (const auto* d = std::get_if<program::Define>(&command)) return {0, d->bytes.size()};
  if (const auto* c = std::get_if<program::Call>(&command)) {
    return {c->inputs.size() + 3 * c->numbers.size() + c->sliced.size(), 0};
  }
  return {static_cast<std::size_t>(core::kMaxRank), 0};
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
  const Need need = need_of(command);
  items_ += need.items;
  char* at = room(kFixed + need.items * kMaxVarint + need.bytes);
  *at++ = kBytesTag(field::kCommands);
  char* const opened = at++;
  // `made` is written before the kind, because fields are in ascending order.
  if (made != usual_made(command))
    at = put_varint(put_tag(at, field::kMade, WireType::kVarint), made);
  BodyWriter body(at, next_id_, protocol_);
  std::visit(body, command);
  end_command(opened, body.at(), made);
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
