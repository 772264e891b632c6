// Tests that instructions which were sent before are found again, and mean the same.
#include "proto/wire/known_applies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "proto/wire/frame.h"
#include "proto/wire/testing.h"

namespace teletensor::wire {
namespace {

using program::Apply;
using program::Argument;
using program::Command;
using testing::encode;

std::vector<Command> expanded(std::vector<Command> commands) {
  for (Command& command : commands) {
    if (const auto* repeated = std::get_if<program::Repeated>(&command)) {
      command = repeated->expanded();
    }
  }
  return commands;
}

std::size_t repeated_in(const std::vector<Command>& commands) {
  std::size_t count = 0;
  for (const Command& command : commands) {
    count += std::holds_alternative<program::Repeated>(command);
  }
  return count;
}

Apply product(program::HandleId a, program::HandleId b) {
  Apply apply;
  apply.op = 7;
  apply.record = true;
  apply.arguments = {Argument::of(a), Argument::of(b)};
  return apply;
}

TEST(KnownApplies, InstructionIsKnownFromItsThirdTime) {
  KnownApplies known;
  const FrameReader reader;
  program::HandleId next = 10;
  for (int round = 0; round < 5; ++round, next += 100) {
    Frame frame;
    // The second operand gets farther away in each round, so the bytes differ.
    ASSERT_TRUE(reader.read(encode({product(next - 1, 2)}, next), frame, &known).ok());
    EXPECT_EQ(repeated_in(frame.commands), round < 2 ? 0u : 1u);
    EXPECT_EQ(expanded(frame.commands)[0], Command(product(next - 1, 2)));
    EXPECT_EQ(frame.next_id, next + 1);
  }
}

TEST(KnownApplies, NumbersAndKindsOfArgumentsDistinguishInstructions) {
  KnownApplies known;
  const FrameReader reader;
  const auto with = [](Argument second) {
    Apply apply = product(5, 5);
    apply.arguments[1] = second;
    return apply;
  };
  std::vector<Apply> applies = {with(Argument::of(core::Number::of_float(0.0))),
                                with(Argument::of(core::Number::of_float(-0.0))),
                                with(Argument::of(core::Number::of_int(0))),
                                with(Argument::of(core::Number::of_bool(false))),
                                with(Argument::of(core::Number::of_bool(true))),
                                with(Argument::absent()),
                                with(Argument::of(program::HandleId{4})),
                                product(5, 5)};
  applies.back().arguments.push_back(Argument::of(program::HandleId{3}));
  std::set<const program::KnownApply*> found;
  for (int round = 0; round < 4; ++round) {
    for (const Apply& apply : applies) {
      Frame frame;
      ASSERT_TRUE(reader.read(encode({apply}, 10), frame, &known).ok());
      const std::string as_sent = encode({apply}, 10);
      EXPECT_EQ(encode(expanded(frame.commands), 10), as_sent);
      if (const auto* repeated = std::get_if<program::Repeated>(&frame.commands[0])) {
        found.insert(repeated->known.get());
      }
    }
    // So that an instruction is also followed by another one than before.
    std::reverse(applies.begin(), applies.end());
  }
  EXPECT_EQ(found.size(), applies.size());
}

// Any stream means the same with and without the table.
TEST(KnownApplies, RandomStreamsMeanTheSame) {
  testing::RandomCommands random(1);
  std::size_t repeats = 0;
  for (int stream = 0; stream < 40; ++stream) {
    KnownApplies known;
    const FrameReader reader;
    std::vector<Command> body;
    for (int i = 0; i < 30; ++i) body.push_back(random.command(2));
    program::HandleId next = 1000;
    for (int round = 0; round < 6; ++round, next += 1 + random.below(1000)) {
      std::vector<Command> commands = body;
      for (Command& command : commands) {
        auto* apply = std::get_if<Apply>(&command);
        if (apply == nullptr) continue;
        for (Argument& argument : apply->arguments) {
          if (argument.kind == Argument::Kind::kHandle)
            argument.handle = 1 + random.below(next - 1);
        }
      }
      const std::string bytes = encode(commands, next);
      Frame with, without;
      ASSERT_EQ(reader.read(bytes, with, &known).message(), reader.read(bytes, without).message());
      EXPECT_EQ(with.next_id, without.next_id);
      repeats += repeated_in(with.commands);
      EXPECT_EQ(expanded(with.commands), without.commands);
    }
  }
  EXPECT_GT(repeats, 100u);
}

TEST(KnownApplies, RefusalsAreTheSame) {
  KnownApplies known;
  FrameLimits limits;
  limits.items = 16;
  const FrameReader reader(limits, {}, {});
  const std::string good = encode({product(99, 98)}, 100);
  for (int i = 0; i < 3; ++i) {
    Frame frame;
    ASSERT_TRUE(reader.read(good, frame, &known).ok());
    EXPECT_EQ(repeated_in(frame.commands), i < 2 ? 0u : 1u);
  }
  // The same instruction in a session that has made fewer handles.
  const std::string far = [&] {
    FrameWriter writer;
    writer.begin(1, 100);
    writer.append(product(99, 1), 1);
    std::string bytes(writer.finish(0, 0));
    bytes[bytes.find('\x10') + 1] = 3;  // first_id
    return bytes;
  }();
  const std::vector<Command> many(20, product(99, 98));
  for (const std::string& bytes : {far, encode(many, 100), good.substr(0, good.size() - 1)}) {
    Frame with, without;
    const core::Status refused = reader.read(bytes, without);
    EXPECT_FALSE(refused.ok());
    const core::Status also = reader.read(bytes, with, &known);
    EXPECT_EQ(also.code(), refused.code());
    EXPECT_EQ(also.message(), refused.message());
  }
}

TEST(KnownApplies, LoopOfMoreInstructionsThanSlotsFindsMostOfThoseThatAreKept) {
  KnownApplies known;
  const FrameReader reader;
  std::vector<Command> body;
  for (int i = 0; i < 3 * static_cast<int>(KnownApplies::kSlots); ++i) {
    Apply apply = product(1, 2);
    apply.arguments[1] = Argument::of(core::Number::of_int(i));
    body.push_back(apply);
  }
  std::size_t last = 0;
  for (int round = 0; round < 8; ++round) {
    Frame frame;
    ASSERT_TRUE(reader.read(encode(body, 10), frame, &known).ok());
    last = repeated_in(frame.commands);
  }
  EXPECT_GT(last, KnownApplies::kSlots / 2);
}

TEST(KnownApplies, ThinClientsInstructionsAreDecoded) {
  KnownApplies known;
  const FrameReader reader({}, {}, {}, true);
  for (int i = 0; i < 4; ++i) {
    Frame frame;
    ASSERT_TRUE(reader.read(encode({product(9, 8)}, 10), frame, &known).ok());
    EXPECT_EQ(repeated_in(frame.commands), 0u);
  }
}

}  // namespace
}  // namespace teletensor::wire
