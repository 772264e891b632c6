// Tests that compare windows and loops with single instructions: equal bits, equal errors, and no
// memory left over.
#include "engine/runtime/programs/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/cpu_backend.h"
#include "engine/ops/op.h"
#include "engine/runtime/back/back.h"

namespace teletensor::runtime {
namespace {

using core::Attribute;
using core::Attributes;
using core::DType;
using core::Geometry;
using program::Operand;
using program::ValueRef;

// A host backend without loops.
class OneByOne final : public backends::cpu::CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  backends::LoopRole role(ops::OpId) const override { return backends::LoopRole::kNone; }
};

std::vector<std::unique_ptr<Device>> host(bool loops, std::uint64_t budget) {
  backends::KernelTable kernels = backends::cpu::make_kernels(ops::catalog());
  std::unique_ptr<backends::Backend> backend;
  if (loops) {
    backend = std::make_unique<backends::cpu::CpuBackend>(std::move(kernels));
  } else {
    backend = std::make_unique<OneByOne>(std::move(kernels));
  }
  std::vector<std::unique_ptr<Device>> all;
  all.push_back(std::make_unique<Device>(std::move(backend), budget, ops::catalog()));
  return all;
}

struct Tensor {
  ValueRef value;
  Geometry geometry;
  DType dtype() const { return value->dtype; }
};

// A session's back end, driven by the test.
class Client : public BackEvents {
 public:
  Client(bool loops, std::uint64_t budget = 64u << 20, int lanes = 2)
      : devices_(host(loops, budget)),
        lanes_(lanes),
        back_(ops::catalog(), devices_, lanes_, 1, 0, this) {}

  Tensor constant(const Geometry& geometry, DType dtype, std::string bytes) {
    Tensor t{core::make_ref<program::Value>(dtype, core::Device{}, geometry.numel()), geometry};
    back_.queue().constant(++seq_, t.geometry.shape, std::move(bytes), t.value);
    return t;
  }
  static Operand number(double x) {
    Operand operand;
    operand.kind = Operand::Kind::kNumber;
    operand.number = core::Number::of_float(x);
    return operand;
  }
  Operand operand(const Tensor& t) {
    return {Operand::Kind::kTensor, t.value, t.dtype(), nullptr, {}};
  }
  struct Argument {
    const Tensor* tensor = nullptr;
    double number = 0;
    Argument(const Tensor& t) : tensor(&t) {}
    Argument(double x) : number(x) {}
  };
  static bool accepts(const ops::OpDef& op, const std::vector<Argument>& arguments,
                      const Attributes& attributes) {
    std::vector<core::Layout> layouts(arguments.size());
    std::vector<core::Number> numbers(arguments.size());
    std::vector<ops::OperandInfo> infos(arguments.size());
    for (std::size_t k = 0; k < arguments.size(); ++k) {
      if (arguments[k].tensor != nullptr) {
        layouts[k] = {arguments[k].tensor->dtype(), {}, arguments[k].tensor->geometry};
        infos[k].layout = &layouts[k];
      } else {
        numbers[k] = core::Number::of_float(arguments[k].number);
        infos[k].number = &numbers[k];
      }
    }
    ops::InferContext context{.op = op.name,
                              .operands = infos,
                              .counts = {},
                              .attributes = attributes,
                              .device = {},
                              .results = {}};
    return op.infer(context).ok();
  }
  // If `inplace`, the first argument is rebound to the result.
  Tensor call(const char* name, const std::vector<Argument>& arguments, Attributes given = {},
              bool inplace = false) {
    const ops::OpDef& op = *ops::catalog().find(name);
    Attributes attributes = given;
    for (std::size_t p = static_cast<std::size_t>(op.operand_parameters) + given.size();
         p < op.parameters.size(); ++p) {
      attributes.push_back(op.parameters[p].fallback);
    }
    std::vector<core::Layout> layouts(arguments.size());
    std::vector<core::Number> numbers(arguments.size());
    std::vector<ops::OperandInfo> infos(arguments.size());
    program::Instruction& i = back_.queue().instruction(++seq_);
    for (std::size_t k = 0; k < arguments.size(); ++k) {
      if (arguments[k].tensor != nullptr) {
        const Tensor& t = *arguments[k].tensor;
        layouts[k] = {t.dtype(), {}, t.geometry};
        infos[k].layout = &layouts[k];
        i.operands.push_back({Operand::Kind::kTensor,
                              t.value,
                              t.dtype(),
                              back_.queue().interner().geometry(t.geometry),
                              {}});
      } else {
        numbers[k] = core::Number::of_float(arguments[k].number);
        infos[k].number = &numbers[k];
        i.operands.push_back(number(arguments[k].number));
      }
    }
    ops::InferContext context{.op = op.name,
                              .operands = infos,
                              .counts = {},
                              .attributes = attributes,
                              .device = {},
                              .results = {}};
    const core::Status status = op.infer(context);
    EXPECT_TRUE(status.ok()) << status.message();
    Tensor made;
    if (inplace) {
      const Tensor& t = *arguments[0].tensor;
      made = {core::make_ref<program::Value>(t.dtype(), core::Device{}, t.value->elements),
              t.geometry};
    } else {
      const core::Layout& layout = context.results[0];
      made = {core::make_ref<program::Value>(layout.dtype, core::Device{},
                                             layout.geometry.storage_end()),
              layout.geometry};
    }
    i.op = ops::catalog().id(op);
    i.attributes = back_.queue().interner().attributes(attributes);
    i.results.push_back(
        {made.value, back_.queue().interner().geometry(made.geometry), inplace ? 0 : -1});
    return made;
  }
  void fetch(const Tensor& t) {
    back_.queue().fetch(++seq_, true,
                        {Operand::Kind::kTensor,
                         t.value,
                         t.dtype(),
                         back_.queue().interner().geometry(t.geometry),
                         {}});
  }
  void publish() { back_.publish(seq_); }
  // Later entries run only once all of them are queued, so that windows are complete.
  void hold(const Tensor& t) {
    held_ = true;
    fetch(t);
    publish();
  }
  void finish() {
    publish();
    held_ = false;
    held_.notify_all();
    while (completed_ < seq_) std::this_thread::yield();
  }
  std::vector<std::string> take() {
    finish();
    return std::move(fetched_);
  }
  Back& back() { return back_; }
  std::uint64_t used() const { return back_.executor().pool(0).account().used(); }
  std::uint64_t peak() const { return back_.executor().pool(0).account().peak(); }
  std::uint64_t seq() const { return seq_; }
  std::vector<std::uint64_t> failed;

