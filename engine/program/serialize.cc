#include "engine/program/serialize.h"

#include <cstring>
#include <map>

#include "engine/core/varint.h"
#include "engine/program/text.h"

namespace teletensor::program {

using core::Attribute;
using core::Code;
using core::Cursor;
using core::Number;
using core::Status;
using core::unzigzag;
using core::WireType;
using core::zigzag;

namespace {

constexpr std::uint32_t kFormat = 1;
constexpr std::uint32_t kChecksum = 15;

std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<std::uint8_t>(byte)) * 1099511628211ull;
  }
  return hash;
}

std::uint64_t code_of(core::Device device) {
  return static_cast<std::uint64_t>(device.kind) * 256 + device.index;
}

// One protobuf message. As in proto3, a number of 0 and an empty text are not written.
class Message {
 public:
  std::string text;

  void raw(std::uint64_t value) {
    char room[core::kMaxVarint];
    text.append(room, core::put_varint(room, value));
  }
  void tag(std::uint32_t field, WireType type) { raw(core::tag_of(field, type)); }
  void number(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;
    tag(field, WireType::kVarint);
    raw(value);
  }
  void real(std::uint32_t field, double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, 8);
    if (bits != 0) fixed(field, bits);
  }
  void fixed(std::uint32_t field, std::uint64_t bits) {
    tag(field, WireType::kFixed64);
    char room[8];
    std::memcpy(room, &bits, 8);
    text.append(room, 8);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    if (!value.empty()) entry(field, value);
  }
  // Also writes an empty value, because it is an entry of a list.
  void entry(std::uint32_t field, std::string_view value) {
    tag(field, WireType::kBytes);
    raw(value.size());
    text.append(value);
  }
  void entry(std::uint32_t field, const Message& value) { entry(field, value.text); }
  template <class List>
  void packed(std::uint32_t field, const List& values, bool is_signed) {
    Message list;
    for (const auto value : values) {
      list.raw(is_signed ? zigzag(static_cast<std::int64_t>(value))
                         : static_cast<std::uint64_t>(value));
    }
    bytes(field, list.text);
  }
};

// ---------------------------------------------------------------- writing

class Writer {
 public:
  Writer(const Program& program, const NameOp& name) : program_(program), name_(name) {}

  std::string write() {
    Message out;
    out.number(1, kFormat);
    out.bytes(2, program_.name);
    const Message body = block(program_.body);  // assigns the numbers of the ops
    for (const OpId op : ops_) {
      const auto [name, revision] = name_(op);
      Message each;
      each.bytes(1, name);
      each.number(2, static_cast<std::uint64_t>(revision));
      out.entry(3, each);
    }
    for (const ValueType& type : program_.values) {
      Message each;
      each.number(1, static_cast<std::uint64_t>(type.dtype));
      each.number(2, code_of(type.device));
      each.number(3, static_cast<std::uint64_t>(type.elements));
      out.entry(4, each);
    }
    for (const Literal& literal : program_.literals) {
      Message each;
      each.number(1, literal.value);
      each.bytes(2, literal.bytes);
      out.entry(5, each);
    }
    out.entry(6, body);
    for (const Rebind& rebind : program_.rebinds) out.entry(7, two(rebind.parameter, rebind.value));
    for (const Gradient& g : program_.gradients) out.entry(8, two(g.parameter, g.result));
    for (const Alias& alias : program_.aliases) {
      Message each;
      each.number(1, alias.result);
      each.number(2, alias.of_parameter);
      each.number(3, alias.index);
      out.entry(9, each);
    }
    for (const Number& n : program_.numbers) out.entry(10, number(n));
    for (const std::string& name : program_.parameter_names) out.entry(11, name);
    for (std::size_t i = 1; i < program_.origins.size(); ++i) out.entry(12, program_.origins[i]);
    out.number(13, program_.random_steps);
    out.fixed(kChecksum, fnv1a(out.text));
    return std::move(out.text);
  }

