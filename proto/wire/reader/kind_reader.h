// KindReader: reads the commands that are no catalog ops. Used only by frame_reader.cc.
//
// The bytes come from a client and are not trusted. Only the canonical form of a message is
// accepted (canonical.h), so that a frame has one meaning; an error refuses the frame, or, in a
// command of a thin client whose fields can be read, becomes a program::Refused.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "proto/wire/command_fields.h"
#include "proto/wire/reader/message_reader.h"

namespace teletensor::wire {

// Reads the message of one command: a visitor of CommandFields. A field that is absent is 0 or
// empty, as in proto3.
class BodyReader : public PartReader {
 public:
  // Precondition: `body` is at its beginning.
  BodyReader(ReadContext& context, Fields& body, std::vector<program::Command>& out)
      : PartReader(context, body, out), more_(body.next()) {}

  template <class Command>
  void read() {
    Command& command = add<Command>();
    CommandFields<Command>::visit(*this, command);
    if (more_) fields_.unknown();
    if (fields_.status().ok()) check(command);
  }

  // ---- For CommandFields
  void number(std::uint32_t field, std::uint64_t& value) {
    value = 0;
    if (at(field)) next(fields_.number(value));
  }
  void number32(std::uint32_t field, std::uint32_t& value) {
    value = 0;
    if (at(field)) next(fields_.number32(value));
  }
  void made(std::uint32_t field, std::uint32_t& value) {
    value = 0;
    if (at(field)) next(read_made(value));
  }
  void integer(std::uint32_t field, std::int64_t& value) {
    std::uint64_t bits = 0;
    number(field, bits);
    value = unzigzag(bits);
  }
  void flag(std::uint32_t field, bool& value) {
    value = false;
    if (at(field)) next(fields_.flag(value));
  }
  void what(std::uint32_t field, program::SetFlag::What& value) {
    std::uint32_t number = 0;
    number32(field, number);
    if (number > (context_.protocol < kViewNodeKind ? 1 : 2)) {
      wrong(fields_, "set_flag knows no flag " + std::to_string(number));
    } else {
      value = static_cast<program::SetFlag::What>(number);
    }
  }
  void handle(std::uint32_t field, program::HandleId& id) {
    std::uint64_t distance = 0;
    if (at(field)) next(fields_.number(distance) && handle_at(distance, id));
  }
  void handles(std::uint32_t field, std::vector<program::HandleId>& ids) {
    list(field, ids, [&](std::uint64_t distance) {
      program::HandleId id = 0;
      if (!handle_at(distance, id)) return false;
      ids.push_back(id);
      return true;
    });
  }
  void indices(std::uint32_t field, std::vector<std::uint32_t>& values) {
    list(field, values, [&](std::uint64_t value) {
      if (value >> 32 != 0) wrong(fields_, "a number in a list is over 32 bits");
      values.push_back(static_cast<std::uint32_t>(value));
      return true;
    });
  }
  void text(std::uint32_t field, std::string& value) { bytes(field, value); }
  void bytes(std::uint32_t field, std::string& value) { value = view(field); }
  void layout(core::DType& dtype, core::Device& device, core::Dims& shape) {
    std::uint64_t dtype_number = 0, device_code = 0;
    number(1, dtype_number);
    number(2, device_code);
    const std::string_view sizes = view(3);
    if (!fields_.status().ok()) return;
    if (const auto known = core::dtype_from_number(dtype_number)) {
      dtype = *known;
    } else {
      wrong(fields_, dtype_number == 0 ? "a tensor has no dtype"
                                       : "unknown dtype " + std::to_string(dtype_number));
    }
    if (!find_device(device_code, device)) {
      wrong(fields_, "unknown device " + std::to_string(device_code));
    }
    std::uint64_t size = 0;
    for (Cursor cursor(sizes); !cursor.done();) {
      if (!cursor.varint(size)) {
        fields_.bad("a malformed shape");
        return;
      }
      if (shape.size() == core::kMaxRank) {
        wrong(fields_, "more than " + std::to_string(core::kMaxRank) + " dimensions");
        return;
      }
      shape.push_back(static_cast<std::int64_t>(size));
    }
    const core::Result<std::int64_t> elements = core::checked_numel(shape.span());
    if (!elements.ok()) wrong(fields_, elements.status());
  }
  void numbers(std::uint32_t first, std::vector<core::Number>& values) {
    const std::string_view codes = view(first), integers = view(first + 1), reals = view(first + 2);
    if (fields_.status().ok()) read_numbers(codes, integers, reals, values);
  }

 private:
  bool at(std::uint32_t field) const { return more_ && fields_.field() == field; }
  void next(bool whole) { more_ = whole && fields_.next(); }

  std::string_view view(std::uint32_t field) {
    std::string_view value;
    if (at(field)) next(fields_.bytes(value));
    return value;
  }