 private:
  void on_completed(std::uint64_t seq) override { completed_ = seq; }
  void on_fetched(FetchResult result) override {
    held_.wait(true);
    if (!result.status.ok()) return fetched_.push_back("error of " + std::to_string(result.root));
    fetched_.emplace_back(
        static_cast<const char*>(result.contents.storage->data()) + result.contents.offset,
        result.contents.bytes);
  }
  void on_failed(const program::Failure& root) override { failed.push_back(root.seq); }
  void on_continue() override {}

  Devices devices_;
  Lanes lanes_;
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> held_{false};
  std::vector<std::string> fetched_;
  std::uint64_t seq_ = 0;
  Back back_;
};

std::string random_bytes(std::mt19937& rng, std::int64_t n, DType dtype) {
  std::string bytes;
  const auto put = [&](auto x) { bytes.append(reinterpret_cast<const char*>(&x), sizeof x); };
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(rng() % 2000) / 500 - 2;
    if (dtype == DType::kF32) put(static_cast<float>(x));
    if (dtype == DType::kF64) put(x);
    if (dtype == DType::kI32) put(static_cast<std::int32_t>(rng()));
    if (dtype == DType::kBool) put(static_cast<std::uint8_t>(rng() % 2));
    if (dtype == DType::kBF16) put(static_cast<std::uint16_t>(0x3f00 + rng() % 512));
  }
  return bytes;
}

