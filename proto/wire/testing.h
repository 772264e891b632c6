// For tests: random commands that the encoder accepts, and frames of commands.
#pragma once

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/program/command.h"
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

class RandomCommands {
 public:
  explicit RandomCommands(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool coin() { return below(2) == 0; }

  // Handles are below `next`, which must be at least 2.
  program::Command command(program::HandleId next) {
    next_ = next;
    using namespace program;
    switch (below(19)) {
      case 0: {
        Constant c;
        c.dtype = dtype();
        c.device = device();
        c.shape = small_shape();
        c.bytes.resize(static_cast<std::size_t>(core::numel(c.shape)) * core::size_of(c.dtype));
        for (char& byte : c.bytes) byte = static_cast<char>(random_());
        return c;
      }
      case 1:
        return Uploaded{wide(), dtype(), device(), small_shape()};
      case 2:
        return Fetch{handle(), coin(), coin()};
      case 3: {
        Backward b;
        for (std::uint64_t n = below(4); n > 0; --n) {
          b.roots.push_back(handle());
          b.seeds.push_back(coin() ? 0 : handle());
        }
        b.has_inputs = coin();
        for (std::uint64_t n = b.has_inputs ? below(200) : 0; n > 0; --n) {
          b.inputs.push_back(handle());
        }
        b.retain_graph = coin();
        b.allow_unused = coin();
        b.expanded = coin();
        b.made = static_cast<std::uint32_t>(below(300));
        return b;
      }
      case 4:
        return Saved{wide(), static_cast<std::uint32_t>(random_())};
      case 5:
        return SetFlag{static_cast<SetFlag::What>(below(3)), handle(), coin()};
      case 6:
        return SetGrad{handle(), coin() ? 0 : handle()};
      case 7:
        return SetData{handle(), handle()};
      case 8:
        return Raise{wide()};
      case 9: {
        Release r;
        for (std::uint64_t n = below(300); n > 0; --n) r.handles.push_back(handle());
        return r;
      }
      case 10:
        if (coin()) return program::Keep{"model/" + std::to_string(wide()), coin() ? 0 : handle()};
        return coin() ? Command(program::Forget{wide()}) : Command(program::Taken{wide()});
      case 11: {
        Define d{wide(), ""};
        d.bytes.resize(below(400));
        for (char& byte : d.bytes) byte = static_cast<char>(random_());
        return d;
      }
      case 12: {
        Call c;
        c.program = wide();
        for (std::uint64_t n = below(200); n > 0; --n) c.inputs.push_back(handle());
        for (std::uint64_t n = below(40); n > 0; --n) c.numbers.push_back(number());
        c.seed = integer();
        c.ordinal = integer();
        c.made = static_cast<std::uint32_t>(below(300));
        c.times = static_cast<std::uint32_t>(wide());
        for (std::uint64_t n = below(9); n > 0; --n) {
          c.sliced.push_back(static_cast<std::uint32_t>(wide()));
        }
        return c;
      }
      case 13:
        return Undefine{wide()};
      case 14:
        if (below(4) == 0) {
          if (coin()) return program::Leave{wide()};
          return program::Join{wide(), "group/" + std::to_string(wide()),
                               static_cast<std::uint32_t>(wide()),
                               static_cast<std::uint32_t>(wide()), wide()};
        }
        if (coin()) {
          return program::Published{wide(), dtype(), device(), small_shape(), coin()};
        }
        return program::Publish{"w/" + std::to_string(wide()), coin() ? 0 : handle(), coin(),
                                coin() ? "" : "alice bob"};
      default:
        return apply();
    }
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
