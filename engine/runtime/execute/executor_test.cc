#include "engine/runtime/execute/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/runtime/execute/instruction_memory.h"
#include "engine/runtime/kit_test.h"

namespace teletensor::runtime {
namespace {

using namespace testing;  // for the helpers of kit_test.h
using program::Instruction;
using program::ValueRef;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest()
      : lanes(2),
        lock_wait(lanes),
        executor(kit_catalog(), box.devices, lanes, 1, 0, lock_wait, groups),
        strand(1) {}

  // Returns a value with these elements on the simulated device.
  ValueRef make(const core::Dims& shape, std::vector<float> elements) {
    ValueRef value = value_of(shape);
    const std::string_view bytes(reinterpret_cast<const char*>(elements.data()),
                                 elements.size() * sizeof(float));
    EXPECT_EQ(executor.bind(*value, bytes, nullptr, 1), nullptr);
    return value;
  }
  FailureRef run(Instruction instruction) { return executor.run(instruction, &root); }
  std::uint64_t used() const { return executor.pool(1).account().used(); }
  static void* data(const ValueRef& value) {
    return static_cast<memory::Storage*>(value->contents.get())->data();
  }

  Box box;
  Lanes lanes;
  LockWait lock_wait;
  SessionGroups groups{nullptr};
  Executor executor;
  memory::SessionTaskScope strand;
  bool root = false;
};

TEST_F(ExecutorTest, ComputesAndFreesEverything) {
  {
    const ValueRef a = make({2, 2}, {1, 2, 3, 4}), sum = value_of({2, 2});
    EXPECT_EQ(run(apply(2, "add", {whole(a, {2, 2}), number(0.5)}, sum, {2, 2})), nullptr);
    EXPECT_THAT(floats(*sum), ElementsAre(1.5, 2.5, 3.5, 4.5));
    EXPECT_EQ(used(), 512u);
  }
  EXPECT_EQ(used(), 0u);
}

TEST_F(ExecutorTest, FailureTravelsWithItsRootAndKeepsTheGoodValue) {
  ValueRef a = make({2}, {1, 2});
  const ValueRef b = value_of({2}), c = value_of({2}), d = value_of({2}), e = value_of({2});
  const FailureRef failure = run(apply(7, "refuse", {whole(a, {2})}, b, {2}));
  ASSERT_NE(failure, nullptr);
  EXPECT_TRUE(root);
  EXPECT_EQ(failure->seq, 7u);
  EXPECT_EQ(run(apply(8, "add", {whole(a, {2}), whole(b, {2})}, c, {2})), failure);
  EXPECT_FALSE(root);
  EXPECT_EQ(c->failure, failure);
  EXPECT_FALSE(c->good);  // it replaced no value
  EXPECT_EQ(run(overwrite(9, "add", {whole(a, {2}), whole(c, {2})}, d)), failure);
  EXPECT_EQ(d->good, a);
  EXPECT_EQ(run(overwrite(10, "add", {whole(d, {2}), number(1)}, e)), failure);
  EXPECT_EQ(e->good, a);  // the last good value, not the failed one in between
  EXPECT_THAT(floats(*a), ElementsAre(1, 2));
}

TEST_F(ExecutorTest, ExceptionsAndMissingKernelsAreFailures) {
  const ValueRef a = make({2}, {1, 2});
  EXPECT_EQ(run(apply(2, "explode", {whole(a, {2})}, value_of({2}), {2}))->status.code(),
            core::Code::kResourceExhausted);
  const FailureRef absent = run(apply(3, "absent", {whole(a, {2})}, value_of({2}), {2}));
  EXPECT_EQ(absent->status.code(), core::Code::kUnimplemented);
  EXPECT_THAT(absent->status.message(), HasSubstr("absent: not available on sim:0"));
  const ValueRef nowhere = value_of({2}, {core::DeviceKind::kCuda, 0});
  EXPECT_THAT(run(apply(4, "clone", {whole(a, {2})}, nowhere, {2}))->status.message(),
              HasSubstr("no cuda:0"));
  EXPECT_EQ(used(), 256u);
}

TEST_F(ExecutorTest, OverwritingTakesOverTheStorageOfAnUnheldValue) {
  ValueRef a = make({4}, {1, 2, 3, 4});
  void* before = data(a);
  const ValueRef b = value_of({4});
  Instruction i = overwrite(2, "add", {whole(a, {4}), number(1)}, b);
  a = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  EXPECT_EQ(data(b), before);
  EXPECT_FALSE(i.operands[0].value->contents);
  EXPECT_THAT(floats(*b), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(executor.copied_bytes(), 0u);
}

TEST_F(ExecutorTest, OverwritingCopiesForAHolder) {
  const ValueRef a = make({4}, {1, 2, 3, 4}), b = value_of({4});
  const core::Geometry part = core::Geometry({4}).slice(0, 1, 2, 1);
  EXPECT_EQ(run(overwrite(2, "add", {view(a, part), number(10)}, b)), nullptr);
  EXPECT_THAT(floats(*a), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(floats(*b), ElementsAre(1, 12, 13, 4));
  EXPECT_EQ(executor.copied_bytes(), 16u);
  // If everything is replaced, nothing is copied.
  const ValueRef c = value_of({4});
  EXPECT_EQ(run(overwrite(3, "add", {whole(a, {4}), number(1)}, c)), nullptr);
  EXPECT_THAT(floats(*c), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(executor.copied_bytes(), 16u);
}

TEST_F(ExecutorTest, OperandsCrossTheOverwrittenRegion) {
  // x[1:] += x[:-1] reads the old elements; the same view on both sides needs no copy.
  ValueRef a = make({4}, {1, 2, 3, 4});
  const core::Geometry all({4}), high = all.slice(0, 1, 3, 1), low = all.slice(0, 0, 3, 1);
  ValueRef b = value_of({4});
  Instruction i = overwrite(2, "add", {view(a, high), view(a, low)}, b);
  a = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  i = {};
  EXPECT_THAT(floats(*b), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(executor.copied_bytes(), 12u);
  ValueRef c = value_of({4});
  i = overwrite(3, "add", {view(b, high), view(b, high)}, c);
  b = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  i = {};
  EXPECT_THAT(floats(*c), ElementsAre(1, 6, 10, 14));
  // x += x[0] expanded: the repeated element is copied only once.
  const ValueRef d = value_of({4});
  i = overwrite(4, "add", {view(c, all), view(c, core::Geometry({4}, {0}, 1))}, d);
  c = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  EXPECT_THAT(floats(*d), ElementsAre(7, 12, 16, 20));
  EXPECT_EQ(executor.copied_bytes(), 16u);
}

TEST_F(ExecutorTest, ATemporaryKeepsKernelAndOperandApart) {
  ValueRef a = make({2, 2}, {1, 2, 3, 4});
  const core::Geometry column = core::Geometry({2, 2}).select(1, 1);
  ValueRef b = value_of({2, 2});
  Instruction i = overwrite(2, "total", {view(a, column), view(a, column)}, b);
  a = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  i = {};
  EXPECT_THAT(floats(*b), ElementsAre(1, 6, 3, 6));
  EXPECT_EQ(used(), 256u);
  const ValueRef c = value_of({2, 2});
  i = overwrite(3, "total", {whole(b, {2, 2}), whole(b, {2, 2})}, c);
  b = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  EXPECT_THAT(floats(*c), Each(16));
}

TEST_F(ExecutorTest, AThousandRowWritesCopyNothingWithoutAHolder) {
  const core::Dims shape{1000, 256};
  ValueRef x = make(shape, std::vector<float>(256000, 0));
  const ValueRef first = x;
  auto write_rows = [&] {
    const std::uint64_t before = executor.copied_bytes() + box.faults().copied_bytes();
    for (int row = 0; row < 1000; ++row) {
      ValueRef next = value_of(shape);
      Instruction i = overwrite(2, "put_row", {whole(x, shape), number(row)}, next);
      i.attributes = interned(core::Attributes{core::Attribute::of(row)});
      x = next;
      EXPECT_EQ(executor.run(i, &root), nullptr);
    }
    return executor.copied_bytes() + box.faults().copied_bytes() - before;
  };
  // `first` refers to the old value, so that it is copied once; later versions have no other
  // reference.
  EXPECT_EQ(write_rows(), 2u * 256000 * 4);  // counted by the executor and the device
  EXPECT_EQ(write_rows(), 0u);
  EXPECT_EQ(floats(*x)[999 * 256 + 255], 999);
  EXPECT_THAT(floats(*first), Each(0));
}

TEST_F(ExecutorTest, OutOfPlaceRegionsStartAsOperandZero) {
  const ValueRef a = make({2, 2}, {1, 2, 3, 4}), b = value_of({2, 2});
  Instruction i =
      apply(2, "put_row", {view(a, core::Geometry({2, 2}).transpose(0, 1)), number(9)}, b, {2, 2});
  i.attributes = interned(core::Attributes{core::Attribute::of(0)});
  EXPECT_EQ(executor.run(i, &root), nullptr);
  EXPECT_THAT(floats(*b), ElementsAre(9, 9, 2, 4));
  EXPECT_THAT(floats(*a), ElementsAre(1, 2, 3, 4));
}

TEST_F(ExecutorTest, ALastReferenceGivesItsMemoryToTheResult) {
  const core::Dims shape{128, 256};
  ValueRef a = make(shape, std::vector<float>(128 * 256, 2));
  void* before = data(a);
  const ValueRef b = value_of(shape);
  Instruction i = apply(2, "add", {whole(a, shape), number(1)}, b, shape);
  a = nullptr;
  EXPECT_EQ(executor.run(i, &root), nullptr);
  EXPECT_EQ(data(b), before);
  EXPECT_THAT(floats(*b), Each(3));
  EXPECT_EQ(used(), 128u * 256 * 4);
}

TEST_F(ExecutorTest, CopiesBetweenDevicesInTheResultsOrder) {
  const ValueRef a = make({2, 2}, {1, 2, 3, 4});
  const ValueRef host = value_of({2, 2}, kHost), back = value_of({2, 2});
  EXPECT_EQ(
      run(apply(2, "to_device", {view(a, core::Geometry({2, 2}).transpose(0, 1))}, host, {2, 2})),
      nullptr);
  EXPECT_THAT(floats(*host), ElementsAre(1, 3, 2, 4));
  EXPECT_EQ(run(apply(3, "to_device", {whole(host, {2, 2})}, back, {2, 2})), nullptr);
  EXPECT_THAT(floats(*back), ElementsAre(1, 3, 2, 4));
  EXPECT_EQ(executor.pool(0).account().used(), 256u);
  // Only to_device accepts operands on another device.
  EXPECT_THAT(run(apply(4, "add", {whole(host, {2, 2}), number(1)}, value_of({2, 2}), {2, 2}))
                  ->status.message(),
              HasSubstr("operand 0 is on cpu, the result on sim:0"));
}

TEST_F(ExecutorTest, OutOfMemoryFailsOneInstructionWithTheFacts) {
  const core::Dims big{3000, 3000};  // 36 MB of 64 MiB
  const ValueRef a = value_of(big), b = value_of(big), c = value_of(big), s = make({1}, {1});
  EXPECT_EQ(run(apply(5, "add", {whole(s, {1}), number(1)}, a, big)), nullptr);
  const FailureRef failure = run(apply(6, "clone", {whole(a, big)}, b, big));
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.code(), core::Code::kResourceExhausted);
  EXPECT_THAT(failure->status.message(),
              HasSubstr("clone: out of memory on sim:0: requested 34.3 MiB"));
  EXPECT_THAT(failure->status.message(), HasSubstr("34.3 MiB made by command 5"));
  // A size that exceeds any memory.
  const ValueRef huge =
      core::make_ref<program::Value>(core::DType::kF64, kSim, std::int64_t{1} << 62);
  Instruction i = apply(7, "clone", {whole(s, {1})}, huge, {1});
  EXPECT_EQ(executor.run(i, &root)->status.code(), core::Code::kResourceExhausted);
  EXPECT_NE(run(apply(8, "add", {whole(a, big), number(1)}, c, big)), nullptr);
  EXPECT_EQ(run(apply(9, "add", {whole(s, {1}), number(1)}, value_of({1}), {1})), nullptr);
}

TEST_F(ExecutorTest, ALostDeviceThatRefusesMemoryIsNamed) {
  const ValueRef a = make({2}, {1, 2});
  const auto code_of = [&](const char* name) {
    return run(apply(2, name, {whole(a, {2})}, value_of({2}), {2}))->status.code();
  };
  const core::Status no_room(core::Code::kResourceExhausted, "no room");
  box.faults().fail_allocation(1, no_room, true);
  EXPECT_EQ(code_of("clone"), core::Code::kResourceExhausted);
  box.faults().lose_device(core::Status(core::Code::kUnavailable, "sim:0 is lost"));
  EXPECT_EQ(code_of("clone"), core::Code::kUnavailable);
  box.faults().fail_allocation(0, {});
  EXPECT_EQ(code_of("refuse"), core::Code::kInvalidArgument);  // another error stays as it is
}

TEST_F(ExecutorTest, AKernelIsTriedAgainOnlyIfItLackedMemoryThatItAskedFor) {
  constexpr std::size_t kMost = 40u << 20;  // of 64 MiB
  InstructionMemory memory(box.devices, 2, 0), other(box.devices, 3, 0);
  InstructionMemory::StorageRef held;
  ASSERT_TRUE(other.allocate(1, "other", kMost, 1, &held).ok());
  const core::Status none(core::Code::kResourceExhausted, "a kernel has no memory");
  memory.set_patient(true);
  memory.set_open(true);  // so that it may wait on every device
  memory.begin_attempt();
  EXPECT_FALSE(memory.has_starved(none));  // it asked for none
  EXPECT_FALSE(memory.allocate_scratch(1, kMost, 2));
  EXPECT_FALSE(memory.has_starved(core::invalid("another error")));
  EXPECT_FALSE(memory.has_starved(none));  // that request was of another instruction
  EXPECT_FALSE(memory.allocate_scratch(1, kMost, 3));
  EXPECT_TRUE(memory.has_starved(none));
  EXPECT_EQ(memory.take_need().bytes.at(1), kMost);
}

TEST_F(ExecutorTest, ScratchIsChargedAndFreed) {
  const ValueRef a = make({2}, {1, 2}), b = value_of({2});
  Instruction i = apply(2, "scratchy", {whole(a, {2})}, b, {2});
  i.attributes = interned(core::Attributes{core::Attribute::of(std::int64_t{60} << 20)});
  EXPECT_EQ(executor.run(i, &root), nullptr);
  EXPECT_GT(executor.pool(1).account().peak(), 60u << 20);
  EXPECT_EQ(used(), 512u);
  i = apply(3, "scratchy", {whole(a, {2})}, value_of({2}), {2});
  i.attributes = interned(core::Attributes{core::Attribute::of(std::int64_t{65} << 20)});
  EXPECT_THAT(executor.run(i, &root)->status.message(), HasSubstr("scratchy: no 68157440 bytes"));
  EXPECT_EQ(used(), 512u);
}

// Fails the k-th instruction, then the k-th allocation, for every k: the program's other values are
// correct, overwritten values have their last good contents, and no memory leaks.
TEST_F(ExecutorTest, FaultSweep) {
  auto program = [&](int* failures) {
    *failures = 0;
    const core::Dims shape{3};
    ValueRef x = make(shape, {1, 2, 3});
    const ValueRef kept = x;
    std::vector<float> expected{1, 2, 3};
    for (int step = 0; step < 6; ++step) {
      ValueRef next = value_of(shape);
      Instruction i = overwrite(10 + step, step % 3 == 2 ? "total" : "add",
                                {whole(x, shape), whole(kept, shape)}, next);
      x = nullptr;
      const bool failed = executor.run(i, &root) != nullptr;
      *failures += failed;
      x = failed ? ValueRef(next->good) : next;  // as a Raise does
      if (!failed) {
        for (int k = 0; k < 3; ++k) {
          expected[k] = step % 3 == 2 ? 6 : expected[k] + static_cast<float>(k + 1);
        }
      }
      i = {};
      EXPECT_EQ(floats(*x), expected);
      EXPECT_THAT(floats(*kept), ElementsAre(1, 2, 3));
    }
  };
  int failures;
  program(&failures);
  ASSERT_EQ(failures, 0);
  const core::Status fault(core::Code::kUnavailable, "injected");
  for (std::uint64_t k = 1; k <= 6; ++k) {
    box.faults().fail_instruction(k, fault);
    program(&failures);
    EXPECT_EQ(failures, 1) << k;
  }
  box.faults().fail_instruction(0, {});
  for (std::uint64_t k = 2; k <= 4; ++k) {  // the first allocation is for the constant
    box.faults().fail_allocation(k, fault);
    program(&failures);
    EXPECT_EQ(failures, 1) << k;
  }
  EXPECT_EQ(used(), 0u);
}

TEST_F(ExecutorTest, NullModeComputesNothing) {
  backends::sim::SimBackend null(kit_kernels(), 1, true);
  int memory = 5;
  const core::Geometry one({1});
  const backends::TensorArg arg{
      backends::TensorArg::Kind::kTensor, &memory, core::DType::kI32, &one, {}};
  core::Attributes attributes;
  struct : backends::Scratch {
    void* allocate(std::size_t) override { return nullptr; }
  } scratch;
  struct : backends::Parallel {
    void run(std::int64_t, const std::function<void(std::int64_t)>&) override {}
  } parallel;
  backends::KernelCall call{
      kit_catalog().at(op("refuse")), {&arg, 1}, {&arg, 1}, {}, attributes, parallel, scratch};
  EXPECT_TRUE(null.find(op("refuse"))(call).ok());
  EXPECT_EQ(memory, 5);
}

}  // namespace
}  // namespace teletensor::runtime