// Runs a random program determined by the seed. Tensors are dropped during the program, as Python
// does it.
std::vector<std::string> run(Client& client, unsigned seed, bool waits) {
  std::mt19937 rng(seed), waiting(seed);
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
  const core::Dims shapes[] = {{40, 300}, {5000}, {7}, {3, 1, 50}, {}, {260, 9}};
  const core::Dims shape = shapes[pick(6)];
  std::vector<Tensor> live;
  for (int k = 0; k < 4; ++k) {
    const DType dtype = pick(3) == 0 ? (pick(2) == 0 ? DType::kF64 : DType::kBF16) : DType::kF32;
    const Geometry geometry(shape);
    live.push_back(client.constant(geometry, dtype, random_bytes(rng, geometry.numel(), dtype)));
  }
  if (shape.size() == 2) {  // a row, a column, and a transposed tensor
    live.push_back(client.constant(Geometry({1, shape[1]}), DType::kF32,
                                   random_bytes(rng, shape[1], DType::kF32)));
    live.push_back(client.constant(Geometry({shape[0], 1}), DType::kF32,
                                   random_bytes(rng, shape[0], DType::kF32)));
    Tensor across = client.constant(Geometry({shape[1], shape[0]}), DType::kF32,
                                    random_bytes(rng, shape[0] * shape[1], DType::kF32));
    across.geometry = across.geometry.transpose(0, 1);
    live.push_back(across);
  }
  const auto fits = [&](const Tensor& t) { return t.geometry.shape == shape; };
  std::size_t fetches = 0;
  for (int step = 0; step < 60; ++step) {
    const Tensor a = live[pick(live.size())], b = live[pick(live.size())];
    if (!fits(a)) continue;
    Tensor made = a;
    const bool floating = core::is_floating(a.dtype());
    switch (pick(14)) {
      case 0:
        made = client.call("sin", {a});
        break;
      case 1:
        made = client.call("tanh", {a});
        break;
      case 2:
        made = client.call("add", {a, b}, {Attribute::of(pick(2) == 0 ? 1.0 : -0.5)});
        break;
      case 3:
        made = client.call("mul", {a, b});
        break;
      case 4:
        made = client.call("mul", {a, 0.25});
        break;
      case 5:
        made = client.call("cast", {a}, {Attribute::of(pick(2) == 0 ? DType::kF32 : DType::kBF16)});
        break;
      case 6: {
        const Tensor mask = client.call("gt", {a, 0.5});
        made = client.call("where", {mask, a, b});
        break;
      }
      case 7:
        made = client.call("relu", {a});
        break;
      case 8:
        if (floating && a.geometry.contiguous() && shape.size() > 0) {
          const Tensor sum = client.call(
              pick(2) == 0 ? "sum" : "mean", {a},
              {pick(2) == 0 ? Attribute::none() : Attribute::of(core::Dims{shape.size() - 1}),
               Attribute::of(pick(2) == 0)});
          client.fetch(sum);
        }
        break;
      case 9:
        made = client.call("gelu", {a});
        break;
      case 10:  // in place; other references keep the old value
        if (fits(b) && b.dtype() == a.dtype() && a.geometry.contiguous()) {
          made = client.call(pick(2) == 0 ? "mul" : "add", {a, b}, {}, true);
          for (Tensor& t : live) {
            if (t.value == a.value) t = made;
          }
        }
        break;
      case 11:
        if (shape.size() > 0) made = client.call("softmax", {a}, {Attribute::of(0)});
        break;
      case 12:
        made = client.call("amax", {a}, {Attribute::none(), Attribute::of(true)});
        made = client.call("sub", {a, made});
        break;
      default:
        client.fetch(a);
        ++fetches;
    }
    live.push_back(made);
    if (live.size() > 8) live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick(live.size())));
    if (waits && waiting() % 3 == 0) client.finish();
  }
  for (const Tensor& t : live) client.fetch(t);
  live.clear();
  return client.take();
}

TEST(Windows, RandomProgramsGiveTheBitsOfInstructionsOneByOne) {
  std::uint64_t loop_steps = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    Client plain(false), windows(true), cut(true);
    const std::vector<std::string> wanted = run(plain, seed, false);
    EXPECT_EQ(run(windows, seed, false), wanted) << "seed " << seed;
    EXPECT_EQ(run(cut, seed, true), wanted) << "seed " << seed << ", cut";
    EXPECT_EQ(windows.used(), 0u) << "seed " << seed;
    EXPECT_EQ(cut.used(), 0u) << "seed " << seed;
    loop_steps += windows.back().plan_stats().loop_steps;
  }
  EXPECT_GT(loop_steps, 600u);
}

