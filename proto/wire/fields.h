// Field numbers of program.proto, and the codes of packed arguments and attributes.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace teletensor::wire::field {

enum Frame : std::uint32_t {
  kFirstSeq = 1,
  kFirstId = 2,
  kAckUpto = 3,
  kAttachCounter = 4,
  kCommands = 5
};
enum Command : std::uint32_t {
  kOp = 1,
  kRecord = 2,
  kInplace = 3,
  kDefaultDType = 4,
  kArguments = 5,
  kAttributes = 6,
  kIntegers = 7,
  kReals = 8,
  kTexts = 9,
  kCounts = 10,
  kMade = 11,
  kConstant = 12,
  kUploaded = 13,
  kFetch = 14,
  kBackward = 15,
  kRelease = 16,
  kSaved = 17,
  kSetFlag = 18,
  kSetGrad = 19,
  kSetData = 20,
  kRaise = 21,
  kForget = 22,
  kDefine = 23,
  kCall = 24,
  kUndefine = 25,
  kTaken = 26,
  kKeep = 27,
  kPublish = 28,
  kPublished = 29,
  kJoin = 30,
  kLeave = 31,
  kLastKind = kLeave
};

// The codes of arguments; an even code is a handle.
enum ArgumentCode : std::uint64_t {
  kFalse = 1,
  kTrue = 3,
  kInteger = 5,
  kReal = 7,
  kComplex = 9,   // two reals follow
  kUnsigned = 11  // an integer above 2^63 - 1, in two's complement
};
// An attribute's code is kind + 8 * x, with the kinds of core::Attribute::Kind.
inline constexpr int kAttributeKindBits = 3;
inline std::uint64_t code_of(core::Device device) {
  return static_cast<std::uint64_t>(device.kind) * 256 + device.index;
}

}  // namespace teletensor::wire::field
