// ApplyReader: reads an instruction of a catalog op. Used only by frame_reader.cc.
//
// The bytes come from a client and are not trusted. All functions that return bool return false
// after they have reported an error to the fields; the frame is then refused, or, if the client is
// thin, the command becomes a program::Refused. Arguments and attributes are lists of codes; their
// numbers and texts stand in lists of their own, in the order in which the codes use them
// (program.proto).
#pragma once

#include <bit>

#include "proto/wire/reader/message_reader.h"

namespace teletensor::wire {

class ApplyReader : public PartReader {
 public:
  using PartReader::PartReader;

  // Precondition: `fields` is at the first field.
  void read() {
    program::Apply& apply =
        std::get<program::Apply>(out_.emplace_back(std::in_place_type<program::Apply>));
    std::uint64_t op = 0, dtype = 0;
    std::string_view arguments, attributes, integers, reals, counts;
    bool stated = false;
    std::uint32_t made = 0;
    texts_ = 0;
    do {
      switch (fields_.field()) {
        case field::kOp:
          fields_.number(op);
          break;
        case field::kRecord:
          fields_.flag(apply.record);
          break;
        case field::kInplace:
          fields_.flag(apply.inplace);
          break;
        case field::kDefaultDType:
          fields_.number(dtype);
          break;
        case field::kArguments:
          fields_.bytes(arguments);
          break;
        case field::kAttributes:
          fields_.bytes(attributes);
          break;
        case field::kIntegers:
          fields_.bytes(integers);
          break;
        case field::kReals:
          fields_.bytes(reals);
          break;
        case field::kTexts:
          read_texts();
          break;
        case field::kCounts:
          fields_.bytes(counts);
          break;
        case field::kMade:
          stated = read_made(made);
          break;
        default:
          if (fields_.field() <= field::kLastKind) {
            fields_.bad("one command has two kinds");
          } else {
            fields_.unknown();
          }
      }
    } while (fields_.next());
    if (!fields_.status().ok()) return;
    const std::uint32_t ids = stated ? made : apply.inplace ? 0 : 1;
    if (context_.thin) {
      if (!take_items(ids)) return;  // each id becomes a tensor, whatever the command makes
      apply.made = ids;
    }
    const Texts texts{arguments, attributes, integers, reals, counts};
    if (!context_.late.ok()) fields_.fail(std::move(context_.late));
    const bool right = fields_.status().ok() && fill(op, dtype, texts, apply);
    if (right || refuse(ids)) advance(ids);
  }

 private:
  // The fields of an instruction that hold lists, undecoded.
  struct Texts {
    std::string_view arguments, attributes, integers, reals, counts;
  };

  // Decodes the lists into `apply`. Returns false, with a status, if they are not well-formed.
  bool fill(std::uint64_t op, std::uint64_t dtype, const Texts& texts, program::Apply& apply) {
    if (!set_op(op, apply) || !set_default_dtype(dtype, apply)) return false;
    Cursor integer_pool(texts.integers), real_pool(texts.reals);
    if (!set_arguments(texts.arguments, integer_pool, real_pool, apply)) return false;
    if (!texts.attributes.empty() &&
        !set_attributes(texts.attributes, integer_pool, real_pool, apply)) {
      return false;
    }
    if (!integer_pool.done() || !real_pool.done() || texts_taken_ != texts_) {
      return fields_.bad("numbers or texts that no argument or attribute uses");
    }
    for (Cursor list(texts.counts); !list.done();) {
      std::uint64_t count = 0;
      if (!list.varint(count) || count >> 32 != 0) {
        return fields_.bad("a broken count");
      }
      if (!take_items(1)) return false;
      apply.counts.push_back(static_cast<std::uint32_t>(count));
    }
    return true;
  }

  // Turns a thin client's instruction, all of whose fields were read, into a program::Refused.
  // Returns false for an instruction of another client, or one beyond a limit.
  bool refuse(std::uint32_t ids) {
    core::Status& status = fields_.status();
    if (!context_.thin || status.code() == core::Code::kResourceExhausted) return false;
    program::Refused refused{status.code(), status.message(), ids};
    out_.back() = std::move(refused);
    status = {};
    return true;
  }

  // Translates the number of an op in the client's list, counted from 1, into the number in this
  // daemon's catalog. Without a list (ReadContext::ops) the client uses the catalog's own order.
  bool set_op(std::uint64_t op, program::Apply& apply) {
    if (op == 0) return fields_.bad("a command has neither an op nor another kind");
    if (context_.ops.empty()) {
      if (op > FrameReader::kNoOp) return fields_.bad("unknown op " + std::to_string(op));
      apply.op = static_cast<program::OpId>(op - 1);
      return true;
    }
    if (op > context_.ops.size()) return fields_.bad("unknown op " + std::to_string(op));
    apply.op = context_.ops[op - 1];
    if (apply.op != FrameReader::kNoOp) return true;
    return fields_.fail(core::Status(core::Code::kUnimplemented,
                                     op <= context_.names.size()
                                         ? "this server has no op " + context_.names[op - 1]
                                         : "this server has no op " + std::to_string(op)));
  }

