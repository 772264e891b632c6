// Tests that a session with templates has the same values, handles, memory and errors as a session
// without them, for programs whose loops repeat, and change at random lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "engine/session/client_test.h"

namespace teletensor::session {
namespace {

using namespace testing;  // for Client
using core::Attribute;

const core::Attributes kOne{Attribute::of(1.0)};

// A client whose instructions reach its session as program::Repeated once they were sent twice, as
// those of a frame do.
class Repeater {
 public:
  Repeater(Daemon& daemon, bool templates, std::uint64_t quota = 0,
           const program::Amounts& limits = program::kUsualLimits)
      : client(daemon, kHostDevice, quota, limits, templates) {}

  HandleId apply(std::string_view op, std::vector<Argument> arguments,
                 core::Attributes attributes = {}, bool record = false) {
    program::Repeated repeated;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      repeated.handles[i] = std::exchange(arguments[i].handle, 0);
    }
    program::Apply apply = apply_of(op, std::move(arguments), std::move(attributes), record);
    for (auto& [known, sent] : known_) {
      if (!(known->apply == apply)) continue;
      if (++sent < 2) break;
      repeated.known = known;
      client.add(std::move(repeated));
      return client.name();
    }
    for (std::size_t i = 0; i < apply.arguments.size(); ++i) {
      apply.arguments[i].handle = repeated.handles[i];
    }
    client.add(apply);
    for (program::Argument& argument : apply.arguments) argument.handle = 0;
    const auto same = [&](const auto& each) { return each.first->apply == apply; };
    if (std::none_of(known_.begin(), known_.end(), same)) {
      known_.emplace_back(core::make_ref<const program::KnownApply>(std::move(apply)), 0);
    }
    return client.name();
  }
  std::uint64_t repeated() const { return client.session->load().repeated; }

  Client client;

 private:
  std::vector<std::pair<core::Ref<const program::KnownApply>, int>> known_;
};

// x = x * b + a, with the releases of a client.
struct Chain {
  explicit Chain(Repeater& repeater, int size = 8)
      : repeater(repeater),
        a(repeater.client.constant({size}, std::vector<float>(static_cast<std::size_t>(size), 1))),
        b(repeater.client.constant({size},
                                   std::vector<float>(static_cast<std::size_t>(size), 0.5f))),
        x(repeater.client.constant({size}, std::vector<float>(static_cast<std::size_t>(size), 3))) {
  }
  void run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      step(repeater.apply("mul", {h(x), h(b)}));
      step(repeater.apply("add", {h(x), h(a)}, kOne));
    }
  }
  void step(HandleId next) {
    released.push_back(std::exchange(x, next));
    if (released.size() == 8) repeater.client.release(std::exchange(released, {}));
  }
  Repeater& repeater;
  HandleId a, b, x;
  std::vector<HandleId> released;
};

TEST(Template, AChainIsRecognised) {
  Daemon daemon;
  Repeater with(daemon, true), without(daemon, false);
  Chain one(with), two(without);
  for (int frame = 0; frame < 20; ++frame) {
    for (Chain* chain : {&one, &two}) {
      chain->run(37);
      ASSERT_TRUE(chain->repeater.client.send().ok());
    }
  }
  EXPECT_EQ(with.client.read(one.x), without.client.read(two.x));
  EXPECT_GT(with.repeated(), 20u * 37);
  EXPECT_EQ(without.repeated(), 0u);
  EXPECT_EQ(with.client.session->handles(), without.client.session->handles());
}

TEST(Template, TensorsOfALoopThatIsLeftAreFreed) {
  Daemon daemon;
  Repeater with(daemon, true);
  Chain chain(with);
  for (int frame = 0; frame < 40; ++frame) {
    chain.run(100);
    ASSERT_TRUE(with.client.send().ok());
  }
  EXPECT_GT(with.repeated(), 0u);
  chain.released.insert(chain.released.end(), {chain.a, chain.b, chain.x});
  with.client.release(chain.released);
  with.client.synchronize();
  EXPECT_EQ(with.client.used(), 0u);
  EXPECT_EQ(with.client.session->handles(), 0u);
}

