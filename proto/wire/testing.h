// For tests: random commands that the encoder accepts, and frames of commands.
#pragma once

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/program/command.h"
#include "proto/wire/command_fields.h"
#include "proto/wire/frame.h"

namespace teletensor::wire::testing {

// A frame of these commands, whose first id is `first_id`.
inline std::string encode(const std::vector<program::Command>& commands,
                          program::HandleId first_id) {
  FrameWriter writer;
  writer.begin(1, first_id);
  for (const program::Command& command : commands) writer.append(command, usual_made(command));
  return std::string(writer.finish(0, 0));
}

// A visitor of CommandFields (command_fields.h) that gives each field a random value. The same seed
// gives the same commands. Extreme numbers and long lists are frequent.
class RandomCommands {
 public:
  explicit RandomCommands(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool coin() { return below(2) == 0; }

  // A command of a random kind. Its handles are below `next`, which must be at least 2.
  program::Command command(program::HandleId next) {
    next_ = next;
    if (below(3) == 0) return apply();
    program::Command command;
    const auto kind =
        static_cast<std::uint32_t>(field::kMade + 1 + below(field::kLastKind - field::kMade));
    with_kind(kind, [&]<class C>(std::type_identity<C>) {
      auto& c = command.emplace<C>();
      CommandFields<C>::visit(*this, c);
      complete(c);
    });
    return command;
  }

  // ---- For CommandFields: random values of the fields of one command.
  void number(std::uint32_t, std::uint64_t& value) { value = wide(); }
  void number32(std::uint32_t, std::uint32_t& value) { value = static_cast<std::uint32_t>(wide()); }
  void made(std::uint32_t, std::uint32_t& value) { value = static_cast<std::uint32_t>(below(300)); }
  void integer(std::uint32_t, std::int64_t& value) { value = integer(); }
  void flag(std::uint32_t, bool& value) { value = coin(); }
  void what(std::uint32_t, program::SetFlag::What& value) {
    value = static_cast<program::SetFlag::What>(below(3));
  }
  void handle(std::uint32_t, program::HandleId& id) { id = below(4) == 0 ? 0 : handle(); }
  void handles(std::uint32_t, std::vector<program::HandleId>& ids) {
    for (std::uint64_t n = coin() ? below(4) : below(200); n > 0; --n) ids.push_back(handle());
  }
  void indices(std::uint32_t, std::vector<std::uint32_t>& values) {
    for (std::uint64_t n = below(9); n > 0; --n) {
      values.push_back(static_cast<std::uint32_t>(wide()));
    }
  }
  void text(std::uint32_t, std::string& value) { value = "model/" + std::to_string(wide()); }
  void bytes(std::uint32_t, std::string& value) { value = random_bytes(below(400)); }
  void layout(core::DType& dtype, core::Device& device, core::Dims& shape) {
    dtype = this->dtype();
    device = this->device();
    shape = small_shape();
  }
  void numbers(std::uint32_t, std::vector<core::Number>& values) {
    for (std::uint64_t n = below(40); n > 0; --n) values.push_back(number());
  }

  program::Apply apply() {
    program::Apply a;
    a.op = static_cast<program::OpId>(below(400));
    a.record = coin();
    a.inplace = coin();
    static constexpr core::DType kFloats[] = {core::DType::kF16, core::DType::kBF16,
                                              core::DType::kF32, core::DType::kF64};
    a.default_dtype = kFloats[below(4)];
    for (std::uint64_t n = coin() ? below(4) : below(120); n > 0; --n)
      a.arguments.push_back(argument());
    for (std::uint64_t n = below(6); n > 0; --n) a.attributes.push_back(attribute());
    for (std::uint64_t n = below(3); n > 0; --n) {
      a.counts.push_back(static_cast<std::uint32_t>(random_()));
    }
    return a;
  }

  std::int64_t integer() {
    switch (below(4)) {
      case 0:
        return std::numeric_limits<std::int64_t>::min();
      case 1:
        return static_cast<std::int64_t>(random_());
      default:
        return static_cast<std::int64_t>(below(300)) - 150;
    }
  }

 private:
  // Makes the fields of a random command agree, so that a reader accepts it.
  template <class C>
  void complete(C&) {}
  void complete(program::Constant& c) {
    c.bytes = random_bytes(static_cast<std::size_t>(core::numel(c.shape)) * core::size_of(c.dtype));
  }
  void complete(program::Backward& b) {
    b.seeds.resize(b.roots.size());
    if (!b.has_inputs) b.inputs.clear();
  }
  void complete(program::Publish& p) {
    if (coin()) p.users.clear();
  }

  std::string random_bytes(std::size_t size) {
    std::string bytes(size, 0);
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  std::uint64_t wide() { return coin() ? below(1000) : random_(); }
  program::HandleId handle() { return 1 + below(next_ - 1); }
  double real() { return static_cast<double>(integer()) / 7; }
  core::DType dtype() { return core::kAllDTypes[below(std::size(core::kAllDTypes))]; }
  core::Device device() {
    return {static_cast<core::DeviceKind>(below(3)), static_cast<std::uint8_t>(below(256))};
  }
  core::Dims small_shape() {
    core::Dims shape;
    for (std::uint64_t n = below(4); n > 0; --n) {
      shape.push_back(static_cast<std::int64_t>(below(5)));
    }
    return shape;
  }
  core::Number number() {
    switch (below(5)) {
      case 0:
        return core::Number::of_complex(real(), real());
      case 1:
        return core::Number::of_uint(~std::uint64_t{0} - below(1000));
      case 2:
        return core::Number::of_bool(coin());
      case 3:
        return core::Number::of_int(integer());
      default:
        return core::Number::of_float(real());
    }
  }
  program::Argument argument() {
    using program::Argument;
    switch (below(8)) {
      case 0:
        return Argument::absent();
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        return Argument::of(number());
      default:
        return Argument::of(handle());
    }
  }
  core::Attribute attribute() {
    using core::Attribute;
    switch (below(8)) {
      case 0:
        return Attribute::none();
      case 1:
        return Attribute::of(coin());
      case 2:
        return Attribute::of(integer());
      case 3:
        return Attribute::of(real());
      case 4: {
        std::vector<std::int64_t> values(below(3) == 0 ? 40 : below(5));
        for (std::int64_t& value : values) value = integer();
        return Attribute::of(std::span<const std::int64_t>(values));
      }
      case 5:
        return Attribute::of(coin() ? "" : coin() ? "tanh" : "a longer text of an attribute");
      case 6:
        return Attribute::of(dtype());
      default:
        return Attribute::of(device());
    }
  }

  std::mt19937_64 random_;
  program::HandleId next_ = 2;
};

}  // namespace teletensor::wire::testing