 private:
  static Message two(std::uint32_t first, std::uint32_t second) {
    Message out;
    out.number(1, first);
    out.number(2, second);
    return out;
  }
  static Message number(const Number& n) {
    Message out;
    out.number(1, static_cast<std::uint64_t>(n.kind));
    out.number(2, zigzag(n.integer));
    out.real(3, n.real);
    out.real(4, n.imaginary);
    out.number(5, n.argument);
    return out;
  }
  static Message view(const View& v) {
    Message out;
    out.number(1, v.value);
    out.packed(2, v.geometry.shape, false);
    out.packed(3, v.geometry.strides, true);
    out.number(4, zigzag(v.geometry.offset));
    return out;
  }
  static Message attribute(const Attribute& a) {
    Message out;
    out.number(1, static_cast<std::uint64_t>(a.kind));
    out.number(2, zigzag(a.integer));
    out.real(3, a.real);
    out.packed(4, a.ints, true);
    out.bytes(5, a.text);
    return out;
  }
  std::uint64_t index_of(OpId op) {
    const auto [at, added] = index_.try_emplace(op, ops_.size());
    if (added) ops_.push_back(op);
    return at->second;
  }
  Message step(const Step& s) {
    Message out;
    out.number(1, static_cast<std::uint64_t>(s.kind));
    if (s.kind == Step::Kind::kOp) out.number(2, index_of(s.op));
    for (const StepOperand& operand : s.operands) {
      Message each;
      if (operand.kind == Operand::Kind::kTensor) each.entry(1, view(operand.view));
      if (operand.kind == Operand::Kind::kNumber) each.entry(2, number(operand.number));
      out.entry(3, each);
    }
    for (const StepResult& result : s.results) {
      Message each;
      each.entry(1, view(result.view));
      each.number(2, static_cast<std::uint64_t>(result.overwrites + 1));
      out.entry(4, each);
    }
    for (std::size_t i = 0; i < s.attributes.size(); ++i) {
      out.entry(5, attribute(s.attributes.at(i)));
    }
    out.packed(6, s.counts, false);
    for (const Block& b : s.blocks) out.entry(7, block(b));
    out.number(8, s.origin);
    return out;
  }
  Message block(const Block& b) {
    Message out;
    for (const View& parameter : b.parameters) out.entry(1, view(parameter));
    for (const Step& each : b.steps) out.entry(2, step(each));
    for (const View& result : b.results) out.entry(3, view(result));
    return out;
  }

  const Program& program_;
  const NameOp& name_;
  std::vector<OpId> ops_;
  std::map<OpId, std::size_t> index_;
};

// ---------------------------------------------------------------- reading

// Reads the fields of a message in ascending order; some fields may repeat. The first error ends
// all reading.
class Reader {
 public:
  Reader(const FindOp& find, const ProgramLimits& limits) : find_(find), limits_(limits) {}

  core::Result<Program> read(std::string_view bytes) {
    if (bytes.size() > limits_.bytes) {
      return Status(Code::kResourceExhausted, "program: " + std::to_string(bytes.size()) +
                                                  " bytes, at most " +
                                                  std::to_string(limits_.bytes));
    }
    Program program;
    program.values.clear();
    std::uint64_t format = 0, checksum = 0;
    bool has_checksum = false, has_body = false;
    Cursor cursor(bytes);
    // The checksum is verified first, so that damaged bytes are reported as damaged and not as
    // malformed.
    constexpr std::size_t kTail = 9;
    if (bytes.size() < kTail || static_cast<std::uint8_t>(bytes[bytes.size() - kTail]) !=
                                    core::tag_of(kChecksum, WireType::kFixed64)) {
      return core::invalid("program: this is no program, or its end is missing");
    }
    std::memcpy(&checksum, bytes.data() + bytes.size() - 8, 8);
    if (checksum != fnv1a(bytes.substr(0, bytes.size() - kTail))) {
      return core::invalid("program: the checksum does not fit the contents");
    }
    std::string_view body;
    fields(cursor, {3, 4, 5, 7, 8, 9, 10, 11, 12}, [&](std::uint32_t field, Part part) {
      switch (field) {
        case 1:
          number(part, format);
          if (status_.ok() && format != kFormat) {
            fail(Status(Code::kUnimplemented, "program: format " + std::to_string(format) +
                                                  ", this software reads " +
                                                  std::to_string(kFormat)));
          }
          break;
        case 2:
          name(part, program.name);
          break;
        case 3:
          op(part);
          break;
        case 4:
          value_type(part, take(program.values));
          break;
        case 5: {
          Literal& literal = take(program.literals);
          literal.value = 0;  // the writer omits a 0
          fields(part, [&](std::uint32_t inner, Part p) {
            inner == 1 ? small(p, literal.value) : inner == 2 ? text(p, literal.bytes) : unknown();
          });
          break;
        }
        case 6:
          has_body = bytes_of(part, body);
          block(body, program.body, 0);
          break;
        case 7: {
          Rebind& r = take(program.rebinds);
          two(part, r.parameter, r.value);
          break;
        }
        case 8: {
          Gradient& g = take(program.gradients);
          two(part, g.parameter, g.result);
          break;
        }
        case 9: {
          Alias& alias = take(program.aliases);
          std::uint32_t flag = 0;
          fields(part, [&](std::uint32_t inner, Part p) {
            inner == 1   ? small(p, alias.result)
            : inner == 2 ? small(p, flag)
            : inner == 3 ? small(p, alias.index)
                         : unknown();
          });
          alias.of_parameter = flag != 0;
          break;
        }
        case 10:
          numeral(part, take(program.numbers));
          break;
        case 11:
          name(part, take(program.parameter_names));
          break;
        case 12: {
          // A line of source code may hold a tab, so an origin is not refused.
          std::string_view origin;
          if (bytes_of(part, origin)) take(program.origins) = one_line(origin);
          break;
        }
        case 13:
          number(part, program.random_steps);
          break;
        case kChecksum:
          has_checksum = true;
          if (part.type != WireType::kFixed64 || !part.cursor->fixed64(checksum)) bad("cut off");
          break;
        default:
          unknown();
      }
    });
    if (status_.ok() && (format == 0 || !has_body || !has_checksum)) bad("incomplete");
    if (!status_.ok()) {
      return Status(status_.code(), "program: " + status_.message());
    }
    return program;
  }