// Tests every op that can be a step of a loop, between two other ops, for every dtype that it
// accepts.
TEST(Windows, EveryStepHasTheBitsOfItsKernel) {
  const ops::Catalog& catalog = ops::catalog();
  const backends::KernelTable kernels = backends::cpu::make_kernels(catalog);
  const DType dtypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kBool};
  std::size_t cases = 0, ops_seen = 0;
  Client without(false, 64u << 20, 1), with(true, 64u << 20, 1);
  for (std::size_t o = 0; o < catalog.size(); ++o) {
    const ops::OpDef& op = catalog.at(static_cast<ops::OpId>(o));
    if (kernels.role(static_cast<ops::OpId>(o)) != backends::LoopRole::kElement) continue;
    ++ops_seen;
    Attributes attributes;
    for (std::size_t p = static_cast<std::size_t>(op.operand_parameters); p < op.parameters.size();
         ++p) {
      attributes.push_back(op.parameters[p].type == ops::Parameter::Type::kDType
                               ? Attribute::of(DType::kF32)
                               : op.parameters[p].fallback);
    }
    for (const DType dtype : dtypes) {
      // The forms of operands: from inside the loop, a row from outside, a number.
      for (int form = 0; form < 4; ++form) {
        std::vector<std::string> got[2];
        bool taken = true;
        for (const bool loops : {false, true}) {
          Client& client = loops ? with : without;
          std::mt19937 rng(7);
          const Geometry geometry({9, 310});
          const bool condition = op.name == "where";
          const Tensor x = client.constant(geometry, dtype, random_bytes(rng, 2790, dtype));
          const Tensor row = client.constant(Geometry({310}), dtype, random_bytes(rng, 310, dtype));
          const Tensor mask =
              client.constant(geometry, DType::kBool, random_bytes(rng, 2790, DType::kBool));
          client.fetch(mask);  // ends the window
          client.take();
          const Tensor before = client.call("maximum", {x, x});
          const Tensor flags = client.call("logical_not", {mask});
          std::vector<Client::Argument> arguments;
          for (int k = 0; k < op.operand_parameters; ++k) {
            const bool flag = (condition && k == 0) || (op.name == "masked_fill" && k == 1);
            const auto type = op.parameters[static_cast<std::size_t>(k)].type;
            if (flag) {
              arguments.emplace_back(flags);
            } else if (k > 0 && form == 1) {
              arguments.emplace_back(row);
            } else if (k > 0 && form == 2 && type == ops::Parameter::Type::kOperand) {
              arguments.emplace_back(k == 1 ? 0.75 : 1.5);
            } else if (k > 0 && form == 3) {
              arguments.emplace_back(x);
            } else {
              arguments.emplace_back(before);
            }
          }
          if (!client.accepts(op, arguments, attributes)) {
            taken = false;
            break;
          }
          const Tensor made = client.call(op.name.c_str(), arguments, attributes);
          client.fetch(client.call("where", {flags, made, made}));
          got[loops] = client.take();
        }
        if (!taken) continue;
        ++cases;
        EXPECT_EQ(got[0] == got[1], true)
            << op.name << " of " << core::name_of(dtype) << ", form " << form;
      }
    }
  }
  EXPECT_GT(ops_seen, 70u);
  EXPECT_GT(cases, 400u);
  EXPECT_GT(with.back().plan_stats().loop_steps, cases * 3);
}

TEST(Windows, LittleMemoryChangesNoBit) {
  int failed = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    Client plain(false);
    const std::vector<std::string> wanted = run(plain, seed, false);
    Client tight(true, plain.peak() + (64u << 10));
    const std::vector<std::string> got = run(tight, seed, false);
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i].starts_with("error of")) {
        ++failed;
      } else {
        EXPECT_EQ(got[i], wanted[i]) << "seed " << seed;
      }
    }
    EXPECT_EQ(tight.used(), 0u);
  }
  EXPECT_LT(failed, 60);
}

TEST(Windows, ATrainingLoopPlansItsStepOnce) {
  Client client(true);
  std::mt19937 rng(1);
  const auto make = [&](const core::Dims& shape) {
    const Geometry geometry(shape);
    return client.constant(geometry, DType::kF32, random_bytes(rng, geometry.numel(), DType::kF32));
  };
  Tensor w = make({10, 10});
  const Tensor x = make({10, 10});
  client.finish();
  client.hold(x);
  for (int step = 0; step < 200; ++step) {
    const Tensor h = client.call("sigmoid", {client.call("matmul", {x, w})});
    const Tensor d = client.call("sub", {h, x});
    const Tensor loss = client.call("mean", {client.call("mul", {d, d})});
    const Tensor g = client.call("mul", {client.call("mul", {d, h}), 0.1 * step});
    w = client.call("sub", {w, client.call("matmul", {x, g})}, {}, true);
    client.fetch(loss);
  }
  client.finish();
  const PlanStats& stats = client.back().plan_stats();
  EXPECT_LE(stats.misses, 4u);
  EXPECT_GE(stats.hits, 190u);
  EXPECT_GE(stats.loop_steps, 3 * 190u);
}

