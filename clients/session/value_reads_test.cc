// Tests which values ValueReads keeps, and what drops them. The daemon's answers come from the
// test.
#include "clients/session/value_reads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "clients/session/plain_session_test.h"

namespace teletensor::client {
namespace {

using core::Attribute;
using core::DType;

class Client final : public PlainSession {
 public:
  using PlainSession::PlainSession;
  // Called at the start of the next wait; returns the message that the daemon then sends.
  std::function<wire::Progress()> answer;

  void receive(wire::Progress message) {
    message.number = ++number_;
    EXPECT_TRUE(stream().on_progress(wire::encode_progress(message)).ok());
  }

 protected:
  Status block(const std::function<bool()>& ready) override {
    if (answer) receive(std::exchange(answer, nullptr)());
    return stream().wait_for(ready, std::chrono::milliseconds(0)) ? Status()
                                                                  : core::internal("no answer");
  }

 private:
  std::uint64_t number_ = 0;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class ValueReadsTest : public testing::Test {
 protected:
  using Floats = std::vector<float>;

  HandleRef constant(const Floats& values, const core::Dims& shape) {
    return *session_.constant(DType::kF32, {}, shape, bytes_of(values));
  }
  HandleRef vector(const Floats& values) {
    return constant(values, {static_cast<std::int64_t>(values.size())});
  }
  HandleRef apply(const char* op, const std::vector<Var>& arguments,
                  const core::Attributes& attributes = {}) {
    Handles results;
    const Status status = session_.apply(ops::OpRef(op), arguments, {}, attributes, results);
    EXPECT_TRUE(status.ok()) << status.message();
    return results[0];
  }
  HandleRef select(const HandleRef& h, std::int64_t dim, std::int64_t index) {
    return apply("select", {Var(&session_, h)}, {Attribute::of(dim), Attribute::of(index)});
  }
  // A tensor whose value the client does not know.
  HandleRef computed(const Floats& like, const core::Dims& shape) {
    return apply("exp", {Var(&session_, constant(like, shape))});
  }
  void fill(const HandleRef& h, double number) {
    const std::vector<Var> arguments = {Var(&session_, h), Var(number)};
    EXPECT_TRUE(session_.apply_inplace(ops::OpRef("fill"), arguments, {}, {}).ok());
  }

  bool known(const HandleRef& h) { return reads_.find(session_, *h).has_value(); }
  Floats values(const std::string& data) {
    Floats out(data.size() / sizeof(float));
    std::memcpy(out.data(), data.data(), data.size());
    return out;
  }
  Floats found(const HandleRef& h) {
    const auto value = reads_.find(session_, *h);
    return value ? values(value->data) : Floats();
  }
  // Reads h by a Fetch that the daemon answers with `contents`; `meanwhile` is done before.
  Floats read(const HandleRef& h, const Floats& contents,
              const std::function<void()>& meanwhile = nullptr) {
    const auto asked = reads_.ask(session_, *h);
    EXPECT_TRUE(asked.ok());
    fetched_ = asked->fetched;
    session_.answer = [&, meanwhile] {
      if (meanwhile) meanwhile();
      wire::Progress message;
      message.completed_upto = asked->seq;
      message.fetched.push_back(
          {asked->seq, {}, 0, DType::kF32, asked->fetched->shape(), bytes_of(contents), {}});
      return message;
    };
    const auto value = reads_.wait(session_, *asked);
    EXPECT_TRUE(value.ok() && value->status.ok());
    return values(value->data);
  }
  void fail(std::uint64_t root) {
    wire::Progress message;
    message.completed_upto = session_.commands().last_seq();
    message.errors.push_back({root, core::invalid("failed")});
    session_.receive(std::move(message));
  }
  void answer_raise(std::uint64_t root) {
    session_.answer = [this, root] {
      wire::Progress message;
      message.completed_upto = session_.commands().last_seq();
      message.raised.push_back({session_.commands().last_seq(), root, {}});
      return message;
    };
  }

  Client session_{SessionLimits{}};
  ValueReads& reads_ = session_.value_reads();
  HandleRef fetched_;
};

TEST_F(ValueReadsTest, AConstantIsKnownAndSoAreItsViews) {
  const HandleRef x = constant({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(found(x), (Floats{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(found(select(x, 1, 2)), (Floats{3, 6}));
  EXPECT_EQ(found(select(select(x, 0, 1), 0, 0)), (Floats{4}));
  EXPECT_EQ(found(apply("transpose", {Var(&session_, x)}, {Attribute::of(0), Attribute::of(1)})),
            (Floats{1, 4, 2, 5, 3, 6}));
  EXPECT_FALSE(known(computed({1}, {1})));
}

TEST_F(ValueReadsTest, AWriteThroughAnyNameDropsTheValue) {
  const HandleRef x = vector({1, 2, 3}), other = vector({4});
  const HandleRef alias = apply("detach", {Var(&session_, x)}), part = select(x, 0, 1);
  for (const HandleRef& written : {x, alias, part}) {
    read(x, {1, 2, 3});
    EXPECT_TRUE(known(x) && known(alias) && known(part));
    fill(written, 7);
    EXPECT_FALSE(known(x) || known(alias) || known(part));
  }
  EXPECT_TRUE(known(other));
}

TEST_F(ValueReadsTest, ASmallTensorIsFetchedWholeForOneElement) {
  const HandleRef x = computed({1, 2, 3}, {3});
  EXPECT_EQ(read(select(x, 0, 1), {-1, -2, -3}), (Floats{-2}));
  EXPECT_EQ(fetched_, x);
  EXPECT_EQ(found(select(x, 0, 2)), (Floats{-3}));
  EXPECT_EQ(found(x), (Floats{-1, -2, -3}));
}

TEST_F(ValueReadsTest, OneElementOfALargeTensorIsFetchedAlone) {
  const Floats many(ValueReads::kLargest / sizeof(float) + 1, 1);
  const HandleRef x = vector(many), y = select(x, 0, 3);
  EXPECT_FALSE(known(x));
  EXPECT_EQ(read(y, {1}), (Floats{1}));
  EXPECT_EQ(fetched_, y);
  EXPECT_TRUE(known(y) && known(select(x, 0, 3)));
  EXPECT_FALSE(known(select(x, 0, 4)) || known(select(x, 0, 2)) || known(x));
}

TEST_F(ValueReadsTest, TheStorageOrderOfAFetchedTensorIsRespected) {
  const HandleRef x = constant({1, 2, 3, 4, 5, 6}, {2, 3});
  const HandleRef turned =
      apply("transpose", {Var(&session_, x)}, {Attribute::of(0), Attribute::of(1)});
  const HandleRef y = apply("neg", {Var(&session_, turned)});
  ASSERT_FALSE(y->geometry().contiguous());
  EXPECT_EQ(read(y, {-1, -4, -2, -5, -3, -6}), (Floats{-1, -4, -2, -5, -3, -6}));
  EXPECT_EQ(found(y), (Floats{-1, -4, -2, -5, -3, -6}));
  EXPECT_EQ(found(select(y, 0, 1)), (Floats{-2, -5}));
}

TEST_F(ValueReadsTest, AViewWithAnotherDtypeIsNotKnown) {
  const HandleRef x = vector({1, 2});
  const HandleRef bits = apply("bitcast", {Var(&session_, x)}, {Attribute::of(DType::kI32)});
  EXPECT_TRUE(known(x));
  EXPECT_FALSE(known(bits));
}

TEST_F(ValueReadsTest, AValueThatWasOverwrittenDuringItsFetchIsNotKept) {
  const HandleRef x = computed({1, 2}, {2});
  EXPECT_EQ(read(x, {-1, -2}, [&] { fill(x, 3); }), (Floats{-1, -2}));
  EXPECT_FALSE(known(x));
}

TEST_F(ValueReadsTest, SetDataTakesTheValueOfTheOtherTensor) {
  const HandleRef x = vector({1, 2}), y = vector({3, 4});
  EXPECT_TRUE(session_.set_data(*x, *y).ok());
  EXPECT_EQ(found(x), (Floats{3, 4}));
  fill(x, 5);
  EXPECT_FALSE(known(x) || known(y));
}

TEST_F(ValueReadsTest, ATensorThatAnotherSessionMayWriteIsNotKept) {
  const HandleRef x = vector({1, 2});
  EXPECT_TRUE(session_.names().publish("x", x.get(), true, "").ok());
  EXPECT_FALSE(known(x));
  EXPECT_EQ(read(x, {3, 4}), (Floats{3, 4}));
  EXPECT_FALSE(known(x));
}

TEST_F(ValueReadsTest, APendingErrorIsRaisedInsteadAndDropsTheValues) {
  const HandleRef x = vector({1, 2});
  fail(session_.commands().last_seq());
  EXPECT_FALSE(known(x)) << "the read must raise the error";
  answer_raise(session_.commands().last_seq());
  EXPECT_FALSE(session_.errors().raise().status.ok());
  EXPECT_FALSE(known(x)) << "the command that failed may have made it";
  EXPECT_TRUE(known(vector({3})));
}

TEST_F(ValueReadsTest, AFailedFetchIsNotKept) {
  const HandleRef x = computed({1}, {1});
  const auto asked = reads_.ask(session_, *x);
  session_.answer = [&] {
    wire::Progress message;
    message.completed_upto = asked->seq;
    message.fetched.push_back({asked->seq, core::invalid("failed"), 1, DType::kF32, {}, "", {}});
    return message;
  };
  const auto value = reads_.wait(session_, *asked);
  ASSERT_TRUE(value.ok());
  EXPECT_FALSE(value->status.ok());
  EXPECT_FALSE(known(x));
}

TEST_F(ValueReadsTest, AnInterruptionDropsTheValues) {
  const HandleRef x = vector({1, 2});
  EXPECT_NE(session_.errors().mark_interrupted(), 0u);
  EXPECT_FALSE(known(x));
}

TEST_F(ValueReadsTest, ALostSessionHasNoValues) {
  const HandleRef x = vector({1, 2});
  session_.stream().lost(core::internal("lost"));
  EXPECT_FALSE(known(x));
}

TEST_F(ValueReadsTest, TheMemoryIsBoundedAndTheLeastRecentlyUsedValueIsDropped) {
  const HandleRef first = vector({1}), second = vector({2});
  const std::size_t each = reads_.used() / 2;
  reads_.set_most(3 * each);
  const HandleRef third = vector({3});
  EXPECT_TRUE(known(second) && known(first));
  const HandleRef fourth = vector({4});
  EXPECT_FALSE(known(third) && known(second));
  EXPECT_TRUE(known(first) && known(fourth));
  EXPECT_EQ(reads_.used(), 3 * each);
  { const HandleRef gone = vector({5}); }
  EXPECT_EQ(reads_.used(), 2 * each) << "a value ends with its tensor";
  reads_.set_most(0);
  EXPECT_EQ(reads_.used(), 0u);
  const HandleRef x = vector({6});
  EXPECT_FALSE(known(x));
  EXPECT_EQ(read(select(x, 0, 0), {6}), (Floats{6}));
  EXPECT_NE(fetched_, x) << "without kept values only the element is fetched";
  EXPECT_FALSE(known(x));
}

// The result of `a op b`, or -1 if it is not known.
class Comparisons : public ValueReadsTest {
 protected:
  int compare(const char* op, const Var& a, const Var& b) {
    const auto value = reads_.find(session_, *apply(op, {a, b}));
    return value ? value->data[0] : -1;
  }
  static Var integer(std::int64_t value) { return {core::Number::of_int(value)}; }
  template <class T>
  Var scalar(DType dtype, T value) {
    return Var(&session_, *session_.constant(dtype, {}, {}, bytes_of(std::vector<T>{value})));
  }
};

TEST_F(Comparisons, OfKnownElementsAreKnown) {
  const Var two = scalar<float>(DType::kF32, 2), three = scalar<float>(DType::kF32, 3);
  const std::vector<std::pair<const char*, std::vector<int>>> rows = {
      {"eq", {0, 1, 0}}, {"ne", {1, 0, 1}}, {"lt", {1, 0, 0}},
      {"le", {1, 1, 0}}, {"gt", {0, 0, 1}}, {"ge", {0, 1, 1}}};
  for (const auto& [op, expected] : rows) {
    EXPECT_EQ(
        (std::vector<int>{compare(op, two, three), compare(op, two, two), compare(op, three, two)}),
        expected)
        << op;
    EXPECT_EQ(compare(op, two, Var(3.0)), expected[0]) << op;
    EXPECT_EQ(compare(op, two, Var(2)), expected[1]) << op;
  }
}

TEST_F(Comparisons, ConvertNumbersToTheDtypeOfTheTensor) {
  EXPECT_EQ(compare("eq", scalar<float>(DType::kF32, 0.1f), Var(0.1)), 1);
  EXPECT_EQ(compare("eq", scalar<double>(DType::kF64, 0.1f), Var(0.1)), 0);
  const auto large = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(compare("gt", scalar<std::int64_t>(DType::kI64, large), integer(large - 1)), 1);
  const Var nan = scalar<float>(DType::kF32, std::nanf(""));
  EXPECT_EQ(compare("eq", nan, nan), 0);
  EXPECT_EQ(compare("ne", nan, nan), 1);
}

TEST_F(Comparisons, AreLeftToTheDaemonIfTheConversionIsNotObvious) {
  const Var one = scalar<std::int64_t>(DType::kI64, 1);
  EXPECT_EQ(compare("gt", one, Var(0.5)), -1);
  EXPECT_EQ(compare("gt", one, scalar<float>(DType::kF32, 0)), -1);
  EXPECT_EQ(compare("lt", scalar<std::int32_t>(DType::kI32, 1), integer(std::int64_t{1} << 40)),
            -1);
  EXPECT_EQ(compare("lt", scalar<float>(DType::kF32, 1), Var((1 << 24) + 1)), -1);
  EXPECT_EQ(compare("gt", one, Var(&session_, computed({1}, {}))), -1);
  EXPECT_EQ(compare("gt", Var(&session_, vector({1, 2})), Var(1.0)), -1);
  EXPECT_EQ(compare("logical_and", one, one), -1);
}

TEST_F(Comparisons, AndSumsOfKnownElements) {
  const auto sum = [&](const char* op, const Var& a, const Var& b, core::Attributes factor) {
    const auto value = reads_.find(session_, *apply(op, {a, b}, std::move(factor)));
    std::int64_t found = -1;
    if (value) std::memcpy(&found, value->data.data(), sizeof(found));
    return found;
  };
  const auto most = std::numeric_limits<std::int64_t>::max();
  const auto least = std::numeric_limits<std::int64_t>::min();
  const Var two = scalar<std::int64_t>(DType::kI64, 2), large = scalar(DType::kI64, most);
  const core::Attributes once = {Attribute::of(1.0)}, twice = {Attribute::of(2.0)};
  EXPECT_EQ(sum("add", two, large, once), least + 1) << "integers wrap";
  EXPECT_EQ(sum("sub", integer(1), two, once), -1);
  EXPECT_EQ(sum("mul", two, integer(21), {}), 42);
  EXPECT_EQ(sum("add", two, two, twice), -1) << "a factor";
  EXPECT_EQ(sum("add", two, Var(&session_, computed({1}, {})), once), -1);
  const auto known = [&](const Var& a, const Var& b) {
    return reads_.find(session_, *apply("add", {a, b}, once)).has_value();
  };
  const Var half = scalar<float>(DType::kF32, 0.5f);
  EXPECT_TRUE(known(half, Var(0.1)));
  EXPECT_FALSE(known(half, scalar<double>(DType::kF64, 0.5))) << "two dtypes";
  EXPECT_FALSE(known(scalar<float>(DType::kF32, INFINITY), Var(-INFINITY))) << "NaN";
  EXPECT_FALSE(known(half, Var(&session_, vector({1, 2}))));
}

TEST_F(Comparisons, AndSumsThatAreWrittenInPlace) {
  const auto add = [&](const HandleRef& h) {
    const std::vector<Var> arguments = {Var(&session_, h), Var(1.0)};
    EXPECT_TRUE(
        session_.apply_inplace(ops::OpRef("add"), arguments, {}, {Attribute::of(1.0)}).ok());
  };
  const HandleRef x = vector({1}), y = vector({1, 2});
  add(x);
  EXPECT_EQ(found(x), Floats{2});
  add(select(x, 0, 0));
  EXPECT_EQ(found(x), Floats{3}) << "a view of the whole";
  add(select(y, 0, 0));
  EXPECT_FALSE(known(y));
  EXPECT_TRUE(session_.names().publish("x", x.get(), true, "").ok());
  add(x);
  EXPECT_FALSE(known(x));
}

// The result of an op that makes a tensor of numbers, as doubles. Empty if it is not known.
class Constructors : public ValueReadsTest {
 protected:
  template <class T>
  std::vector<double> made(const char* op, std::vector<Var> numbers, core::Attributes attributes) {
    const auto value = reads_.find(session_, *apply(op, numbers, std::move(attributes)));
    if (!value) return {};
    std::vector<T> elements(value->data.size() / sizeof(T));
    std::memcpy(elements.data(), value->data.data(), value->data.size());
    return {elements.begin(), elements.end()};
  }
  template <class T>
  std::vector<double> full(const Var& number, DType dtype, const core::Dims& shape = {2}) {
    return made<T>("full", {number}, {Attribute::of(shape), Attribute::of(dtype), Attribute()});
  }
  template <class T>
  std::vector<double> arange(const Var& start, const Var& end, const Var& step, DType dtype) {
    return made<T>("arange", {start, end, step}, {Attribute::of(dtype), Attribute()});
  }
};

TEST_F(Constructors, OfOneNumberAreKnownIfTheConversionIsObvious) {
  const Var third(1.0 / 3), large((1 << 24) + 1), truth(core::Number::of_bool(true));
  EXPECT_EQ(full<float>(third, DType::kF32), std::vector<double>(2, 1.0f / 3));
  EXPECT_EQ(full<double>(third, DType::kF64, {2, 3}), std::vector<double>(6, 1.0 / 3));
  EXPECT_EQ(full<std::int64_t>(Var(-7), DType::kI64, {}), std::vector<double>{-7});
  EXPECT_EQ(full<std::int8_t>(truth, DType::kBool), (std::vector<double>{1, 1}));
  EXPECT_EQ(full<std::int16_t>(Var(0), DType::kF16), (std::vector<double>{0, 0}));
  EXPECT_EQ(full<float>(Var(0), DType::kF32, {1024}), std::vector<double>(1024, 0));
  EXPECT_TRUE(full<float>(Var(0), DType::kF32, {1025}).empty()) << "too large";
  EXPECT_TRUE(full<float>(Var(0), DType::kF32, {0}).empty());
  EXPECT_TRUE(full<float>(large, DType::kF32).empty());
  EXPECT_TRUE(full<std::int16_t>(Var(1), DType::kF16).empty());
  EXPECT_TRUE(full<float>(Var(&session_, vector({1})), DType::kF32).empty());
}

TEST_F(Constructors, OfSmallIntegersInOrderAreKnown) {
  EXPECT_EQ(arange<std::int64_t>(Var(2), Var(9), Var(3), DType::kI64),
            (std::vector<double>{2, 5, 8}));
  EXPECT_EQ(arange<float>(Var(1.0), Var(-2.0), Var(-1.0), DType::kF32),
            (std::vector<double>{1, 0, -1}));
  EXPECT_TRUE(arange<float>(Var(0), Var(1), Var(0.25), DType::kF32).empty());
  EXPECT_TRUE(arange<float>(Var(-0.0), Var(2), Var(1), DType::kF32).empty());
  EXPECT_TRUE(arange<float>(Var(1 << 24), Var((1 << 24) + 2), Var(1), DType::kF32).empty());
}

}  // namespace
}  // namespace teletensor::client