 private:
  // The contents of one field, which still have to be read from the cursor.
  struct Part {
    Cursor* cursor;
    WireType type;
  };

  bool fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool bad(const char* what) { return fail(core::invalid(what)); }
  void unknown() { bad("an unknown field"); }

  template <class Take>
  void fields(Cursor& cursor, std::initializer_list<std::uint32_t> repeated, Take take) {
    std::uint32_t last = 0;
    while (status_.ok() && !cursor.done()) {
      std::uint32_t field = 0;
      WireType type{};
      if (!cursor.tag(field, type)) {
        bad("a malformed tag");
        return;
      }
      bool again = false;
      for (const std::uint32_t each : repeated) again |= each == field;
      if (field < last || (field == last && !again)) {
        bad("a field occurs twice or out of order");
        return;
      }
      last = field;
      take(field, Part{&cursor, type});
    }
  }
  // Reads the fields of a nested message.
  template <class Take>
  void fields(Part part, std::initializer_list<std::uint32_t> repeated, Take take) {
    std::string_view body;
    if (!bytes_of(part, body)) return;
    Cursor cursor(body);
    fields(cursor, repeated, take);
  }
  template <class Take>
  void fields(Part part, Take take) {
    fields(part, {}, take);
  }

  bool items(std::size_t count) {
    items_ += count;
    return items_ <= limits_.items ||
           fail(Status(Code::kResourceExhausted,
                       "more than " + std::to_string(limits_.items) + " items"));
  }
  template <class T>
  T& take(std::vector<T>& list) {
    items(1);
    return list.emplace_back();
  }

