// CommandFields describes the fields of each command that is no Apply, which is sent as a message
// of proto/teletensor/v1/program.proto. The reader, the writer, the canonical form, the limits of a
// frame and the random commands of the tests are visitors of these descriptions.
//
// A visitor has one function for each kind of field, and a description calls them in ascending
// order of the field numbers. number() and number32() stand for an unsigned number, integer() for a
// signed one in zigzag encoding, made() for the number of ids that the command makes, and what()
// for the kind of a SetFlag. handle() and handles() stand for distances of handles, and indices()
// for numbers of 32 bits. layout() covers fields 1 to 3: dtype, device and shape. numbers() covers
// three fields: codes, integers and reals.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "engine/program/command.h"
#include "proto/wire/fields.h"

namespace teletensor::wire {

// Describes a command that is not sent as a message of its own: Apply and its other forms.
template <class Command>
struct CommandFields {
  static constexpr std::uint32_t kKind = 0;
};

template <>
struct CommandFields<program::Constant> {
  static constexpr std::uint32_t kKind = field::kConstant;
  static void visit(auto& visitor, auto& c) {
    visitor.layout(c.dtype, c.device, c.shape);
    visitor.bytes(4, c.bytes);
  }
};

template <>
struct CommandFields<program::Uploaded> {
  static constexpr std::uint32_t kKind = field::kUploaded;
  static void visit(auto& visitor, auto& c) {
    visitor.layout(c.dtype, c.device, c.shape);
    visitor.number(4, c.upload);
  }
};

template <>
struct CommandFields<program::Fetch> {
  static constexpr std::uint32_t kKind = field::kFetch;
  static void visit(auto& visitor, auto& c) {
    visitor.handle(1, c.handle);
    visitor.flag(2, c.bulk);
    visitor.flag(3, c.describe);
  }
};

template <>
struct CommandFields<program::Backward> {
  static constexpr std::uint32_t kKind = field::kBackward;
  static void visit(auto& visitor, auto& c) {
    visitor.handles(1, c.roots);
    visitor.handles(2, c.seeds);
    visitor.handles(3, c.inputs);
    visitor.flag(4, c.has_inputs);
    visitor.flag(5, c.retain_graph);
    visitor.flag(6, c.allow_unused);
    visitor.flag(7, c.expanded);
    visitor.made(8, c.made);
  }
};

template <>
struct CommandFields<program::Release> {
  static constexpr std::uint32_t kKind = field::kRelease;
  static void visit(auto& visitor, auto& c) { visitor.handles(1, c.handles); }
};

template <>
struct CommandFields<program::Saved> {
  static constexpr std::uint32_t kKind = field::kSaved;
  static void visit(auto& visitor, auto& c) {
    visitor.number(1, c.node);
    visitor.number32(2, c.slot);
  }
};

template <>
struct CommandFields<program::SetFlag> {
  static constexpr std::uint32_t kKind = field::kSetFlag;
  static void visit(auto& visitor, auto& c) {
    visitor.what(1, c.what);
    visitor.handle(2, c.handle);
    visitor.flag(3, c.on);
  }
};

template <>
struct CommandFields<program::SetGrad> {
  static constexpr std::uint32_t kKind = field::kSetGrad;
  static void visit(auto& visitor, auto& c) {
    visitor.handle(1, c.handle);
    visitor.handle(2, c.grad);
  }
};

template <>
struct CommandFields<program::SetData> {
  static constexpr std::uint32_t kKind = field::kSetData;
  static void visit(auto& visitor, auto& c) {
    visitor.handle(1, c.handle);
    visitor.handle(2, c.other);
  }
};

template <>
struct CommandFields<program::Raise> {
  static constexpr std::uint32_t kKind = field::kRaise;
  static void visit(auto& visitor, auto& c) { visitor.number(1, c.root); }
};

template <>
struct CommandFields<program::Forget> {
  static constexpr std::uint32_t kKind = field::kForget;
  static void visit(auto& visitor, auto& c) { visitor.number(1, c.node); }
};

template <>
struct CommandFields<program::Taken> {
  static constexpr std::uint32_t kKind = field::kTaken;
  static void visit(auto& visitor, auto& c) { visitor.number(1, c.fetch); }
};

template <>
struct CommandFields<program::Keep> {
  static constexpr std::uint32_t kKind = field::kKeep;
  static void visit(auto& visitor, auto& c) {
    visitor.text(1, c.name);
    visitor.handle(2, c.handle);
  }
};

template <>
struct CommandFields<program::Publish> {
  static constexpr std::uint32_t kKind = field::kPublish;
  static void visit(auto& visitor, auto& c) {
    visitor.text(1, c.name);
    visitor.handle(2, c.handle);
    visitor.flag(3, c.writable);
    visitor.text(4, c.users);
  }
};

template <>
struct CommandFields<program::Published> {
  static constexpr std::uint32_t kKind = field::kPublished;
  static void visit(auto& visitor, auto& c) {
    visitor.layout(c.dtype, c.device, c.shape);
    visitor.number(4, c.publication);
    visitor.flag(5, c.writable);
  }
};

template <>
struct CommandFields<program::Join> {
  static constexpr std::uint32_t kKind = field::kJoin;
  static void visit(auto& visitor, auto& c) {
    visitor.number(1, c.group);
    visitor.text(2, c.name);
    visitor.number32(3, c.rank);
    visitor.number32(4, c.ranks);
    visitor.number(5, c.timeout_ms);
    visitor.flag(6, c.elastic);
  }
};

template <>
struct CommandFields<program::Leave> {
  static constexpr std::uint32_t kKind = field::kLeave;
  static void visit(auto& visitor, auto& c) { visitor.number(1, c.group); }
};

template <>
struct CommandFields<program::Define> {
  static constexpr std::uint32_t kKind = field::kDefine;
  static void visit(auto& visitor, auto& c) {
    visitor.number(1, c.program);
    visitor.bytes(2, c.bytes);
  }
};

template <>
struct CommandFields<program::Call> {
  static constexpr std::uint32_t kKind = field::kCall;
  static void visit(auto& visitor, auto& c) {
    visitor.number(1, c.program);
    visitor.handles(2, c.inputs);
    visitor.numbers(3, c.numbers);
    visitor.integer(6, c.seed);
    visitor.integer(7, c.ordinal);
    visitor.made(8, c.made);
    visitor.number32(9, c.times);
    visitor.indices(10, c.sliced);
  }
};

template <>
struct CommandFields<program::Undefine> {
  static constexpr std::uint32_t kKind = field::kUndefine;
  static void visit(auto& visitor, auto& c) { visitor.number(1, c.program); }
};

// A command that is sent as a message of its own.
template <class Command>
concept Message = CommandFields<Command>::kKind != 0;

// Calls `action` with std::type_identity<C> for the command C whose field number in a Command is
// `kind`. Returns false if there is none.
template <class Action, class... Commands>
bool with_kind(std::uint32_t kind, Action&& action, std::type_identity<std::variant<Commands...>>) {
  const auto act_if = [&]<class C>(std::type_identity<C> type) {
    if constexpr (Message<C>) {
      if (CommandFields<C>::kKind != kind) return false;
      action(type);
      return true;
    }
    return false;
  };
  return (act_if(std::type_identity<Commands>()) || ...);
}
template <class Action>
bool with_kind(std::uint32_t kind, Action&& action) {
  return with_kind(kind, action, std::type_identity<program::Command>());
}

}  // namespace teletensor::wire