TEST(Windows, WhatIsReadByALoopAloneTakesNoMemory) {
  const std::int64_t n = 1 << 20;
  const std::uint64_t one = static_cast<std::uint64_t>(n) * 4;
  for (const bool loops : {false, true}) {
    Client client(loops);
    std::mt19937 rng(1);
    Tensor a = client.constant(Geometry({n}), DType::kF32, random_bytes(rng, n, DType::kF32));
    client.finish();
    {
      const Tensor y = client.call("sin", {a}), z = client.call("cos", {a});
      const Tensor both = client.call("add", {client.call("mul", {y, z}), y});
      client.fetch(client.call("sum", {both}));
    }
    client.finish();
    EXPECT_EQ(client.peak() < 2 * one, loops) << client.peak();
  }
}

TEST(Windows, ALoopWritesOverWhatNobodyElseHolds) {
  const std::int64_t n = 1 << 18;
  Client client(true);
  std::mt19937 rng(1);
  Tensor a = client.constant(Geometry({n}), DType::kF32, random_bytes(rng, n, DType::kF32));
  client.finish();
  for (int k = 0; k < 20; ++k) {
    const Tensor b = client.call("mul", {a, 0.5}, {}, true);
    a = client.call("add", {b, 1.0}, {}, true);
  }
  client.fetch(a);
  client.finish();
  EXPECT_LE(client.peak(), static_cast<std::uint64_t>(n) * 4 * 3);
}

TEST(Windows, CancelledStepsOfAWindowFailOneByOne) {
  Client client(true);
  std::mt19937 rng(1);
  const Tensor a = client.constant(Geometry({64}), DType::kF32, random_bytes(rng, 64, DType::kF32));
  client.finish();
  const Tensor b = client.call("sin", {a});
  const std::uint64_t upto = client.seq();
  const Tensor c = client.call("cos", {a});
  const Tensor d = client.call("add", {b, c});
  client.fetch(c);
  client.fetch(d);
  client.back().cancel_upto(upto);
  const std::vector<std::string> got = client.take();
  EXPECT_EQ(got[0].size(), 256u);
  EXPECT_EQ(got[1], "error of " + std::to_string(upto));
  EXPECT_EQ(client.failed, std::vector<std::uint64_t>{upto});
}

// A window runs the additions below as a few loops, some of them after later products. Wherever it
// is interrupted, the commands that have run are the first ones: as many additions as products, or
// one less. An interrupted product itself does not count.
TEST(Windows, WhatHasRunWhenAWindowIsInterruptedAreTheFirstCommands) {
  std::mt19937 rng(1);
  for (int round = 0; round < 40; ++round) {
    Client client(true);
    const Geometry square({96, 96});
    const Tensor a = client.constant(square, DType::kF32, random_bytes(rng, 96 * 96, DType::kF32));
    Tensor sum = client.constant(Geometry({64}), DType::kF32, random_bytes(rng, 64, DType::kF32));
    client.hold(a);
    std::vector<Tensor> products, sums;
    for (int k = 0; k < 100; ++k) {
      products.push_back(client.call("matmul", {a, a}));
      sums.push_back(sum = client.call("add", {sum, 1.0}));
    }
    const std::uint64_t upto = client.seq();
    for (const Tensor& t : products) client.fetch(t);
    for (const Tensor& t : sums) client.fetch(t);
    const std::uint64_t pause = rng() % 4'000'000;  // ns; all commands together take about as long
    std::thread interrupts([&] {
      for (const std::uint64_t began = core::now_ns(); core::now_ns() - began < pause;) {
      }
      client.back().cancel_upto(upto);
    });
    const std::vector<std::string> got = client.take();
    interrupts.join();
    ASSERT_EQ(got.size(), 201u);  // the first one is that of hold()
    std::vector<bool> ran;
    for (int k = 0; k < 100; ++k) {
      for (const std::size_t at : {1 + k, 101 + k}) ran.push_back(!got[at].starts_with("error of"));
    }
    const auto first_left = std::find(ran.begin(), ran.end(), false);
    EXPECT_EQ(std::find(first_left, ran.end(), true), ran.end()) << round;
  }
}

}  // namespace
}  // namespace teletensor::runtime
