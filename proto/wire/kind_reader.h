// KindReader: reads the commands that are no catalog ops. Used only by frame_reader.cc.
#pragma once

#include <cstring>

#include "proto/wire/message_reader.h"

namespace teletensor::wire {

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
    switch (kind) {
      case field::kConstant:
        read_constant(inner);
        break;
      case field::kUploaded:
        read_uploaded(inner);
        break;
      case field::kFetch: {
        auto& fetch = add<program::Fetch>();
        while (inner.next()) {
          switch (inner.field()) {
            case 1:
              read_handle(inner, fetch.handle);
              break;
            case 2:
              inner.flag(fetch.bulk);
              break;
            case 3:
              inner.flag(fetch.describe);
              break;
            default:
              inner.unknown();
          }
        }
        break;
      }
      case field::kBackward:
        read_backward(inner);
        break;
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
            case 1:
              inner.number(saved.node);
              break;
            case 2:
              inner.number32(saved.slot);
              break;
            default:
              inner.unknown();
          }
        }
        break;
      }
      case field::kSetFlag: {
        auto& set = add<program::SetFlag>();
        set.on = false;
        std::uint32_t what = 0;
        while (inner.next()) {
          switch (inner.field()) {
            case 1:
              inner.number32(what);
              break;
            case 2:
              read_handle(inner, set.handle);
              break;
            case 3:
              inner.flag(set.on);
              break;
            default:
              inner.unknown();
          }
        }
        using What = program::SetFlag::What;
        const bool earlier = context_.protocol < kViewNodeKind;
        if (what > (earlier ? 1 : 2)) {
          wrong(inner, "set_flag knows no flag " + std::to_string(what));
        } else {
          set.what = static_cast<What>(what);
        }
        if (earlier && set.what == What::kRetainGrad && !set.on) set.what = What::kNode;
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
      case field::kForget: {
        auto& forget = add<program::Forget>();
        while (inner.next()) inner.field() == 1 ? inner.number(forget.node) : inner.unknown();
        break;
      }
      case field::kTaken: {
        auto& taken = add<program::Taken>();
        while (inner.next()) inner.field() == 1 ? inner.number(taken.fetch) : inner.unknown();
        break;
      }
      case field::kKeep: {
        auto& keep = add<program::Keep>();
        while (inner.next()) {
          std::string_view name;
          switch (inner.field()) {
            case 1:
              if (inner.bytes(name)) keep.name = name;
              break;
            case 2:
              read_handle(inner, keep.handle);
              break;
            default:
              inner.unknown();
          }
        }
        if (!good_name(keep.name)) wrong(fields_, "a name: 1 to 200 characters of printable ASCII");
        break;
      }
      case field::kPublish:
        read_publish(inner);
        break;
      case field::kPublished: {
        auto& published = add<program::Published>();
        while (inner.next()) {
          switch (inner.field()) {
            case 4:
              inner.number(published.publication);
              break;
            case 5:
              inner.flag(published.writable);
              break;
            default:
              read_layout(inner, published.dtype, published.device, published.shape);
          }
        }
        check_layout(inner, published.shape);
        break;
      }
      case field::kJoin:
        read_join(inner);
        break;
      case field::kLeave: {
        auto& leave = add<program::Leave>();
        while (inner.next()) inner.field() == 1 ? inner.number(leave.group) : inner.unknown();
        break;
      }
      case field::kDefine: {
        auto& define = add<program::Define>();
        std::string_view bytes;
        while (inner.next()) {
          switch (inner.field()) {
            case 1:
              inner.number(define.program);
              break;
            case 2:
              if (inner.bytes(bytes)) define.bytes = bytes;
              break;
            default:
              inner.unknown();
          }
        }
        break;
      }
      case field::kCall:
        read_call(inner);
        break;
      case field::kUndefine: {
        auto& undefine = add<program::Undefine>();
        while (inner.next()) inner.field() == 1 ? inner.number(undefine.program) : inner.unknown();
        break;
      }
      default:
        fields_.unknown();
    }
    if (!inner.status().ok()) fields_.fail(std::move(inner.status()));
  }

 private:
  void read_publish(Fields& inner) {
    auto& publish = add<program::Publish>();
    std::string_view text;
    while (inner.next()) {
      switch (inner.field()) {
        case 1:
          if (inner.bytes(text)) publish.name = text;
          break;
        case 2:
          read_handle(inner, publish.handle);
          break;
        case 3:
          inner.flag(publish.writable);
          break;
        case 4:
          if (inner.bytes(text)) publish.users = text;
          break;
        default:
          inner.unknown();
      }
    }
    if (!good_name(publish.name)) wrong(fields_, "a name: 1 to 200 characters of printable ASCII");
    if (!publish.users.empty() && !good_name(publish.users)) {
      wrong(fields_, "users: at most 200 characters of printable ASCII");
    }
  }

  void read_join(Fields& inner) {
    auto& join = add<program::Join>();
    std::string_view name;
    while (inner.next()) {
      switch (inner.field()) {
        case 1:
          inner.number(join.group);
          break;
        case 2:
          if (inner.bytes(name)) join.name = name;
          break;
        case 3:
          inner.number32(join.rank);
          break;
        case 4:
          inner.number32(join.ranks);
          break;
        case 5:
          inner.number(join.timeout_ms);
          break;
        default:
          inner.unknown();
      }
    }
    if (!good_name(join.name)) wrong(fields_, "a name: 1 to 200 characters of printable ASCII");
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
      inner.fail(core::Status(core::Code::kResourceExhausted,
                              "constant: " + std::to_string(data.size()) + " bytes, at most " +
                                  std::to_string(context_.limits.inline_bytes) +
                                  " travel in a frame"));
    } else if (!context_.thin &&  // the front refuses a thin client's, late
               (data.size() % unit != 0 ||
                data.size() / unit != static_cast<std::uint64_t>(elements))) {
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

  // Reads fields 1 to 3 of Constant and Uploaded.
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
          wrong(inner, "unknown dtype " + std::to_string(number));
        }
        break;
      case 2:
        if (inner.number(number) && !find_device(number, device)) {
          wrong(inner, "unknown device " + std::to_string(number));
        }
        break;
      case 3:
        if (!inner.bytes(sizes)) return;
        for (Cursor list(sizes); !list.done();) {
          if (!list.varint(number)) {
            inner.bad("a malformed shape");
            return;
          }
          if (shape.size() == core::kMaxRank) {
            wrong(inner, "more than " + std::to_string(core::kMaxRank) + " dimensions");
            if (!context_.thin) return;
            continue;
          }
          shape.push_back(static_cast<std::int64_t>(number));
        }
        break;
      default:
        inner.unknown();
    }
  }
  // Returns the number of elements, or -1 after an error.
  std::int64_t check_layout(Fields& inner, const core::Dims& shape) {
    if (!fields_.status().ok() || !inner.status().ok() || !context_.late.ok()) return -1;
    if (!has_dtype_) {
      wrong(inner, "a tensor has no dtype");
      return -1;
    }
    const core::Result<std::int64_t> elements = core::checked_numel(shape.span());
    if (elements.ok()) return *elements;
    wrong(inner, elements.status());
    return -1;
  }

  void read_backward(Fields& inner) {
    auto& backward = add<program::Backward>();
    while (inner.next()) {
      switch (inner.field()) {
        case 1:
          read_handles(inner, backward.roots);
          break;
        case 2:
          read_handles(inner, backward.seeds);
          break;
        case 3:
          read_handles(inner, backward.inputs);
          break;
        case 4:
          inner.flag(backward.has_inputs);
          break;
        case 5:
          inner.flag(backward.retain_graph);
          break;
        case 6:
          inner.flag(backward.allow_unused);
          break;
        case 7:
          inner.flag(backward.expanded);
          break;
        case 8:
          inner.number32(backward.made);
          if (backward.made > kMaxMade) {
            inner.bad("makes too many handles: " + std::to_string(backward.made));
          }
          break;
        default:
          inner.unknown();
      }
    }
    if (backward.seeds.size() != backward.roots.size()) {
      wrong(inner, "backward: " + std::to_string(backward.seeds.size()) + " seeds for " +
                       std::to_string(backward.roots.size()) + " roots");
    }
    if (!backward.has_inputs && !backward.inputs.empty()) {
      wrong(inner, "backward: inputs, but has_inputs is not set");
    }
  }

  void read_call(Fields& inner) {
    auto& call = add<program::Call>();
    std::string_view codes, integers, reals, list;
    std::uint64_t number = 0;
    while (inner.next()) {
      switch (inner.field()) {
        case 1:
          inner.number(call.program);
          break;
        case 2:
          read_handles(inner, call.inputs);
          break;
        case 3:
          inner.bytes(codes);
          break;
        case 4:
          inner.bytes(integers);
          break;
        case 5:
          inner.bytes(reals);
          break;
        case 6:
          if (inner.number(number)) call.seed = unzigzag(number);
          break;
        case 7:
          if (inner.number(number)) call.ordinal = unzigzag(number);
          break;
        case 8:
          inner.number32(call.made);
          if (call.made > kMaxMade) {
            inner.bad("makes too many handles: " + std::to_string(call.made));
          }
          break;
        case 9:
          inner.number32(call.times);
          break;
        case 10:
          if (!inner.bytes(list)) return;
          for (Cursor cursor(list); !cursor.done();) {
            if (!cursor.varint(number)) {
              inner.bad("call: a malformed list");
              return;
            }
            if (!take_items(1)) return;
            if (number >> 32 != 0) wrong(inner, "call: a number in `sliced` is over 32 bits");
            call.sliced.push_back(static_cast<std::uint32_t>(number));
          }
          break;
        default:
          inner.unknown();
      }
    }
    if (inner.status().ok()) read_numbers(inner, codes, integers, reals, call.numbers);
  }

  void read_numbers(Fields& inner, std::string_view codes, std::string_view integers,
                    std::string_view reals, std::vector<core::Number>& out) {
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
      if (!good) return wrong(inner, "call: a malformed number");
    }
    if (!whole.done() || !parts.done()) wrong(inner, "call: some of its numbers are not used");
  }

  void read_two(Fields& inner, program::HandleId& first, program::HandleId& second) {
    while (inner.next()) {
      switch (inner.field()) {
        case 1:
          read_handle(inner, first);
          break;
        case 2:
          read_handle(inner, second);
          break;
        default:
          inner.unknown();
      }
    }
  }
  static bool good_name(std::string_view name) {
    for (char c : name) {
      if (c < 0x20 || c > 0x7e) return false;
    }
    return !name.empty() && name.size() <= 200;
  }
  void read_handle(Fields& inner, program::HandleId& id) {
    std::uint64_t distance = 0;
    if (inner.number(distance)) handle_at(distance, id);
  }
  void read_handles(Fields& inner, std::vector<program::HandleId>& ids) {
    std::string_view list;
    if (!inner.bytes(list)) return;
    for (Cursor cursor(list); !cursor.done();) {
      std::uint64_t distance = 0;
      program::HandleId id = 0;
      if (!cursor.varint(distance)) {
        inner.bad("a malformed handle");
        return;
      }
      if (!take_items(1) || !handle_at(distance, id)) return;
      ids.push_back(id);
    }
  }

  bool has_dtype_ = false;
};

}  // namespace teletensor::wire
