#include <bit>

#include "proto/wire/fields.h"
#include "proto/wire/frame.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

using core::Attribute;
using core::Code;
using core::Status;
using program::Apply;
using program::Argument;
using program::Command;
using program::HandleId;

namespace {

constexpr std::uint32_t kMaxMade = 1 << 20;   // ids of one command
constexpr std::size_t kMaxTextBytes = 4096;   // of one attribute
constexpr int kMaxDeviceIndex = 255;

bool printable(std::string_view text) {
  for (char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

// Fields of one message in ascending order, each at most once.
class Fields {
 public:
  explicit Fields(std::string_view body) : cursor_(body) {}

  // False at the end and on failure.
  bool next() {
    if (cursor_.done() || !status_.ok()) return false;
    const std::uint32_t before = field_;
    if (!cursor_.tag(field_, type_)) return bad("a broken tag");
    if (field_ <= before) return bad("field " + std::to_string(field_) + " twice or out of order");
    return true;
  }
  std::uint32_t field() const { return field_; }
  WireType type() const { return type_; }

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
  // Several entries of one repeated field, one after the other.
  bool repeated() {
    Cursor ahead = cursor_;
    std::uint32_t field = 0;
    WireType type{};
    if (ahead.done() || !ahead.tag(field, type) || field != field_) return false;
    cursor_ = ahead;
    type_ = type;
    return true;
  }

  bool unknown() { return bad("unknown field " + std::to_string(field_)); }
  bool wrong_type() { return bad("field " + std::to_string(field_) + " has the wrong wire type"); }
  bool bad(std::string text) {
    if (status_.ok()) status_ = core::invalid(std::move(text));
    return false;
  }
  bool fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  Status& status() { return status_; }

 private:
  Cursor cursor_;
  std::uint32_t field_ = 0;
  WireType type_ = WireType::kVarint;
  Status status_;
};

// What one frame may still use, and what its commands need to be read.
struct Context {
  const FrameLimits& limits;
  std::span<const program::OpId> ops;
  std::span<const std::string> names;
  std::size_t items = 0;
  HandleId next = 0;
};

// One command's body. On failure the status says why, without the place.
class CommandReader {
 public:
  CommandReader(Context& context, std::string_view body, std::vector<Command>& out)
      : context_(context), fields_(body), out_(out) {}

  Status read() {
    if (!fields_.next()) {
      if (!fields_.status().ok()) return std::move(fields_.status());
      return core::invalid("an empty command");
    }
    if (fields_.field() < field::kMade) {
      read_apply();
    } else {
      std::uint32_t made = 0;
      bool stated = false;
      if (fields_.field() == field::kMade) {
        stated = read_made(made) && fields_.next();
        if (!stated) fields_.bad("`made` without a command");
      }
      if (fields_.status().ok()) read_other();
      if (fields_.status().ok() && fields_.next()) fields_.bad("two kinds in one command");
      if (fields_.status().ok()) advance(stated ? made : usual_made(out_.back()));
    }
    return std::move(fields_.status());
  }

 private:
  void advance(std::uint64_t made) { context_.next += made; }

  bool read_made(std::uint32_t& made) {
    if (!fields_.number32(made)) return false;
    return made <= kMaxMade || fields_.bad("makes too many handles: " + std::to_string(made));
  }

  bool take_items(std::size_t count) {
    if (count <= context_.limits.items - context_.items) {
      context_.items += count;
      return true;
    }
    return fields_.fail(Status(Code::kResourceExhausted,
                               "more than " + std::to_string(context_.limits.items) +
                                   " arguments, numbers and handles in one frame"));
  }

  bool handle_at(std::uint64_t distance, HandleId& id) {
    if (distance >= context_.next) {
      return fields_.bad("a handle that was never made (distance " + std::to_string(distance) + ")");
    }
    id = distance == 0 ? 0 : context_.next - distance;
    return true;
  }

  // ---- a catalog op

  void read_apply() {
    Apply& apply = std::get<Apply>(out_.emplace_back(std::in_place_type<Apply>));
    std::uint64_t op = 0, dtype = 0;
    std::string_view arguments, attributes, integers, reals, counts;
    bool stated = false;
    std::uint32_t made = 0;
    texts_ = 0;
    do {
      switch (fields_.field()) {
        case field::kOp: fields_.number(op); break;
        case field::kRecord: fields_.flag(apply.record); break;
        case field::kInplace: fields_.flag(apply.inplace); break;
        case field::kDefaultDType: fields_.number(dtype); break;
        case field::kArguments: fields_.bytes(arguments); break;
        case field::kAttributes: fields_.bytes(attributes); break;
        case field::kIntegers: fields_.bytes(integers); break;
        case field::kReals: fields_.bytes(reals); break;
        case field::kTexts: read_texts(); break;
        case field::kCounts: fields_.bytes(counts); break;
        case field::kMade: stated = read_made(made); break;
        default:
          if (fields_.field() <= field::kRaise) {
            fields_.bad("two kinds in one command");
          } else {
            fields_.unknown();
          }
      }
    } while (fields_.next());
    if (!fields_.status().ok()) return;
    if (!set_op(op, apply) || !set_default_dtype(dtype, apply)) return;
    Cursor integer_pool(integers), real_pool(reals);
    if (!set_arguments(arguments, integer_pool, real_pool, apply)) return;
    if (!attributes.empty() && !set_attributes(attributes, integer_pool, real_pool, apply)) return;
    if (!integer_pool.done() || !real_pool.done() || texts_taken_ != texts_) {
      fields_.bad("numbers or texts that no argument or attribute uses");
      return;
    }
    for (Cursor list(counts); !list.done();) {
      std::uint64_t count = 0;
      if (!list.varint(count) || count >> 32 != 0) {
        fields_.bad("a broken count");
        return;
      }
      if (!take_items(1)) return;
      apply.counts.push_back(static_cast<std::uint32_t>(count));
    }
    advance(stated ? made : apply.inplace ? 0 : 1);
  }

  bool set_op(std::uint64_t op, Apply& apply) {
    if (op == 0) return fields_.bad("no op and no other kind");
    if (context_.ops.empty()) {
      if (op > FrameReader::kNoOp) return fields_.bad("unknown op " + std::to_string(op));
      apply.op = static_cast<program::OpId>(op - 1);
      return true;
    }
    if (op > context_.ops.size()) return fields_.bad("unknown op " + std::to_string(op));
    apply.op = context_.ops[op - 1];
    if (apply.op != FrameReader::kNoOp) return true;
    return fields_.fail(Status(Code::kUnimplemented,
                               op <= context_.names.size()
                                   ? "this server has no op " + context_.names[op - 1]
                                   : "this server has no op " + std::to_string(op)));
  }

  bool set_default_dtype(std::uint64_t number, Apply& apply) {
    if (number == 0) return true;
    const std::optional<core::DType> dtype = core::dtype_from_number(number);
    if (!dtype || !core::is_floating(*dtype)) {
      return fields_.bad("default dtype " + std::to_string(number) + " is not a float type");
    }
    apply.default_dtype = *dtype;
    return true;
  }

  void read_texts() {
    do {
      std::string_view text;
      if (!fields_.bytes(text)) return;
      if (text.size() > kMaxTextBytes || !printable(text)) {
        fields_.bad("a text that is too long or not printable");
        return;
      }
      if (texts_ == kMaxTexts) {
        fields_.bad("more than " + std::to_string(kMaxTexts) + " texts in one command");
        return;
      }
      if (!take_items(1)) return;
      text_[texts_++] = text;
    } while (fields_.repeated());
  }

  bool take_integer(Cursor& pool, std::int64_t& value) {
    std::uint64_t code = 0;
    if (!pool.varint(code)) return fields_.bad("fewer integers than arguments and attributes use");
    value = unzigzag(code);
    return true;
  }
  bool take_real(Cursor& pool, double& value) {
    std::uint64_t bits = 0;
    if (!pool.fixed64(bits)) return fields_.bad("fewer reals than arguments and attributes use");
    value = std::bit_cast<double>(bits);
    return true;
  }

  bool set_arguments(std::string_view codes, Cursor& integers, Cursor& reals, Apply& apply) {
    for (Cursor list(codes); !list.done();) {
      std::uint64_t code = 0;
      if (!list.varint(code)) return fields_.bad("a broken argument");
      if (!take_items(1)) return false;
      Argument& a = apply.arguments.emplace_back();
      if ((code & 1) == 0) {
        if (code == 0) continue;
        a.kind = Argument::Kind::kHandle;
        if (!handle_at(code >> 1, a.handle)) return false;
        continue;
      }
      a.kind = Argument::Kind::kNumber;
      switch (code) {
        case field::kFalse:
        case field::kTrue: a.number = core::Number::of_bool(code == field::kTrue); break;
        case field::kInteger:
          a.number.kind = core::Number::Kind::kInt;
          if (!take_integer(integers, a.number.integer)) return false;
          break;
        case field::kReal:
          a.number.kind = core::Number::Kind::kFloat;
          if (!take_real(reals, a.number.real)) return false;
          break;
        default: return fields_.bad("unknown argument code " + std::to_string(code));
      }
    }
    return true;
  }

  bool set_attributes(std::string_view codes, Cursor& integers, Cursor& reals, Apply& apply) {
    for (Cursor list(codes); !list.done();) {
      std::uint64_t code = 0;
      if (!list.varint(code)) return fields_.bad("a broken attribute");
      if (!take_items(1)) return false;
      Attribute a;
      if (!set_attribute(code, integers, reals, a)) return false;
      apply.attributes.push_back(std::move(a));
    }
    return true;
  }

  bool set_attribute(std::uint64_t code, Cursor& integers, Cursor& reals, Attribute& a) {
    const std::uint64_t x = code >> field::kAttributeKindBits;
    a.kind = static_cast<Attribute::Kind>(code & 7);
    switch (a.kind) {
      case Attribute::Kind::kBool:
        a.integer = x == 1;
        return x <= 1 || fields_.bad("a bool attribute that is neither 0 nor 1");
      case Attribute::Kind::kInts:
        if (x > integers.left()) return fields_.bad("fewer integers than attributes use");
        if (!take_items(static_cast<std::size_t>(x))) return false;
        a.ints.resize(static_cast<std::size_t>(x));
        for (std::int64_t& value : a.ints) {
          if (!take_integer(integers, value)) return false;
        }
        return true;
      case Attribute::Kind::kDType:
        a.integer = static_cast<std::int64_t>(x);
        return core::dtype_from_number(x) || fields_.bad("unknown dtype " + std::to_string(x));
      case Attribute::Kind::kDevice: {
        core::Device device;
        if (!set_device(x, device)) return false;
        a.integer = static_cast<std::int64_t>(x);
        return true;
      }
      case Attribute::Kind::kNone:
      case Attribute::Kind::kInt:
      case Attribute::Kind::kFloat:
      case Attribute::Kind::kString: break;
    }
    if (x != 0) return fields_.bad("unknown attribute code " + std::to_string(code));
    if (a.kind == Attribute::Kind::kInt) return take_integer(integers, a.integer);
    if (a.kind == Attribute::Kind::kFloat) return take_real(reals, a.real);
    if (a.kind == Attribute::Kind::kString) {
      if (texts_taken_ == texts_) return fields_.bad("fewer texts than attributes use");
      a.text = text_[texts_taken_++];
    }
    return true;
  }

  // ---- the other kinds

  void read_other() {
    const std::uint32_t kind = fields_.field();
    if (kind < field::kConstant) {
      fields_.bad("field " + std::to_string(kind) + " without an op");
      return;
    }
    if (kind > field::kRaise) {
      fields_.unknown();
      return;
    }
    std::string_view body;
    if (!fields_.bytes(body)) return;
    Fields inner(body);
    switch (kind) {
      case field::kConstant: read_constant(inner); break;
      case field::kUploaded: read_uploaded(inner); break;
      case field::kFetch: {
        auto& fetch = add<program::Fetch>();
        while (inner.next()) {
          switch (inner.field()) {
            case 1: read_handle(inner, fetch.handle); break;
            case 2: inner.flag(fetch.bulk); break;
            default: inner.unknown();
          }
        }
        break;
      }
      case field::kBackward: read_backward(inner); break;
      case field::kRelease: {
        auto& release = add<program::Release>();
        while (inner.next()) {
          if (inner.field() == 1) {
            read_handles(inner, release.handles);
          } else {
            inner.unknown();
          }
        }
        break;
      }
      case field::kSaved: {
        auto& saved = add<program::Saved>();
        while (inner.next()) {
          switch (inner.field()) {
            case 1: inner.number(saved.node); break;
            case 2: inner.number32(saved.slot); break;
            default: inner.unknown();
          }
        }
        break;
      }
      case field::kSetFlag: {
        auto& set = add<program::SetFlag>();
        set.on = false;
        bool retain = false;
        while (inner.next()) {
          switch (inner.field()) {
            case 1: inner.flag(retain); break;
            case 2: read_handle(inner, set.handle); break;
            case 3: inner.flag(set.on); break;
            default: inner.unknown();
          }
        }
        using What = program::SetFlag::What;
        set.what = retain ? What::kRetainGrad : What::kRequiresGrad;
        break;
      }
      case field::kSetGrad: {
        auto& set = add<program::SetGrad>();
        read_two(inner, set.handle, set.grad);
        break;
      }
      case field::kSetData: {
        auto& set = add<program::SetData>();
        read_two(inner, set.handle, set.other);
        break;
      }
      case field::kRaise: {
        auto& raise = add<program::Raise>();
        while (inner.next()) inner.field() == 1 ? inner.number(raise.root) : inner.unknown();
        break;
      }
      default: fields_.unknown();
    }
    if (!inner.status().ok()) fields_.fail(std::move(inner.status()));
  }

  template <class T>
  T& add() {
    return std::get<T>(out_.emplace_back(std::in_place_type<T>));
  }

  void read_constant(Fields& inner) {
    auto& constant = add<program::Constant>();
    std::string_view data;
    while (inner.next()) {
      if (inner.field() == 4) {
        inner.bytes(data);
      } else {
        read_layout(inner, constant.dtype, constant.device, constant.shape);
      }
    }
    const std::int64_t elements = check_layout(inner, constant.shape);
    if (elements < 0) return;
    const std::uint64_t unit = core::size_of(constant.dtype);
    if (data.size() > context_.limits.inline_bytes) {
      inner.fail(Status(Code::kResourceExhausted,
                        "constant: " + std::to_string(data.size()) + " bytes, at most " +
                            std::to_string(context_.limits.inline_bytes) + " travel in a frame"));
    } else if (data.size() % unit != 0 ||
               data.size() / unit != static_cast<std::uint64_t>(elements)) {
      inner.bad("constant: " + std::to_string(data.size()) + " bytes for " +
                core::to_string(constant.shape) + " of " +
                std::string(core::name_of(constant.dtype)));
    } else {
      constant.bytes = data;
    }
  }

  void read_uploaded(Fields& inner) {
    auto& uploaded = add<program::Uploaded>();
    while (inner.next()) {
      if (inner.field() == 4) {
        inner.number(uploaded.upload);
      } else {
        read_layout(inner, uploaded.dtype, uploaded.device, uploaded.shape);
      }
    }
    check_layout(inner, uploaded.shape);
  }

  // Fields 1 to 3 of Constant and Uploaded.
  void read_layout(Fields& inner, core::DType& dtype, core::Device& device, core::Dims& shape) {
    std::uint64_t number = 0;
    std::string_view sizes;
    switch (inner.field()) {
      case 1:
        if (!inner.number(number)) return;
        if (const auto known = core::dtype_from_number(number)) {
          dtype = *known;
          has_dtype_ = true;
        } else {
          inner.bad("unknown dtype " + std::to_string(number));
        }
        break;
      case 2:
        if (inner.number(number)) set_device(number, device);
        break;
      case 3:
        if (!inner.bytes(sizes)) return;
        for (Cursor list(sizes); !list.done();) {
          if (!list.varint(number)) {
            inner.bad("a broken shape");
            return;
          }
          if (shape.size() == core::kMaxRank) {
            inner.bad("more than " + std::to_string(core::kMaxRank) + " dimensions");
            return;
          }
          shape.push_back(static_cast<std::int64_t>(number));
        }
        break;
      default: inner.unknown();
    }
  }
  // The number of elements, -1 on failure.
  std::int64_t check_layout(Fields& inner, const core::Dims& shape) {
    if (!fields_.status().ok() || !inner.status().ok()) return -1;
    if (!has_dtype_) {
      inner.bad("a tensor without dtype");
      return -1;
    }
    const core::Result<std::int64_t> elements = core::checked_numel(shape.span());
    if (elements.ok()) return *elements;
    inner.fail(elements.status());
    return -1;
  }

  void read_backward(Fields& inner) {
    auto& backward = add<program::Backward>();
    while (inner.next()) {
      switch (inner.field()) {
        case 1: read_handles(inner, backward.roots); break;
        case 2: read_handles(inner, backward.seeds); break;
        case 3: read_handles(inner, backward.inputs); break;
        case 4: inner.flag(backward.has_inputs); break;
        case 5: inner.flag(backward.retain_graph); break;
        case 6: inner.flag(backward.allow_unused); break;
        case 7: inner.flag(backward.expanded); break;
        case 8:
          inner.number32(backward.made);
          if (backward.made > kMaxMade) {
            inner.bad("makes too many handles: " + std::to_string(backward.made));
          }
          break;
        default: inner.unknown();
      }
    }
    if (backward.seeds.size() != backward.roots.size()) {
      inner.bad("backward: " + std::to_string(backward.seeds.size()) + " seeds for " +
                std::to_string(backward.roots.size()) + " roots");
    }
    if (!backward.has_inputs && !backward.inputs.empty()) {
      inner.bad("backward: inputs, but has_inputs is not set");
    }
  }

  void read_two(Fields& inner, HandleId& first, HandleId& second) {
    while (inner.next()) {
      switch (inner.field()) {
        case 1: read_handle(inner, first); break;
        case 2: read_handle(inner, second); break;
        default: inner.unknown();
      }
    }
  }
  void read_handle(Fields& inner, HandleId& id) {
    std::uint64_t distance = 0;
    if (inner.number(distance)) handle_at(distance, id);
  }
  void read_handles(Fields& inner, std::vector<HandleId>& ids) {
    std::string_view list;
    if (!inner.bytes(list)) return;
    for (Cursor cursor(list); !cursor.done();) {
      std::uint64_t distance = 0;
      HandleId id = 0;
      if (!cursor.varint(distance)) {
        inner.bad("a broken handle");
        return;
      }
      if (!take_items(1) || !handle_at(distance, id)) return;
      ids.push_back(id);
    }
  }

  bool set_device(std::uint64_t code, core::Device& device) {
    if (code > static_cast<std::uint64_t>(core::DeviceKind::kSim) * 256 + kMaxDeviceIndex) {
      return fields_.bad("unknown device " + std::to_string(code));
    }
    device = {static_cast<core::DeviceKind>(code / 256), static_cast<std::uint8_t>(code % 256)};
    return true;
  }

  static constexpr std::size_t kMaxTexts = 8;  // of one command

  Context& context_;
  Fields fields_;
  std::vector<Command>& out_;
  std::string_view text_[kMaxTexts];
  std::size_t texts_ = 0, texts_taken_ = 0;
  bool has_dtype_ = false;
};

Status at_command(std::size_t index, const Status& status) {
  return Status(status.code(),
                "frame: command " + std::to_string(index) + ": " + status.message());
}

}  // namespace

Status FrameReader::read(std::string_view bytes, Frame& frame) const {
  frame.commands.clear();
  frame.first_seq = frame.first_id = frame.ack_upto = frame.attach_counter = frame.next_id = 0;
  if (bytes.size() > limits_.bytes) {
    return Status(Code::kResourceExhausted, "frame: " + std::to_string(bytes.size()) +
                                                " bytes, at most " + std::to_string(limits_.bytes));
  }
  // First the header, and how many commands follow: so that the list grows once.
  Cursor cursor(bytes), commands;
  std::size_t count = 0;
  std::uint32_t last = 0;
  while (!cursor.done()) {
    const Cursor here = cursor;
    std::uint32_t field = 0;
    WireType type{};
    if (!cursor.tag(field, type)) return core::invalid("frame: a broken tag");
    if (field < last || (field == last && field != field::kCommands)) {
      return core::invalid("frame: field " + std::to_string(field) + " twice or out of order");
    }
    last = field;
    const WireType expected = field == field::kCommands ? WireType::kBytes : WireType::kVarint;
    if (field > field::kCommands) {
      return core::invalid("frame: unknown field " + std::to_string(field));
    }
    if (type != expected) {
      return core::invalid("frame: field " + std::to_string(field) + " has the wrong wire type");
    }
    std::string_view body;
    bool whole = false;
    switch (field) {
      case field::kFirstSeq: whole = cursor.varint(frame.first_seq); break;
      case field::kFirstId: whole = cursor.varint(frame.first_id); break;
      case field::kAckUpto: whole = cursor.varint(frame.ack_upto); break;
      case field::kAttachCounter: whole = cursor.varint(frame.attach_counter); break;
      default:
        if (count++ == 0) commands = here;
        whole = cursor.bytes(body);
    }
    if (!whole) return core::invalid("frame: cut off");
  }
  if (count > limits_.commands) {
    return Status(Code::kResourceExhausted, "frame: " + std::to_string(count) +
                                                " commands, at most " +
                                                std::to_string(limits_.commands));
  }
  if (frame.first_seq == 0 || frame.first_id == 0 || frame.first_id >> 62 != 0) {
    return core::invalid("frame: first_seq and first_id start at 1");
  }
  Context context{limits_, ops_, names_, 0, frame.first_id};
  frame.commands.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t field = 0;
    WireType type{};
    std::string_view body;
    if (!commands.tag(field, type) || !commands.bytes(body)) return core::internal("frame: changed");
    CommandReader reader(context, body, frame.commands);
    if (Status status = reader.read(); !status.ok()) return at_command(i, status);
  }
  frame.next_id = context.next;
  return {};
}

}  // namespace teletensor::wire
