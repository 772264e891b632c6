// Tests sessions of thin clients, which do not know the rules of the ops. A command that the daemon
// refuses becomes a late error of the session.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/session/client_test.h"
#include "engine/session/session.h"

namespace teletensor::session {
namespace {

using core::Code;
using program::Apply;
using program::Argument;
using program::Command;
using program::HandleId;

// Counts commands and ids, and states how many ids each instruction takes.
class Thin : public ::testing::Test {
 protected:
  Thin() : session_(std::move(*daemon_.host->open({}, &listener_))) {}

  HandleId constant(core::Dims shape, std::vector<float> elements) {
    program::Constant constant{core::DType::kF32, {}, std::move(shape), {}};
    constant.bytes.resize(elements.size() * 4);
    std::memcpy(constant.bytes.data(), elements.data(), constant.bytes.size());
    return add(std::move(constant), 1);
  }
  HandleId add(Command command, std::uint32_t ids) {
    commands_.push_back(std::move(command));
    next_id_ += ids;
    return next_id_ - ids;
  }
  HandleId apply(std::string_view op, std::vector<HandleId> operands, std::uint32_t made = 1,
                 bool inplace = false, core::Attributes attributes = {}) {
    Apply apply;
    apply.op = ops::catalog().id(*ops::catalog().find(op));
    apply.record = true;
    apply.inplace = inplace;
    apply.made = made;
    for (const HandleId id : operands) apply.arguments.push_back(Argument::of(id));
    apply.attributes = std::move(attributes);
    return add(std::move(apply), made);
  }
  std::uint64_t last_seq() const { return next_seq_ + commands_.size() - 1; }
  engine::Fetched fetch(HandleId id, bool describe = false) {
    add(program::Fetch{id, false, describe}, 0);
    const std::uint64_t seq = last_seq();
    EXPECT_TRUE(send().ok());
    return listener_.fetched(seq);
  }
  std::vector<float> read(HandleId id) {
    const engine::Fetched fetched = fetch(id);
    EXPECT_TRUE(fetched.status.ok()) << fetched.status.message();
    std::vector<float> values(fetched.bytes.size() / 4);
    std::memcpy(values.data(), fetched.bytes.data(), fetched.bytes.size());
    return values;
  }
  core::Status send(bool thin = true) {
    std::promise<core::Status> done;
    const std::uint64_t first = next_seq_;
    next_seq_ += commands_.size();
    session_->submit(
        first, std::exchange(frame_id_, next_id_), std::exchange(commands_, {}),
        [&](core::Status status) { done.set_value(std::move(status)); }, thin);
    return done.get_future().get();
  }
  // Waits until all commands have run, and returns the late errors.
  std::vector<engine::LateError> errors() {
    EXPECT_TRUE(send().ok());
    listener_.completed(next_seq_ - 1);
    return listener_.take_errors();
  }