// An operand that has failed: each result has that error, and no other error is reported.
TEST(Template, AFailedOperandIsPassedOnWithItsRoot) {
  for (const bool templates : {true, false}) {
    Daemon daemon;
    Repeater repeater(daemon, templates);
    Client& client = repeater.client;
    Chain chain(repeater);
    chain.run(100);
    ASSERT_TRUE(client.send().ok());
    const HandleId index = client.constant({8}, {0, 1, 2, 3, 4, 5, 6, 900});
    const HandleId whole = client.apply("cast", {h(index)}, {Attribute::of(core::DType::kI64)});
    const HandleId failed =
        client.apply("index_select", {h(chain.x), h(whole)}, {Attribute::of(0)});
    const std::uint64_t root = client.last_seq();
    const HandleId before = chain.x;
    chain.x = failed;
    chain.run(100);
    const std::uint64_t repeated = repeater.repeated();
    EXPECT_TRUE(client.read(chain.x).empty());
    EXPECT_EQ(repeater.repeated() > repeated, templates);
    EXPECT_EQ(client.last.root, root);
    const auto errors = client.listener.take_errors();
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(errors[0].root, root);
    client.raise(root);
    chain.x = before;
    chain.run(100);
    EXPECT_EQ(client.read(chain.x)[0], 2);
  }
}

// Commands of a repetition up to a number inside it are cancelled, and the others run.
TEST(Template, AnInterruptReachesIntoARepetition) {
  for (const bool templates : {true, false}) {
    Daemon daemon(256u << 20, 1);
    Repeater repeater(daemon, templates);
    Client& client = repeater.client;
    Chain chain(repeater);
    chain.run(100);
    client.synchronize();
    const std::uint64_t first = client.last_seq() + 1;
    std::vector<HandleId> made;
    for (int i = 0; i < 64; ++i) {
      made.push_back(repeater.apply("mul", {h(chain.b), h(chain.b)}));
      made.push_back(repeater.apply("add", {h(made.back()), h(chain.a)}, kOne));
    }
    // The session learns the instructions, and then repeats them after the interrupt.
    ASSERT_TRUE(client.send().ok());
    client.session->interrupt(first + 1000);
    client.synchronize();
    made.clear();
    const std::uint64_t next = client.last_seq() + 1;
    ASSERT_LT(next, first + 1000);
    const std::uint64_t repeated = repeater.repeated();
    for (std::uint64_t seq = next; seq < first + 1100; seq += 2) {
      made.push_back(repeater.apply("mul", {h(chain.b), h(chain.b)}));
      made.push_back(repeater.apply("add", {h(made.back()), h(chain.a)}, kOne));
    }
    client.synchronize();
    EXPECT_EQ(repeater.repeated() > repeated, templates);
    for (std::size_t i = 0; i < made.size(); ++i) {
      // An addition reads the product in front of it.
      const std::uint64_t seq = next + i, reads = i % 2 == 0 ? seq : seq - 1;
      const std::vector<float> value = client.read(made[i]);
      if (reads <= first + 1000) {
        EXPECT_EQ(client.last.status.code(), core::Code::kCancelled) << seq;
      } else {
        EXPECT_EQ(value[0], i % 2 == 0 ? 0.25f : 1.25f) << seq;
      }
    }
  }
}

// A session without memory for the results of a repetition.
TEST(Template, OutOfMemoryIsReportedForAnInstruction) {
  for (const bool templates : {true, false}) {
    Daemon daemon;
    Repeater repeater(daemon, templates, 256 << 10);
    Client& client = repeater.client;
    Chain chain(repeater, 1024);
    chain.run(200);
    client.synchronize();
    std::vector<HandleId> kept;
    for (int i = 0; i < 300; ++i) {
      kept.push_back(repeater.apply(i % 2 == 0 ? "mul" : "add", {h(chain.x), h(chain.b)},
                                    i % 2 == 0 ? core::Attributes() : kOne));
    }
    client.synchronize();
    std::size_t failed = 0;
    std::vector<HandleId> released = kept;
    for (const HandleId each : kept) failed += client.read(each).empty();
    EXPECT_GT(failed, 0u);
    EXPECT_LT(failed, 300u);
    EXPECT_EQ(client.listener.take_errors().size(), failed);
    client.release(released);
    client.synchronize();
    EXPECT_EQ(repeater.client.used() / 1024, 4096 * 3 / 1024 + 4 * chain.released.size());
  }
}

