// Tests the encoder and decoder of frames: round trips, agreement with the classes that protoc
// generates, refused bytes.
#include "proto/wire/frame.h"

#include <gtest/gtest.h>

#include <functional>

#include "proto/wire/testing.h"
#include "proto/wire/varint.h"
#include "teletensor/v1/session.pb.h"

namespace teletensor::wire {
namespace {

using core::Code;
using program::Apply;
using program::Argument;
using program::Command;

std::string encode(const std::vector<Command>& commands, std::uint64_t first_id = 1000) {
  return testing::encode(commands, first_id);
}
core::Status read(std::string_view bytes, Frame& frame) { return FrameReader().read(bytes, frame); }
core::Status read(const v1::Frame& frame) {
  Frame out;
  return read(frame.SerializeAsString(), out);
}
// A frame with one command, which a test then makes invalid.
v1::Frame one(v1::Command** command) {
  v1::Frame frame;
  frame.set_first_seq(1);
  frame.set_first_id(10);
  *command = frame.add_commands();
  return frame;
}
#define EXPECT_REFUSED(status, expected_code, part)                                  \
  do {                                                                               \
    const core::Status refused = (status);                                           \
    EXPECT_EQ(refused.code(), Code::expected_code) << refused.message();             \
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message(); \
  } while (false)

Apply add(program::HandleId a, program::HandleId b) {
  Apply apply;
  apply.op = 2;
  apply.record = true;
  apply.arguments = {Argument::of(a), Argument::of(b)};
  return apply;
}

TEST(Frame, ElementwiseInstructionIsSmall) {
  FrameWriter writer;
  writer.begin(1, 100'000);
  const std::size_t before = writer.size();
  writer.append(add(99'999, 99'998), 1);
  EXPECT_EQ(writer.size() - before, 10u);
  writer.append(add(100'000, 7), 1);  // an older operand takes two more bytes
  EXPECT_LE(writer.size() - before, 22u);
}

// The bytes that docs/wire.md shows.
// The writer reserves room for a whole command before it writes the command.
TEST(Frame, AnOpMayHaveThousandsOfAttributes) {
  Apply apply = add(1, 2);
  for (int i = 0; i < 20'000; ++i) {
    apply.attributes.push_back(core::Attribute::of(INT64_MIN + i));
    apply.attributes.push_back(core::Attribute::of(0.5 * i));
  }
  Frame frame;
  const core::Status status = read(encode({Command(apply)}), frame);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(frame.commands.size(), 1u);
  EXPECT_TRUE(frame.commands[0] == Command(apply));
}

TEST(Frame, BytesOfTheDocumentation) {
  FrameWriter writer;
  writer.begin(1, 100'000);
  Apply apply;
  apply.op = 41;
  apply.record = true;
  apply.arguments = {Argument::of(99'999), Argument::of(99'998)};
  writer.append(apply, 1);
  const auto commands = [&] {
    const std::string_view frame = writer.finish(0, 0);
    return std::string(frame.substr(frame.find('\x2a')));
  };
  EXPECT_EQ(commands(), std::string("\x2a\x08\x08\x2a\x10\x01\x2a\x02\x02\x04", 10));
  writer.begin(1, 100'000);
  apply.arguments = {Argument::of(99'999), Argument::of(core::Number::of_float(2.5))};
  writer.append(apply, 1);
  EXPECT_EQ(commands(), std::string("\x2a\x12\x08\x2a\x10\x01\x2a\x02\x02\x07"
                                    "\x42\x08\0\0\0\0\0\0\x04\x40",
                                    20));
  writer.begin(1, 100'000);
  apply.record = false;
  apply.arguments = {Argument::of(99'999)};
  apply.attributes = {core::Attribute::of(core::Dims({1})), core::Attribute::of(false),
                      core::Attribute::none()};
  writer.append(apply, 1);
  EXPECT_EQ(commands(), std::string("\x2a\x0d\x08\x2a\x2a\x01\x02\x32\x03\x0c\x01\0"
                                    "\x3a\x01\x02",
                                    15));
}

TEST(Frame, RoundTripOfRandomCommands) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    testing::RandomCommands random(seed);
    FrameWriter writer;
    const std::uint64_t first_id = 2 + random.below(1'000'000);
    writer.begin(seed + 1, first_id);
    std::vector<Command> commands;
    for (int i = 0; i < 50; ++i) {
      commands.push_back(random.command(writer.next_id()));
      writer.append(commands.back(), random.coin() ? usual_made(commands.back())
                                                   : static_cast<std::uint32_t>(random.below(9)));
    }
    Frame frame;
    const core::Status status = read(writer.finish(7, 8), frame);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(frame.first_seq, seed + 1);
    EXPECT_EQ(frame.first_id, first_id);
    EXPECT_EQ(frame.ack_upto, 7u);
    EXPECT_EQ(frame.attach_counter, 8u);
    EXPECT_EQ(frame.next_id, writer.next_id());
    ASSERT_EQ(frame.commands.size(), commands.size());
    for (std::size_t i = 0; i < commands.size(); ++i) {
      EXPECT_TRUE(frame.commands[i] == commands[i]) << "command " << i;
    }
  }
}

TEST(Frame, ProtocsClassesWriteTheSameBytes) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    testing::RandomCommands random(seed);
    FrameWriter writer;
    writer.begin(5, 70'000);
    for (int i = 0; i < 40; ++i) {
      const Command command = random.command(writer.next_id());
      writer.append(command, static_cast<std::uint32_t>(random.below(3)));
    }
    const std::string ours(writer.finish(3, 4));
    v1::Frame message;
    ASSERT_TRUE(message.ParseFromString(ours));
    EXPECT_EQ(message.commands_size(), 40);
    EXPECT_EQ(message.first_seq(), 5u);
    EXPECT_TRUE(message.GetReflection()->GetUnknownFields(message).empty());
    EXPECT_EQ(message.SerializeAsString(), ours);
  }
}

TEST(Frame, ReadsWhatProtocsClassesWrite) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  c->set_op(3);
  c->set_inplace(true);
  c->add_arguments(2 * 2);
  c->add_arguments(7);
  c->add_arguments(5);
  c->add_attributes(4 + 8 * 2);
  c->add_attributes(5);
  for (int value : {-3, 4, -5}) c->add_integers(value);
  c->add_reals(0.5);
  c->add_texts("tanh");
  Frame frame;
  const core::Status status = read(message.SerializeAsString(), frame);
  ASSERT_TRUE(status.ok()) << status.message();
  const Apply& apply = std::get<Apply>(frame.commands[0]);
  EXPECT_EQ(apply.op, 2);
  EXPECT_TRUE(apply.inplace);
  EXPECT_EQ(apply.arguments[0], Argument::of(8));
  EXPECT_EQ(apply.arguments[1], Argument::of(core::Number::of_float(0.5)));
  EXPECT_EQ(apply.arguments[2], Argument::of(core::Number::of_int(-3)));
  EXPECT_EQ(apply.attributes.ints(0)[1], -5);
  EXPECT_EQ(apply.attributes.text(1), "tanh");
  EXPECT_EQ(frame.next_id, 10u);  // an in-place command makes no handle
}

TEST(Frame, RefusesUnknownFields) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  c->set_op(1);
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(9, 1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "unknown field 9");
  message = one(&c);
  c->set_op(1);
  c->GetReflection()->MutableUnknownFields(c)->AddVarint(40, 1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "frame: command 1: unknown field 40");
  message = one(&c);
  c->GetReflection()->MutableUnknownFields(c)->AddLengthDelimited(39, "new kind");
  EXPECT_REFUSED(read(message), kInvalidArgument, "unknown field 39");
  message = one(&c);
  auto* fetch = c->mutable_fetch();
  fetch->GetReflection()->MutableUnknownFields(fetch)->AddFixed32(4, 1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "unknown field 4");
}

// Protocol 1 has no kind of SetFlag for the node of a view: retain_grad turned off means it.
TEST(Frame, SetFlagOfProtocol1) {
  using What = program::SetFlag::What;
  const FrameReader earlier({}, {}, {}, false, 1);
  for (const What what : {What::kRequiresGrad, What::kRetainGrad, What::kNode}) {
    FrameWriter writer;
    writer.set_protocol(1);
    writer.begin(1, 10);
    const Command command = program::SetFlag{what, 3, what != What::kNode};
    writer.append(command, 0);
    const std::string bytes(writer.finish(0, 0));
    v1::Frame message;
    ASSERT_TRUE(message.ParseFromString(bytes));
    EXPECT_LE(message.commands(0).set_flag().what(), 1u);
    Frame frame;
    ASSERT_TRUE(earlier.read(bytes, frame).ok());
    EXPECT_TRUE(frame.commands[0] == command);
  }
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  c->mutable_set_flag()->set_what(1);
  Frame frame;
  ASSERT_TRUE(read(message.SerializeAsString(), frame).ok());
  EXPECT_EQ(std::get<program::SetFlag>(frame.commands[0]).what, What::kRetainGrad);
  c->mutable_set_flag()->set_what(2);
  EXPECT_TRUE(read(message).ok());
  EXPECT_REFUSED(earlier.read(message.SerializeAsString(), frame), kInvalidArgument, "no flag 2");
}

TEST(Frame, RefusesTwoKindsOrNone) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  EXPECT_REFUSED(read(message), kInvalidArgument, "empty command");
  c->set_op(1);
  c->mutable_raise();
  EXPECT_REFUSED(read(message), kInvalidArgument, "two kinds");
  message = one(&c);
  c->set_record(true);
  EXPECT_REFUSED(read(message), kInvalidArgument, "neither an op");
  message = one(&c);
  c->set_made(1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "without a command");
}

TEST(Frame, RefusesHandlesThatCannotBe) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  c->mutable_fetch()->set_handle(10);  // would be id 0
  EXPECT_REFUSED(read(message), kInvalidArgument, "never made");
  c->mutable_fetch()->set_handle(~0ull);  // would wrap around to a later id
  EXPECT_REFUSED(read(message), kInvalidArgument, "never made");
  message = one(&c);
  c->set_op(1);
  c->add_arguments(20);
  EXPECT_REFUSED(read(message), kInvalidArgument, "never made");
}

TEST(Frame, RefusesShapesAndContents) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  auto* constant = c->mutable_constant();
  EXPECT_REFUSED(read(message), kInvalidArgument, "has no dtype");
  constant->set_dtype(static_cast<v1::DType>(77));
  EXPECT_REFUSED(read(message), kInvalidArgument, "unknown dtype 77");
  constant->set_dtype(v1::DTYPE_FLOAT32);
  constant->set_data("12345678");
  EXPECT_REFUSED(read(message), kInvalidArgument, "8 bytes for []");
  constant->add_shape(-2);
  EXPECT_FALSE(read(message).ok());
  constant->set_shape(0, 1ll << 32);
  constant->add_shape(1ll << 32);
  EXPECT_FALSE(read(message).ok());
  constant->clear_shape();
  for (int i = 0; i < 13; ++i) constant->add_shape(1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "dimensions");
  constant->clear_shape();
  constant->add_shape(2);
  EXPECT_TRUE(read(message).ok());
  constant->set_device(3 * 256);
  EXPECT_REFUSED(read(message), kInvalidArgument, "unknown device");
  constant->set_device(0);
  constant->set_shape(0, 20'000);
  constant->set_data(std::string(80'000, 'x'));
  EXPECT_REFUSED(read(message), kResourceExhausted, "80000 bytes");
}

TEST(Frame, RefusesNumbersThatDoNotAddUp) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  c->set_op(1);
  c->add_attributes(2);
  EXPECT_REFUSED(read(message), kInvalidArgument, "fewer integers");
  c->add_integers(1);
  EXPECT_TRUE(read(message).ok());
  c->add_integers(1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "no argument or attribute uses");
  c->clear_integers();
  c->set_attributes(0, 4 + 8 * (1ull << 40));  // a list of 2^40 integers
  EXPECT_REFUSED(read(message), kInvalidArgument, "fewer integers");
  c->set_attributes(0, 5);
  EXPECT_REFUSED(read(message), kInvalidArgument, "fewer texts");
  c->add_texts("\n");
  EXPECT_REFUSED(read(message), kInvalidArgument, "not printable");
  c->clear_texts();
  c->clear_attributes();
  c->add_arguments(13);
  EXPECT_REFUSED(read(message), kInvalidArgument, "argument code 13");
  c->set_arguments(0, 7);
  EXPECT_REFUSED(read(message), kInvalidArgument, "fewer reals");
  c->set_arguments(0, 9);
  c->add_reals(1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "fewer reals");
  c->add_reals(2);
  EXPECT_TRUE(read(message).ok());
  c->clear_reals();
  c->set_arguments(0, 11);
  c->add_integers(5);
  EXPECT_REFUSED(read(message), kInvalidArgument, "fits 63 bits");
  c->set_integers(0, -5);
  EXPECT_TRUE(read(message).ok());
  c->clear_integers();
  c->clear_arguments();
  c->set_default_dtype(v1::DTYPE_INT64);
  EXPECT_REFUSED(read(message), kInvalidArgument, "not a float type");
}

TEST(Frame, AThinClientsContentsAreRefusedLate) {
  v1::Frame message;
  message.set_first_seq(1);
  message.set_first_id(5);
  const auto add = [&](std::uint32_t op, std::uint64_t argument) {
    v1::Command* c = message.add_commands();
    c->set_op(op);
    c->add_arguments(argument);
    c->set_made(2);
  };
  add(2, 2);     // this side has not
  add(9, 2);     // not in the table
  add(1, 13);    // no kind of argument
  add(1, 2000);  // never made
  add(1, 2);
  const FrameReader reader({}, {7, FrameReader::kNoOp}, {"add (revision 1)", "new (revision 2)"},
                           true);
  Frame frame;
  const core::Status status = reader.read(message.SerializeAsString(), frame);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto& refused = std::get<program::Refused>(frame.commands[0]);
  EXPECT_EQ(refused.code, core::Code::kUnimplemented);
  EXPECT_NE(refused.text.find("new (revision 2)"), std::string::npos);
  EXPECT_EQ(refused.made, 2u);
  for (int i : {1, 2}) {
    EXPECT_EQ(std::get<program::Refused>(frame.commands[i]).code, core::Code::kInvalidArgument);
  }
  EXPECT_EQ(std::get<Apply>(frame.commands[3]).arguments[0], Argument::of(UINT64_MAX));
  const Apply& apply = std::get<Apply>(frame.commands[4]);
  EXPECT_EQ(apply.made, 2u);
  EXPECT_EQ(apply.arguments[0], Argument::of(12));  // the refused have taken their ids
  EXPECT_EQ(frame.next_id, 15u);
  message.mutable_commands(0)->set_made(1 << 20);  // each id costs the daemon a tensor
  EXPECT_EQ(reader.read(message.SerializeAsString(), frame).code(), core::Code::kResourceExhausted);
  message.mutable_commands(0)->set_made(2);
  message.mutable_commands(0)->mutable_fetch();
  EXPECT_FALSE(reader.read(message.SerializeAsString(), frame).ok());  // two kinds
}

// Each command below can be read but has one wrong value. The command takes its ids nevertheless.
TEST(Frame, AThinClientsWrongValuesAreRefusedLate) {
  using Change = std::function<void(v1::Command&)>;
  const auto constant = [](const std::function<void(v1::Constant&)>& change) {
    return Change([change](v1::Command& c) {
      c.mutable_constant()->set_dtype(v1::DTYPE_FLOAT32);
      change(*c.mutable_constant());
    });
  };
  const Change changes[] = {
      constant([](auto& c) {
        for (int i = 0; i < 13; ++i) c.add_shape(1);
      }),
      constant([](auto& c) { c.add_shape(-1); }),
      constant([](auto& c) { c.set_device(999); }),
      constant([](auto& c) { c.set_dtype(static_cast<v1::DType>(99)); }),
      [](v1::Command& c) { c.mutable_uploaded()->set_device(999); },
      [](v1::Command& c) { c.mutable_published()->set_dtype(static_cast<v1::DType>(99)); },
      [](v1::Command& c) { c.mutable_keep()->set_name("\u00e9"); },
      [](v1::Command& c) { c.mutable_publish()->set_name(std::string(201, 'x')); },
      [](v1::Command& c) { c.mutable_join()->set_ranks(2); },
      [](v1::Command& c) { c.mutable_set_flag()->set_what(9); },
      [](v1::Command& c) {
        c.mutable_backward()->add_roots(1);
        c.mutable_backward()->set_made(3);
      },
      [](v1::Command& c) {
        c.mutable_call()->set_numbers("\x7f");
        c.mutable_call()->set_made(2);
      },
      [](v1::Command& c) {
        c.set_op(1);
        c.add_texts("\u00e9");
      },
      [](v1::Command& c) {
        c.set_op(1);
        c.add_texts(std::string(5000, 'x'));
        c.set_made(4);
      },
      [](v1::Command& c) {
        c.set_op(1);
        for (int i = 0; i < 9; ++i) c.add_texts("x");
      },
  };
  const std::uint64_t ids[] = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 3, 2, 1, 4, 1};
  const FrameReader thin({}, {7}, {}, true), other({}, {7}, {});
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    v1::Frame message;
    message.set_first_seq(1);
    message.set_first_id(5);
    changes[i](*message.add_commands());
    message.add_commands()->mutable_release();
    Frame frame;
    const core::Status status = thin.read(message.SerializeAsString(), frame);
    ASSERT_TRUE(status.ok()) << i << ": " << status.message();
    ASSERT_EQ(frame.commands.size(), 2u) << i;
    const auto* refused = std::get_if<program::Refused>(&frame.commands[0]);
    ASSERT_NE(refused, nullptr) << i;
    EXPECT_EQ(refused->made, ids[i]) << i;
    EXPECT_EQ(frame.next_id, 5 + ids[i]) << i;
    EXPECT_FALSE(refused->text.empty()) << i;
    EXPECT_EQ(other.read(message.SerializeAsString(), frame).code(), core::Code::kInvalidArgument);
  }
}

TEST(Frame, RefusesBackwardThatDisagreesWithItself) {
  v1::Command* c = nullptr;
  v1::Frame message = one(&c);
  c->mutable_backward()->add_roots(1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "0 seeds for 1 roots");
  c->mutable_backward()->add_seeds(0);
  c->mutable_backward()->add_inputs(1);
  EXPECT_REFUSED(read(message), kInvalidArgument, "has_inputs");
  c->mutable_backward()->set_has_inputs(true);
  EXPECT_TRUE(read(message).ok());
  c->mutable_backward()->set_made(1 << 21);
  EXPECT_REFUSED(read(message), kInvalidArgument, "too many handles");
}

TEST(Frame, HoldsToItsLimits) {
  Frame frame;
  FrameLimits limits;
  limits.commands = 10;
  limits.items = 25;
  limits.bytes = 200;
  const FrameReader reader(limits, {}, {});
  FrameWriter writer;
  writer.begin(1, 100);
  while (!writer.full(limits, 20, 2)) writer.append(add(5, 6), 1);
  EXPECT_EQ(writer.commands(), 10u);
  EXPECT_TRUE(reader.read(writer.finish(0, 0), frame).ok());
  writer.append(add(5, 6), 1);
  EXPECT_REFUSED(reader.read(writer.finish(0, 0), frame), kResourceExhausted, "11 commands");
  EXPECT_REFUSED(
      reader.read(encode({program::Release{std::vector<program::HandleId>(26, 1)}}), frame),
      kResourceExhausted, "25 arguments");
  EXPECT_REFUSED(reader.read(std::string(201, 'x'), frame), kResourceExhausted, "201 bytes");
}

TEST(Frame, OpsOfAnotherCatalog) {
  const FrameReader reader({}, {4, FrameReader::kNoOp}, {"add", "frobnicate"});
  Frame frame;
  Apply apply;
  ASSERT_TRUE(reader.read(encode({apply}), frame).ok());
  EXPECT_EQ(std::get<Apply>(frame.commands[0]).op, 4);
  apply.op = 1;
  EXPECT_REFUSED(reader.read(encode({apply}), frame), kUnimplemented, "no op frobnicate");
  apply.op = 2;
  EXPECT_REFUSED(reader.read(encode({apply}), frame), kInvalidArgument, "unknown op 3");
}

TEST(Frame, TruncatedAndDamagedFramesAreRefusedOrValid) {
  testing::RandomCommands random(11);
  FrameWriter writer;
  writer.begin(1, 500);
  for (int i = 0; i < 30; ++i) {
    const Command command = random.command(writer.next_id());
    writer.append(command, usual_made(command));
  }
  const std::string whole(writer.finish(0, 0));
  Frame frame;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A copy in its own heap block, so that a sanitizer detects a read past the end.
    const std::string part(whole.data(), size);
    if (read(part, frame).ok()) {
      EXPECT_LT(frame.commands.size(), 30u);
    }
  }
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = whole;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    if (read(damaged, frame).ok()) {
      EXPECT_LE(frame.commands.size(), damaged.size());
    }
  }
}

TEST(Varint, Edges) {
  for (std::uint64_t value : {0ull, 127ull, 128ull, 16'383ull, 16'384ull, ~0ull, 1ull << 63}) {
    char buffer[kMaxVarint];
    const std::string bytes(buffer, put_varint(buffer, value));
    EXPECT_EQ(bytes.size(), static_cast<std::size_t>(varint_size(value)));
    std::uint64_t back = 1;
    Cursor cursor(bytes);
    EXPECT_TRUE(cursor.varint(back) && cursor.done());
    EXPECT_EQ(back, value);
  }
  std::uint64_t value = 0;
  EXPECT_FALSE(Cursor(std::string(9, '\xff') + '\x02').varint(value));  // 65 bits
  EXPECT_FALSE(Cursor(std::string(11, '\x80')).varint(value));
  EXPECT_FALSE(Cursor("\x80").varint(value));
  EXPECT_EQ(unzigzag(zigzag(std::numeric_limits<std::int64_t>::min())),
            std::numeric_limits<std::int64_t>::min());
}

}  // namespace
}  // namespace teletensor::wire