  // Passes each number of a packed list to `take`, which adds it to `values` or returns false to
  // end the reading.
  template <class T, class Take>
  void list(std::uint32_t field, std::vector<T>& values, Take take) {
    const std::string_view packed = view(field);
    const auto is_end = [](char byte) { return static_cast<std::uint8_t>(byte) < 128; };
    const auto count =
        static_cast<std::size_t>(std::count_if(packed.begin(), packed.end(), is_end));
    values.reserve(std::min(count, context_.limits.items - context_.items));
    std::uint64_t value = 0;
    for (Cursor cursor(packed); !cursor.done();) {
      if (!cursor.varint(value)) {
        fields_.bad("a malformed list of numbers");
        return;
      }
      if (!take_items(1) || !take(value)) return;
    }
  }

  void read_numbers(std::string_view codes, std::string_view integers, std::string_view reals,
                    std::vector<core::Number>& out) {
    if (!take_items(codes.size())) return;
    out.reserve(codes.size());
    Cursor whole(integers), parts(reals);
    for (const char code : codes) {
      std::uint64_t bits = 0, more = 0;
      double real = 0, imaginary = 0;
      bool good = true;
      switch (code) {
        case field::kFalse:
        case field::kTrue:
          out.push_back(core::Number::of_bool(code == field::kTrue));
          break;
        case field::kInteger:
          good = whole.varint(bits);
          out.push_back(core::Number::of_int(unzigzag(bits)));
          break;
        case field::kUnsigned:
          good = whole.varint(bits);
          out.push_back(core::Number::of_uint(static_cast<std::uint64_t>(unzigzag(bits))));
          good = good && out.back().kind == core::Number::Kind::kUInt;
          break;
        case field::kReal:
        case field::kComplex:
          good = parts.fixed64(bits) && (code == field::kReal || parts.fixed64(more));
          std::memcpy(&real, &bits, 8);
          std::memcpy(&imaginary, &more, 8);
          out.push_back(code == field::kReal ? core::Number::of_float(real)
                                             : core::Number::of_complex(real, imaginary));
          break;
        default:
          good = false;
      }
      if (!good) return wrong(fields_, "a malformed number");
    }
    if (!whole.done() || !parts.done()) wrong(fields_, "some of the numbers are not used");
  }

  // ---- What the fields of a command must satisfy together. All of them were read.
  template <class Command>
  void check(Command&) {}
  void check(program::Constant& constant) {
    const std::size_t size = constant.bytes.size();
    if (size > context_.limits.inline_bytes) {
      fields_.fail(core::Status(core::Code::kResourceExhausted,
                                "constant: " + std::to_string(size) + " bytes, at most " +
                                    std::to_string(context_.limits.inline_bytes) +
                                    " travel in a frame"));
      return;
    }
    if (context_.thin) return;  // The front refuses a thin client's constant as a late error.
    const auto elements = static_cast<std::uint64_t>(core::numel(constant.shape));
    const std::uint64_t unit = core::size_of(constant.dtype);
    if (size % unit != 0 || size / unit != elements) {
      fields_.bad("constant: " + std::to_string(size) + " bytes for " +
                  core::to_string(constant.shape) + " of " +
                  std::string(core::name_of(constant.dtype)));
    }
  }
  void check(program::Backward& backward) {
    if (backward.seeds.size() != backward.roots.size()) {
      wrong(fields_, "backward: " + std::to_string(backward.seeds.size()) + " seeds for " +
                         std::to_string(backward.roots.size()) + " roots");
    }
    if (!backward.has_inputs && !backward.inputs.empty()) {
      wrong(fields_, "backward: inputs, but has_inputs is not set");
    }
  }
  void check(program::SetFlag& set) {
    using What = program::SetFlag::What;
    const bool earlier = context_.protocol < kViewNodeKind;
    if (earlier && set.what == What::kRetainGrad && !set.on) set.what = What::kNode;
  }
  void check(program::Keep& keep) { check_name(keep.name); }
  void check(program::Join& join) { check_name(join.name); }
  void check(program::Publish& publish) {
    check_name(publish.name);
    if (!publish.users.empty() && !good_name(publish.users)) {
      wrong(fields_, "users: at most 200 characters of printable ASCII");
    }
  }

  void check_name(std::string_view name) {
    if (!good_name(name)) wrong(fields_, "a name: 1 to 200 characters of printable ASCII");
  }
  static bool good_name(std::string_view name) {
    for (char c : name) {
      if (c < 0x20 || c > 0x7e) return false;
    }
    return !name.empty() && name.size() <= 200;
  }

  bool more_;  // Whether `fields_` is at a field that was not read.
};

class KindReader : public PartReader {
 public:
  using PartReader::PartReader;

  // Precondition: `fields` is at the field that states the kind.
  void read() {
    const std::uint32_t kind = fields_.field();
    if (kind < field::kConstant) {
      fields_.bad("field " + std::to_string(kind) + " without an op");
      return;
    }
    if (kind > field::kLastKind) {
      fields_.unknown();
      return;
    }
    std::string_view body;
    if (!fields_.bytes(body)) return;
    Fields inner(body);
    const bool known = with_kind(kind, [&]<class Command>(std::type_identity<Command>) {
      BodyReader(context_, inner, out_).template read<Command>();
    });
    if (!known) fields_.unknown();
    if (!inner.status().ok()) fields_.fail(std::move(inner.status()));
  }
};

}  // namespace teletensor::wire
