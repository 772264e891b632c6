// Tests the session of the device meta: nothing waits, nothing is sent, and no value can be read.
#include <gtest/gtest.h>

#include "clients/session/plain_session_test.h"

namespace teletensor::client {
namespace {

using core::Attribute;
using core::DType;

constexpr core::Device kMeta{core::DeviceKind::kMeta, 0};

class MetaSession final : public PlainSession {
 public:
  MetaSession() : PlainSession(limits()) {}

 protected:
  Status block(const std::function<bool()>& ready) override {
    return ready() ? Status() : core::internal("a wait that nothing would end");
  }

 private:
  static SessionLimits limits() {
    SessionLimits limits;
    limits.meta = true;
    limits.credit_upto = 1ull << 62;
    return limits;
  }
};

Handles full(Session& session, const core::Dims& shape, double value) {
  static const ops::OpRef op("full");
  const Var number(core::Number::of_float(value));
  core::Attributes attributes;
  attributes.push_back(Attribute::of(shape));
  attributes.push_back(Attribute::of(DType::kF32));
  attributes.push_back(Attribute::of(kMeta));
  Handles results;
  EXPECT_TRUE(session.apply(op, {&number, 1}, {}, attributes, results).ok());
  return results;
}

TEST(MetaSession, CommandsHaveRunWhenTheyAreIssued) {
  MetaSession session;
  // More commands than the credits of an ordinary session allow.
  for (int i = 0; i < 70000; ++i) {
    const Handles x = full(session, {2, 3}, 1.0);
    ASSERT_EQ(x.size(), 1u);
  }
  EXPECT_GT(session.commands().last_seq(), 70000u);  // The releases are commands, too.
  EXPECT_EQ(session.commands().queued(), 0u);
  EXPECT_TRUE(session.synchronize().ok());
  EXPECT_EQ(session.commands().held(), 0u);
  EXPECT_TRUE(session.stream().unconfirmed().empty());
  EXPECT_EQ(session.errors().mark_interrupted(), 0u);
}

TEST(MetaSession, GradientsHaveShapes) {
  MetaSession session;
  static const ops::OpRef sum("sum"), mul("mul");
  const Handles w = full(session, {2, 3}, 1.0);
  ASSERT_TRUE(session.set_requires_grad(*w[0], true).ok());
  Handles product, total;
  const Var operands[] = {Var(&session, w[0]), Var(&session, w[0])};
  ASSERT_TRUE(session.apply(mul, operands, {}, {}, product).ok());
  const Var argument(&session, product[0]);
  core::Attributes all;
  for (std::size_t p = 1; p < ops::catalog().at(sum).parameters.size(); ++p) {
    all.push_back(ops::catalog().at(sum).parameters[p].fallback);
  }
  ASSERT_TRUE(session.apply(sum, {&argument, 1}, {}, all, total).ok());
  autograd::BackwardCall call;
  call.roots = {total[0]};
  call.seeds = {HandleRef()};
  std::vector<HandleRef> none;
  ASSERT_TRUE(session.backward(std::move(call), false, none).ok());
  ASSERT_TRUE(w[0]->grad);
  EXPECT_EQ(w[0]->grad->shape(), core::Dims({2, 3}));
  EXPECT_EQ(w[0]->grad->layout.device, kMeta);
}

TEST(MetaSession, NoValueIsKnownOrFetched) {
  MetaSession session;
  const Handles x = full(session, {}, 3.0);
  EXPECT_FALSE(session.value_reads().find(session, *x[0]));
  for (const bool bulk : {false, true}) {
    const auto fetched = session.fetch(*x[0], bulk);
    EXPECT_EQ(fetched.status().code(), core::Code::kUnimplemented);
    EXPECT_EQ(fetched.status().message(), "Cannot copy out of meta tensor; no data!");
  }
  EXPECT_EQ(session.value_reads().used(), 0u);
}

}  // namespace
}  // namespace teletensor::client