  bool number(Part part, std::uint64_t& value) {
    return (part.type == WireType::kVarint && part.cursor->varint(value)) ||
           bad("a malformed number");
  }
  void small(Part part, std::uint32_t& value) {
    std::uint64_t wide = 0;
    if (!number(part, wide)) return;
    if (wide >> 32 != 0) bad("a number of more than 32 bits");
    value = static_cast<std::uint32_t>(wide);
  }
  void signed_number(Part part, std::int64_t& value) {
    std::uint64_t bits = 0;
    if (number(part, bits)) value = unzigzag(bits);
  }
  void real(Part part, double& value) {
    std::uint64_t bits = 0;
    if (part.type != WireType::kFixed64 || !part.cursor->fixed64(bits)) {
      bad("a malformed real number");
      return;
    }
    std::memcpy(&value, &bits, 8);
  }
  bool bytes_of(Part part, std::string_view& value) {
    return (part.type == WireType::kBytes && part.cursor->bytes(value)) || bad("a malformed text");
  }
  void text(Part part, std::string& value) {
    std::string_view bytes;
    if (bytes_of(part, bytes)) value = bytes;
  }
  // A text that occurs in errors and in the log.
  void name(Part part, std::string& value) {
    text(part, value);
    if (status_.ok() && !is_one_line(value)) {
      bad("a name is not UTF-8, or has control characters");
    }
  }
  void two(Part part, std::uint32_t& first, std::uint32_t& second) {
    fields(part, [&](std::uint32_t inner, Part p) {
      inner == 1 ? small(p, first) : inner == 2 ? small(p, second) : unknown();
    });
  }
  template <class Push>
  void packed(Part part, bool is_signed, Push push) {
    std::string_view bytes;
    if (!bytes_of(part, bytes)) return;
    Cursor cursor(bytes);
    while (!cursor.done() && status_.ok()) {
      std::uint64_t value = 0;
      if (!cursor.varint(value)) {
        bad("a malformed list");
        return;
      }
      if (!items(1)) return;
      push(is_signed ? unzigzag(value) : static_cast<std::int64_t>(value));
    }
  }
  void dims(Part part, bool is_signed, core::Dims& dims) {
    packed(part, is_signed, [&](std::int64_t value) {
      if (dims.size() == core::kMaxRank) {
        bad("more than 12 dimensions");
      } else {
        dims.push_back(value);
      }
    });
  }