  testing::Daemon daemon_;
  testing::Listener listener_;
  std::unique_ptr<engine::Session> session_;
  std::vector<Command> commands_;
  std::uint64_t next_seq_ = 1;
  HandleId next_id_ = 1, frame_id_ = 1;
};

TEST_F(Thin, AWrongShapeFailsTheIdsOfItsCommandAndWhatDependsOnThem) {
  const HandleId a = constant({2}, {1, 2}), b = constant({3}, {1, 2, 3});
  const HandleId bad = apply("matmul", {a, b});
  const std::uint64_t root = last_seq();
  const HandleId after = apply("neg", {bad}), good = apply("neg", {a});
  const engine::Fetched fetched = fetch(after);
  EXPECT_EQ(fetched.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(fetched.root, root);
  EXPECT_EQ(read(good), (std::vector<float>{-1, -2}));
  const auto told = errors();
  ASSERT_EQ(told.size(), 1u);  // one error, and none for the commands that depend on its result
  EXPECT_EQ(told[0].root, root);
  EXPECT_NE(told[0].status.message().find("matmul"), std::string::npos);
}

TEST_F(Thin, OtherRefusals) {
  const HandleId a = constant({2}, {1, 2});
  std::vector<std::uint64_t> roots;
  const auto refused = [&](HandleId id, Code code) {
    const std::uint64_t root = last_seq();
    roots.push_back(root);
    const engine::Fetched fetched = fetch(id);
    EXPECT_EQ(fetched.status.code(), code) << fetched.status.message();
    EXPECT_EQ(fetched.root, root);
  };
  refused(apply("neg", {}), Code::kInvalidArgument);
  refused(apply("neg", {a}, 2), Code::kInvalidArgument);  // makes one tensor and declares two ids
  refused(apply("neg", {99}), Code::kNotFound);
  refused(add(program::Constant{core::DType::kF32, {}, {3}, "1234"}, 1), Code::kInvalidArgument);
  refused(add(program::Uploaded{77, core::DType::kF32, {}, {3}}, 1), Code::kNotFound);
  // The number of elements is 2^65, which is 0 modulo 2^64.
  const core::Dims huge{std::int64_t{1} << 62, 8};
  refused(add(program::Constant{core::DType::kF32, {}, huge, ""}, 1), Code::kInvalidArgument);
  refused(add(program::Uploaded{77, core::DType::kF32, {}, huge}, 1), Code::kInvalidArgument);
  refused(add(program::Refused{Code::kUnimplemented, "no op", 3}, 3), Code::kUnimplemented);
  refused(add(program::Call{5, {}, {}, 0, 0, 2, 0, {}}, 2), Code::kNotFound);
  EXPECT_EQ(errors().size(), roots.size());
  EXPECT_EQ(read(apply("neg", {a})), (std::vector<float>{-1, -2}));
}

// The ids of a refused command keep the text of its error, which is charged to the session until
// the ids are released.
TEST_F(Thin, TextsOfRefusalsAreCharged) {
  constexpr int kCount = 3000;
  constexpr std::size_t kText = 4000;
  const HandleId first = next_id_;
  for (int i = 0; i < kCount; ++i) {
    add(program::Refused{Code::kUnimplemented, std::string(kText, 'x'), 1}, 1);
    if (i % 100 == 0) {
      EXPECT_TRUE(send().ok());
    }
  }
  const std::vector<engine::LateError> told = errors();
  ASSERT_EQ(told.size(), static_cast<std::size_t>(kCount));
  for (const engine::LateError& error : told) add(program::Raise{error.root}, 0);
  EXPECT_TRUE(errors().empty());
  EXPECT_GE(daemon_.used(testing::kHostDevice), kCount * kText - Charge::kFree);
  program::Release release;
  for (int i = 0; i < kCount; ++i) release.handles.push_back(first + static_cast<HandleId>(i));
  add(std::move(release), 0);
  EXPECT_TRUE(errors().empty());
  EXPECT_TRUE(errors().empty());
  EXPECT_EQ(daemon_.used(testing::kHostDevice), 0u);
}

TEST_F(Thin, AFetchOfAnUnknownHandleIsAnsweredWithItsError) {
  const engine::Fetched fetched = fetch(50);
  EXPECT_EQ(fetched.status.code(), Code::kNotFound);
  EXPECT_EQ(fetched.root, fetched.seq);
}

TEST_F(Thin, WhatWasToBeWrittenFailsUntilTheErrorIsRaised) {
  const HandleId a = constant({2}, {1, 2}), b = constant({3}, {1, 2, 3});
  apply("add", {a, b}, 0, true);
  const std::uint64_t root = last_seq();
  EXPECT_EQ(fetch(a).root, root);
  add(program::Raise{root}, 0);
  EXPECT_EQ(read(a), (std::vector<float>{1, 2}));
}

TEST_F(Thin, ABackwardThatIsRefusedFailsItsGradients) {
  const HandleId a = constant({2}, {1, 2});
  add(program::SetFlag{program::SetFlag::What::kRequiresGrad, a, true}, 0);
  const HandleId square = apply("mul", {a, a});  // not a scalar, so its backward is refused
  program::Backward backward;
  backward.roots = {square};
  backward.seeds = {0};
  backward.inputs = {a};
  backward.has_inputs = true;
  backward.made = 1;
  const HandleId bad = add(backward, 1);
  EXPECT_EQ(fetch(bad).status.code(), Code::kInvalidArgument);
  const HandleId sum = apply("sum", {square});
  backward.roots = {sum};
  backward.retain_graph = true;
  const HandleId good = add(backward, 1);
  EXPECT_EQ(read(good), (std::vector<float>{2, 4}));
  backward.made = 3;  // declares more ids than it makes tensors; the remaining ids fail
  const HandleId surplus = add(backward, 3);
  EXPECT_EQ(read(surplus), (std::vector<float>{2, 4}));
  EXPECT_EQ(fetch(surplus + 2).status.code(), Code::kInvalidArgument);
}

TEST_F(Thin, AttributesThatAreLeftOutHaveTheirDefaults) {
  const HandleId a = constant({2}, {1, 2});
  EXPECT_EQ(read(apply("sum", {a})), std::vector<float>{3});
  core::Attributes size;
  size.push_back(core::Attribute::of(core::Dims{4}));
  const HandleId one = apply("rand", {}, 1, false, size), two = apply("rand", {}, 1, false, size);
  const std::vector<float> first = read(one), second = read(two);
  EXPECT_EQ(first.size(), 4u);
  EXPECT_NE(first, second);  // each command has an ordinal of its own
}

TEST_F(Thin, AFetchDescribes) {
  const HandleId a = constant({2, 3}, {1, 2, 3, 4, 5, 6});
  add(program::SetFlag{program::SetFlag::What::kRequiresGrad, a, true}, 0);
  core::Attributes dims;
  dims.push_back(core::Attribute::of(std::int64_t{0}));
  dims.push_back(core::Attribute::of(std::int64_t{1}));
  const HandleId turned = apply("transpose", {a}, 1, false, dims);
  const engine::Fetched fetched = fetch(turned, true);
  ASSERT_TRUE(fetched.description);
  EXPECT_EQ(fetched.shape, (core::Dims{3, 2}));
  EXPECT_EQ(fetched.description->strides, (core::Dims{1, 3}));
  EXPECT_TRUE(fetched.description->requires_grad);
  EXPECT_TRUE(fetched.bytes.empty());
}

TEST_F(Thin, AnotherClientsRefusalEndsTheSession) {
  const HandleId a = constant({2}, {1, 2}), b = constant({3}, {1, 2, 3});
  apply("matmul", {a, b});
  EXPECT_EQ(send(false).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace teletensor::session
