// Random programs about names, views, in-place writes and the tape, as data.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "model.h"

namespace teletensor::fuzz {

enum class What {
  kNew,
  kUnary,
  kAdd,
  kMul,
  kMatmul,
  kSum,
  kSelect,
  kSlice,
  kTranspose,
  kUnbind,
  kView,
  kReshape,
  kExpand,
  kIndex,
  kDetach,
  kData,
  kUnaryInplace,
  kAddInplace,
  kMulInplace,
  kCopyInplace,
  kFillInplace,
  kSetItem,
  kSetData,
  kFlag,
  kRetain,
  kHook,
  kBackward,
  kGrad,
  kGetGrad,
  kSetGrad,
  kNoGrad,
  kZeroGrad,
  kDrop,
  kLoop
};

// One item of x[...]: a whole or sliced dimension, or a number.
struct Index {
  bool number;
  std::int64_t start, stop, step;
};

struct Step {
  What what = What::kDrop;
  int a = 0, b = -1;  // names; if b is -1, `number` is used
  int out = -1;       // the name that it makes; further ones are out + 1, ...
  bool no_grad = false;
  double number = 0;
  std::string op;  // a unary op
  int dim = -1, other_dim = 0;
  std::int64_t at = 0, length = 0;
  model::Sizes shape;
  std::vector<Index> index;
  std::vector<int> inputs;
  std::uint64_t data = 0;  // determines the values of a new tensor or a seed
  bool seeded = false, flag = false;
  int retain = -1;  // -1: as create
  bool create = false, allow_unused = false;
};
std::string text_of(const Step& step);

// A line of a loop: x = op(x), x = x * number, or x = x + other, where other is name b or a number.
struct Line {
  enum class Op { kSin, kTanh, kNeg, kAdd, kMul };
  Op op = Op::kTanh;
  double number = 0;  // for kAdd and kMul
  bool with_b = false;
};
// The lines of all `length` rounds of a kLoop step, in their order. The rounds are the same, except
// for single lines that are missing or others in a few rounds.
std::vector<Line> lines_of(const Step& step);

// Numbers between -1.5 and 1.5 with two decimals.
model::Numbers numbers_of(std::uint64_t data, std::int64_t count);

using Env = std::map<int, model::Handle*>;

// Writes one program step by step, by looking at the names in the specification.
class Chooser {
 public:
  // data_only: without the tape (for failures)
  Chooser(std::uint64_t seed, bool data_only);
  Step next(const Env& env, int i);
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }

 private:
  template <class Test>
  int pick(const Env& env, Test test);
  int fitting(const Env& env, const model::Sizes& shape);
  std::vector<Index> index(const model::Sizes& shape);
  double scalar() { return static_cast<double>(below(301)) / 100 - 1.5; }
  void diamond(int a, int i);
  bool compute(Step& step, const Env& env, int kind);
  bool view(Step& step, const Env& env);
  bool write(Step& step, const Env& env, int kind);
  bool tape(Step& step, const Env& env, int kind, int i);

  std::mt19937_64 random_;
  const bool data_only_;
  double profile_;
  std::vector<int> weights_;
  std::deque<Step> queue_;
};

}  // namespace teletensor::fuzz
