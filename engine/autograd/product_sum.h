// A part of a gradient that is a sum of matrix products, as of a weight that a loop over time steps
// uses.
#pragma once

#include <utility>
#include <vector>

#include "engine/ops/functions.h"

namespace teletensor::autograd {

// The product transpose(a) @ b of the matrices a [k, n] and b [k, m]; absent if a is absent.
struct Product {
  ops::Var a, b;
  bool tf32 = false;

  std::int64_t elements() const { return a.shape()[0] * (a.shape()[1] + b.shape()[1]); }
  ops::Var value() const { return ops::matmul(ops::transpose(a, 0, 1), b, tf32); }
};

// A sum of products with few rows k. A product of few rows reads and writes more than it computes,
// and so does its addition. Therefore the factors are kept, and one product of all their rows
// computes the sum:
//   transpose(a1) @ b1 + transpose(a2) @ b2 = transpose([a1; a2]) @ [b1; b2].
// INVARIANT: all products have the same n, m, dtype and tf32, and the kept factors have at most as
// many elements as the sum, which would exist instead of them.
class ProductSum {
 public:
  // Returns true if a product is small enough for a sum of several ones to be worth a copy of its
  // factors.
  static bool may_keep(const Product& p) {
    return p.elements() <= p.a.shape()[1] * p.b.shape()[1] / 4;
  }

  // Returns true if the product, for which may_keep() is true, is kept. Otherwise value() comes
  // first.
  bool add(const Product& p) {
    const std::int64_t size = p.a.shape()[1] * p.b.shape()[1];
    if (!as_.empty() && (p.tf32 != tf32_ || elements_ + p.elements() > size)) return false;
    tf32_ = p.tf32;
    elements_ += p.elements();
    as_.push_back(p.a);
    bs_.push_back(p.b);
    return true;
  }

  bool empty() const { return as_.empty(); }

  // The sum of the products that are kept, of which there is at least one; none is kept afterwards.
  ops::Var value() {
    const Product all{joined(as_), joined(bs_), tf32_};
    *this = {};
    return all.value();
  }

 private:
  static ops::Var joined(const std::vector<ops::Var>& parts) {
    if (parts.size() == 1) return parts[0];
    static const ops::OpRef cat("cat");
    const std::uint32_t counts[] = {static_cast<std::uint32_t>(parts.size())};
    const ops::Vars made = ops::apply_all(cat, parts, {core::Attribute::of(0)}, counts);
    return made.empty() ? ops::Var() : made[0];
  }

  std::vector<ops::Var> as_, bs_;
  std::int64_t elements_ = 0;
  bool tf32_ = false;
};

}  // namespace teletensor::autograd