  bool set_default_dtype(std::uint64_t number, program::Apply& apply) {
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
      if (!take_items(1)) return;
      if (text.size() > kMaxTextBytes || !printable(text)) {
        wrong(fields_, "a text that is too long (at most " + std::to_string(kMaxTextBytes) +
                           " bytes) or not printable ASCII");
      } else if (texts_ == kMaxTexts) {
        wrong(fields_, "more than " + std::to_string(kMaxTexts) + " texts in one command");
      } else {
        text_[texts_++] = text;
      }
    } while (fields_.repeated());
  }

  // Reads the next number of a list that all arguments and attributes share.
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

  bool set_arguments(std::string_view codes, Cursor& integers, Cursor& reals,
                     program::Apply& apply) {
    for (Cursor list(codes); !list.done();) {
      std::uint64_t code = 0;
      if (!list.varint(code)) return fields_.bad("a malformed argument");
      if (!take_items(1)) return false;
      program::Argument& a = apply.arguments.emplace_back();
      if ((code & 1) == 0) {
        if (code == 0) continue;
        a.kind = program::Argument::Kind::kHandle;
        if (!handle_at(code >> 1, a.handle)) return false;
        continue;
      }
      a.kind = program::Argument::Kind::kNumber;
      switch (code) {
        case field::kFalse:
        case field::kTrue:
          a.number = core::Number::of_bool(code == field::kTrue);
          break;
        case field::kInteger:
          a.number.kind = core::Number::Kind::kInt;
          if (!take_integer(integers, a.number.integer)) return false;
          break;
        case field::kReal:
          a.number.kind = core::Number::Kind::kFloat;
          if (!take_real(reals, a.number.real)) return false;
          break;
        case field::kComplex:
          a.number.kind = core::Number::Kind::kComplex;
          if (!take_real(reals, a.number.real)) return false;
          if (!take_real(reals, a.number.imaginary)) return false;
          break;
        case field::kUnsigned:
          a.number.kind = core::Number::Kind::kUInt;
          if (!take_integer(integers, a.number.integer)) return false;
          if (a.number.integer >= 0) return fields_.bad("an unsigned integer that fits 63 bits");
          break;
        default:
          return fields_.bad("unknown argument code " + std::to_string(code));
      }
    }
    return true;
  }

  bool set_attributes(std::string_view codes, Cursor& integers, Cursor& reals,
                      program::Apply& apply) {
    for (Cursor list(codes); !list.done();) {
      std::uint64_t code = 0;
      if (!list.varint(code)) return fields_.bad("a malformed attribute");
      if (!take_items(1)) return false;
      core::Attribute a;
      if (!set_attribute(code, integers, reals, a)) return false;
      apply.attributes.push_back(std::move(a));
    }
    return true;
  }

  // The lowest bits of a code are the kind. The remaining bits are the value of a bool, a dtype or
  // a device, or the length of a list of integers.
  bool set_attribute(std::uint64_t code, Cursor& integers, Cursor& reals, core::Attribute& a) {
    const std::uint64_t x = code >> field::kAttributeKindBits;
    a.kind = static_cast<core::Attribute::Kind>(code & 7);
    switch (a.kind) {
      case core::Attribute::Kind::kBool:
        a.integer = x == 1;
        return x <= 1 || fields_.bad("a bool attribute that is neither 0 nor 1");
      case core::Attribute::Kind::kInts:
        if (x > integers.left()) return fields_.bad("fewer integers than attributes use");
        if (!take_items(static_cast<std::size_t>(x))) return false;
        a.ints.resize(static_cast<std::size_t>(x));
        for (std::int64_t& value : a.ints) {
          if (!take_integer(integers, value)) return false;
        }
        return true;
      case core::Attribute::Kind::kDType:
        a.integer = static_cast<std::int64_t>(x);
        return core::dtype_from_number(x) || fields_.bad("unknown dtype " + std::to_string(x));
      case core::Attribute::Kind::kDevice: {
        core::Device device;
        if (!find_device(x, device)) return fields_.bad("unknown device " + std::to_string(x));
        a.integer = static_cast<std::int64_t>(x);
        return true;
      }
      case core::Attribute::Kind::kNone:
      case core::Attribute::Kind::kInt:
      case core::Attribute::Kind::kFloat:
      case core::Attribute::Kind::kString:
        break;
    }
    if (x != 0) return fields_.bad("unknown attribute code " + std::to_string(code));
    if (a.kind == core::Attribute::Kind::kInt) return take_integer(integers, a.integer);
    if (a.kind == core::Attribute::Kind::kFloat) return take_real(reals, a.real);
    if (a.kind == core::Attribute::Kind::kString) {
      if (texts_taken_ == texts_) return fields_.bad("fewer texts than attributes use");
      a.text = text_[texts_taken_++];
    }
    return true;
  }

  static bool printable(std::string_view text) {
    for (char c : text) {
      if (c < 0x20 || c > 0x7e) return false;
    }
    return true;
  }

  static constexpr std::size_t kMaxTexts = 8;         // texts in one command
  static constexpr std::size_t kMaxTextBytes = 4096;  // bytes in one text

  std::string_view text_[kMaxTexts];
  std::size_t texts_ = 0, texts_taken_ = 0;
};

}  // namespace teletensor::wire