// ---------------------------------------------------------------- random programs

// A program of one loop whose lines are chosen at random. In some rounds a line is another one. If
// `recorded`, some tensors require a gradient, most lines are recorded, and the gradients are
// computed at the end and in between.
class RandomLoop {
 public:
  RandomLoop(Repeater& repeater, std::uint32_t seed, bool recorded = false)
      : repeater_(repeater), random_(seed), recorded_(recorded) {
    const int shapes = 1 + pick(2);
    for (int i = 0; i < 3 + pick(4); ++i) {
      variables_.push_back(constant(pick(4) == 0 ? shapes : 1));
    }
    while (recorded && leaves_ <= variables_.size() / 3) {
      repeater_.client.requires_grad(variables_[leaves_++]);
    }
    const int lines = 1 + pick(50);
    for (int i = 0; i < lines; ++i) lines_.push_back(any_line());
    breaks_ = pick(3) == 0 ? 0 : 1 + pick(60);
  }

  // Returns all contents at the end, and what was read on the way.
  std::vector<std::vector<float>> run(int rounds) {
    std::vector<std::vector<float>> results;
    for (int round = 0; round < rounds; ++round) {
      for (const Line& line : lines_) {
        if (breaks_ > 0 && pick(breaks_ * 10) == 0) {
          other_line(results);
        } else {
          execute(line);
        }
        if (pick(120) == 0) send();
      }
    }
    if (recorded_) gradients(results);
    for (const HandleId each : variables_) results.push_back(repeater_.client.read(each));
    return results;
  }

 private:
  struct Line {
    int op = 0;
    std::size_t target = 0, a = 0, b = 0;
    double number = 0;
    bool keeps = false;  // the result becomes a new variable
    bool recorded = false;
  };