  void op(Part part) {
    std::string name;
    std::uint32_t revision = 0;
    fields(part, [&](std::uint32_t inner, Part p) {
      inner == 1 ? this->name(p, name) : inner == 2 ? small(p, revision) : unknown();
    });
    if (!status_.ok() || !items(1)) return;
    const core::Result<OpId> found = find_(name, static_cast<int>(revision));
    if (!found.ok()) {
      fail(found.status());
      return;
    }
    ops_.push_back(*found);
  }
  void value_type(Part part, ValueType& type) {
    std::uint64_t dtype = 0, device = 0, elements = 0;
    fields(part, [&](std::uint32_t inner, Part p) {
      inner == 1   ? (void)number(p, dtype)
      : inner == 2 ? (void)number(p, device)
      : inner == 3 ? (void)number(p, elements)
                   : unknown();
    });
    const auto known = core::dtype_from_number(dtype);
    if (!known) {
      bad("an unknown dtype");
      return;
    }
    if (device > static_cast<std::uint64_t>(core::DeviceKind::kSim) * 256 + 255) {
      bad("an unknown device");
      return;
    }
    type.dtype = *known;
    type.device = {static_cast<core::DeviceKind>(device / 256),
                   static_cast<std::uint8_t>(device % 256)};
    type.elements = static_cast<std::int64_t>(elements);
  }
  void numeral(Part part, Number& n) {
    std::uint32_t kind = 0;
    fields(part, [&](std::uint32_t inner, Part p) {
      inner == 1   ? small(p, kind)
      : inner == 2 ? signed_number(p, n.integer)
      : inner == 3 ? real(p, n.real)
      : inner == 4 ? real(p, n.imaginary)
      : inner == 5 ? small(p, n.argument)
                   : unknown();
    });
    if (kind > 4) {
      bad("an unknown kind of number");
      return;
    }
    n.kind = static_cast<Number::Kind>(kind);
    if (n.kind == Number::Kind::kBool) n.integer = n.integer != 0;
    if (n.kind == Number::Kind::kUInt && n.integer >= 0) n.kind = Number::Kind::kInt;
  }
  void view(Part part, View& view) {
    view.value = 0;
    fields(part, [&](std::uint32_t inner, Part p) {
      inner == 1   ? small(p, view.value)
      : inner == 2 ? dims(p, false, view.geometry.shape)
      : inner == 3 ? dims(p, true, view.geometry.strides)
      : inner == 4 ? signed_number(p, view.geometry.offset)
                   : unknown();
    });
    if (view.geometry.shape.size() != view.geometry.strides.size()) bad("a view without strides");
    items(4);
  }
  void attribute(Part part, Attribute& a) {
    std::uint32_t kind = 0;
    fields(part, [&](std::uint32_t inner, Part p) {
      inner == 1   ? small(p, kind)
      : inner == 2 ? signed_number(p, a.integer)
      : inner == 3 ? real(p, a.real)
      : inner == 4 ? packed(p, true, [&](std::int64_t value) { a.ints.push_back(value); })
      : inner == 5 ? name(p, a.text)
                   : unknown();
    });
    if (kind > static_cast<std::uint32_t>(Attribute::Kind::kDevice)) {
      bad("an unknown kind of attribute");
      return;
    }
    a.kind = static_cast<Attribute::Kind>(kind);
    const auto number = static_cast<std::uint64_t>(a.integer);
    if (a.kind == Attribute::Kind::kDType && !core::dtype_from_number(number)) {
      bad("an unknown dtype");
    }
    if (a.kind == Attribute::Kind::kDevice &&
        number > static_cast<std::uint64_t>(core::DeviceKind::kSim) * 256 + 255) {
      bad("an unknown device");
    }
  }
  void operand(Part part, StepOperand& operand) {
    fields(part, [&](std::uint32_t inner, Part p) {
      if (operand.kind != Operand::Kind::kAbsent) {
        bad("an operand of two kinds");
      } else if (inner == 1) {
        operand.kind = Operand::Kind::kTensor;
        view(p, operand.view);
      } else if (inner == 2) {
        operand.kind = Operand::Kind::kNumber;
        numeral(p, operand.number);
      } else {
        unknown();
      }
    });
  }
  void step(Part part, Step& step, int depth) {
    std::uint32_t kind = 0, op = 0;
    fields(part, {3, 4, 5, 7}, [&](std::uint32_t inner, Part p) {
      switch (inner) {
        case 1:
          small(p, kind);
          break;
        case 2:
          small(p, op);
          break;
        case 3:
          items(1);
          operand(p, step.operands.emplace_back());
          break;
        case 4: {
          items(1);
          StepResult& result = step.results.emplace_back();
          std::uint32_t overwrites = 0;
          fields(p, [&](std::uint32_t field, Part q) {
            field == 1 ? view(q, result.view) : field == 2 ? small(q, overwrites) : unknown();
          });
          if (overwrites > 1u << 20)
            bad("a result overwrites an operand with an impossible number");
          result.overwrites = static_cast<int>(overwrites) - 1;
          break;
        }
        case 5: {
          items(1);
          Attribute a;
          attribute(p, a);
          step.attributes.push_back(std::move(a));
          break;
        }
        case 6:
          packed(p, false, [&](std::int64_t value) {
            if (value < 0 || value > 1 << 20) {
              bad("a list has an impossible length");
            } else {
              step.counts.push_back(static_cast<std::uint32_t>(value));
            }
          });
          break;
        case 7: {
          std::string_view body;
          items(1);
          if (bytes_of(p, body)) block(body, step.blocks.emplace_back(), depth + 1);
          break;
        }
        case 8:
          small(p, step.origin);
          break;
        default:
          unknown();
      }
    });
    if (!status_.ok()) return;
    if (kind > static_cast<std::uint32_t>(Step::Kind::kPast)) {
      bad("an unknown kind of step");
      return;
    }
    step.kind = static_cast<Step::Kind>(kind);
    if (step.kind != Step::Kind::kOp) {
      if (op != 0) bad("a step that is no op has an op");
      return;
    }
    if (op >= ops_.size()) {
      bad("an op that is not listed");
      return;
    }
    step.op = ops_[op];
  }
  void block(std::string_view body, Block& block, int depth) {
    if (depth > limits_.depth) {
      fail(Status(Code::kResourceExhausted,
                  "more than " + std::to_string(limits_.depth) + " blocks inside each other"));
      return;
    }
    Cursor cursor(body);
    fields(cursor, {1, 2, 3}, [&](std::uint32_t field, Part part) {
      if (field == 1) {
        view(part, take(block.parameters));
      } else if (field == 2) {
        if (++steps_ > limits_.steps) {
          fail(Status(Code::kResourceExhausted,
                      "more than " + std::to_string(limits_.steps) + " steps"));
          return;
        }
        step(part, take(block.steps), depth);
      } else if (field == 3) {
        view(part, take(block.results));
      } else {
        unknown();
      }
    });
  }

  const FindOp& find_;
  const ProgramLimits& limits_;
  Status status_;
  std::vector<OpId> ops_;
  std::size_t items_ = 0, steps_ = 0;
};

}  // namespace

std::string serialize(const Program& program, const NameOp& name) {
  return Writer(program, name).write();
}

core::Result<Program> deserialize(std::string_view bytes, const FindOp& find,
                                  const ProgramLimits& limits) {
  return Reader(find, limits).read(bytes);
}

}  // namespace teletensor::program