  void send() {
    const core::Status status = repeater_.client.send();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  int pick(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  std::size_t variable() {
    return static_cast<std::size_t>(pick(static_cast<int>(variables_.size())));
  }
  HandleId constant(int shape) {
    std::vector<float> elements(shape == 1 ? 6 : 12);
    for (float& each : elements) each = static_cast<float>(pick(9) - 4) / 4;
    return repeater_.client.constant(shape == 1 ? core::Dims{2, 3} : core::Dims{2, 2, 3},
                                     std::move(elements));
  }
  std::size_t target() {  // no leaf
    const auto others = static_cast<int>(variables_.size() - leaves_);
    return leaves_ + static_cast<std::size_t>(pick(others));
  }
  Line any_line() {
    return {pick(9),
            target(),
            variable(),
            variable(),
            pick(5) / 4.0,
            pick(40) == 0,
            recorded_ && pick(8) != 0};
  }
  HandleId apply(const Line& line, std::string_view op, std::vector<Argument> arguments,
                 core::Attributes attributes = {}) {
    return repeater_.apply(op, std::move(arguments), std::move(attributes), line.recorded);
  }
  void execute(const Line& line) {
    // All variables have a common shape for any two operands, so that no line is refused.
    const Argument a = h(variables_[line.a]), b = h(variables_[line.b]);
    HandleId made = 0;
    switch (line.op) {
      case 0:
        made = apply(line, "add", {a, b}, kOne);
        break;
      case 1:
        made = apply(line, "mul", {a, b});
        break;
      case 2:
        made = apply(line, "sin", {a});
        break;
      case 3:
        made = apply(line, "mul", {a, number(line.number)});
        break;
      case 4:
        made = apply(line, "maximum", {a, b});
        break;
      case 5:
        made = apply(line, "sub", {number(line.number), a}, kOne);
        break;
      case 6: {
        const HandleId less = apply(line, "lt", {a, b});
        made = apply(line, "where", {h(less), a, b});
        release(less);
        break;
      }
      case 7:
        made = apply(line, "tanh", {a});
        break;
      default:
        made = apply(line, "sub", {a, b}, kOne);
        break;
    }
    if (line.keeps && variables_.size() < 40) {
      variables_.push_back(made);
      return;
    }
    // tanh keeps the contents small, because chains of products would overflow.
    const HandleId small = apply(line, "tanh", {h(made)});
    release(made);
    release(std::exchange(variables_[line.target], small));
  }
  void other_line(std::vector<std::vector<float>>& results) {
    Client& client = repeater_.client;
    const std::size_t at = target();
    switch (pick(recorded_ ? 9 : 8)) {
      case 0:
        results.push_back(client.read(variables_[at]));
        break;
      case 1:
        client.inplace("mul", {h(variables_[at]), number(0.5)});
        break;
      case 2: {
        const HandleId view = client.apply("detach", {h(variables_[at])});
        release(std::exchange(variables_[at], view));
        break;
      }
      case 3: {
        const HandleId leaf = client.apply("clone", {h(variables_[at])});
        client.requires_grad(leaf);
        const HandleId y = repeater_.apply("mul", {h(leaf), h(leaf)}, {}, true);
        release(std::exchange(variables_[at], client.apply("detach", {h(y)})));
        release(y);
        release(leaf);
        break;
      }
      case 4:
        release(std::exchange(variables_[at], constant(1)));
        break;
      case 5:
        results.push_back(client.read(client.apply("sum", {h(variables_[at])})));
        break;
      case 6:
        break;  // the line is missing in this round
      case 8:
        gradients(results);
        break;
      default:
        execute(any_line());
        break;
    }
  }
  // Reads the gradients of a sum that depends on a variable and on each leaf.
  void gradients(std::vector<std::vector<float>>& results) {
    Client& client = repeater_.client;
    program::Backward backward;
    backward.inputs.assign(variables_.begin(), variables_.begin() + static_cast<long>(leaves_));
    backward.has_inputs = true;
    backward.retain_graph = pick(2) == 0;
    HandleId sum = variables_[target()];
    std::vector<HandleId> made;
    for (const HandleId leaf : backward.inputs) {
      made.push_back(sum = client.apply("mul", {h(sum), h(leaf)}, {}, true));
    }
    made.push_back(client.apply("sum", {h(sum)}, {}, true));
    backward.roots.push_back(made.back());
    backward.made = static_cast<std::uint32_t>(leaves_);
    client.add(backward);
    for (std::size_t i = 0; i < leaves_; ++i) made.push_back(client.name());
    for (std::size_t i = 0; i < leaves_; ++i) {
      results.push_back(client.read(made[made.size() - leaves_ + i]));
    }
    client.release(made);
    for (std::size_t i = leaves_; i < variables_.size() && !backward.retain_graph; ++i) {
      release(std::exchange(variables_[i], client.apply("detach", {h(variables_[i])})));
    }
  }
  void release(HandleId handle) {
    released_.push_back(handle);
    if (released_.size() == 8) repeater_.client.release(std::exchange(released_, {}));
  }

  Repeater& repeater_;
  std::mt19937 random_;
  const bool recorded_;
  std::size_t leaves_ = 0;  // the first variables, which require a gradient
  std::vector<HandleId> variables_, released_;
  std::vector<Line> lines_;
  int breaks_ = 0;
};

// Returns the number of commands that were repeated.
std::uint64_t expect_the_same_bits(std::uint32_t seed, bool recorded) {
  Daemon daemon;
  Repeater with(daemon, true), without(daemon, false);
  const int rounds = 2 + static_cast<int>(seed % 30);
  const auto one = RandomLoop(with, seed, recorded).run(rounds);
  const auto two = RandomLoop(without, seed, recorded).run(rounds);
  EXPECT_EQ(one.size(), two.size()) << "seed " << seed;
  for (std::size_t i = 0; i < std::min(one.size(), two.size()); ++i) {
    EXPECT_FALSE(one[i].empty()) << "seed " << seed << ", result " << i;
    EXPECT_EQ(one[i].size(), two[i].size()) << "seed " << seed << ", result " << i;
    const std::size_t bytes = std::min(one[i].size(), two[i].size()) * sizeof(float);
    EXPECT_EQ(std::memcmp(one[i].data(), two[i].data(), bytes), 0)
        << "seed " << seed << ", result " << i;
  }
  with.client.synchronize();
  without.client.synchronize();
  EXPECT_EQ(with.client.session->handles(), without.client.session->handles()) << seed;
  EXPECT_EQ(with.client.used(), without.client.used()) << "seed " << seed;
  EXPECT_EQ(without.repeated(), 0u);
  return with.repeated();
}

TEST(Template, RandomLoopsHaveTheSameBits) {
  std::uint64_t repeated = 0;
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    repeated += expect_the_same_bits(seed, false);
    if (HasFailure()) return;
  }
  EXPECT_GT(repeated, 20'000u);
}

TEST(Template, RecordedLoopsHaveTheSameGradients) {
  std::uint64_t repeated = 0;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    repeated += expect_the_same_bits(seed, true);
    if (HasFailure()) return;
  }
  EXPECT_GT(repeated, 20'000u);
}

// A chain that is recorded: its operands require a gradient in some rounds and not in others.
// Compares gradients, saved values, and which tensors require a gradient.
TEST(Template, AChainIsRecognisedWhileItIsRecorded) {
  Daemon daemon;
  Repeater with(daemon, true), without(daemon, false);
  std::vector<std::vector<float>> values[2];
  for (Repeater* repeater : {&with, &without}) {
    Client& client = repeater->client;
    auto& own = values[repeater == &with];
    for (int round = 0; round < 40; ++round) {
      const bool of_w = round / 4 % 2 == 1, of_a = round % 7 == 6, recorded = of_w || of_a;
      const HandleId a = client.constant({4}, {1, 2, 3, 4});
      const HandleId w = client.constant({4}, {0.5f, 0.25f, 0.75f, 1});
      if (of_w) client.requires_grad(w);
      if (of_a) client.requires_grad(a);
      HandleId x = a;
      std::vector<std::uint64_t> products;
      for (int i = 0; i < 60; ++i) {
        x = repeater->apply("mul", {h(x), h(w)}, {}, true);
        products.push_back(client.last_seq());
        x = repeater->apply("add", {h(x), h(a)}, kOne, true);
        if (i % 20 == 3) {
          ASSERT_TRUE(client.send().ok());
        }
      }
      client.add(program::Fetch{x, false, true});
      const std::uint64_t fetch = client.last_seq();
      ASSERT_TRUE(client.send().ok());
      EXPECT_EQ(client.listener.fetched(fetch).description->requires_grad, recorded) << round;
      const HandleId last = client.apply("sum", {h(x)}, {}, true);
      std::vector<HandleId> made;
      if (recorded) {
        for (std::size_t i = 0; i < products.size(); i += 10) {
          client.add(program::Saved{products[i], of_w ? 0u : 1u});
          made.push_back(client.name());
        }
        program::Backward backward;
        backward.roots = {last};
        backward.inputs = {of_w ? w : a};
        backward.has_inputs = true;
        backward.made = 1;
        client.add(backward);
        made.push_back(client.name());
      }
      for (const HandleId each : made) own.push_back(client.read(each));
      for (HandleId each = a; each <= last; ++each) made.push_back(each);
      client.release(made);
    }
    client.synchronize();
    EXPECT_EQ(client.used(), 0u);
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_GT(with.repeated(), 1000u);
}

}  // namespace
}  // namespace teletensor::session
