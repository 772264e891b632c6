#include "program.h"

#include <algorithm>
#include <set>

namespace teletensor::fuzz {

using model::Handle;
using model::Sizes;

namespace {

constexpr std::size_t kMaxNames = 9;
const char* const kUnary[] = {"neg", "sin", "exp", "tanh", "clone"};
const Sizes kShapes[] = {{},     {1},    {3},    {4},       {2, 3},    {3, 2},
                         {2, 2}, {1, 3}, {3, 1}, {2, 1, 3}, {2, 3, 2}, {4, 3}};
// The kinds of steps, in the order of `weights_`.
enum {
  kUnaryStep,
  kBinary,
  kMatmul,
  kSum,
  kView,
  kShare,
  kInplace,
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
  kDrop
};
constexpr int kWeights[] = {10, 14, 3, 6, 20, 5, 18, 7, 2, 3, 3, 4, 9, 5, 3, 1, 1, 1, 6};

bool broadcasts(const Sizes& from, const Sizes& to) {
  if (from.size() > to.size()) return false;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    const std::int64_t s = from[from.size() - i];
    if (s != 1 && s != to[to.size() - i]) return false;
  }
  return true;
}

const Sizes& shape_at(const Env& env, int name) { return env.at(name)->shape(); }

}  // namespace

model::Numbers numbers_of(std::uint64_t data, std::int64_t count) {
  std::mt19937_64 random(data * 2654435761u + 1);
  model::Numbers out(static_cast<std::size_t>(count));
  for (double& x : out) x = static_cast<double>(random() % 301) / 100 - 1.5;
  return out;
}

std::vector<Line> lines_of(const Step& step) {
  std::mt19937_64 random(step.data * 2654435761u + 2);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const auto any = [&] {
    Line line;
    line.op = static_cast<Line::Op>(below(5));
    line.number = static_cast<double>(below(5)) / 4 - 0.5;
    // No line amplifies rounding: the numbers are at most 1/2, and b is only added.
    line.with_b = step.b >= 0 && line.op == Line::Op::kAdd && below(3) > 0;
    return line;
  };
  std::vector<Line> body;
  for (std::uint64_t n = 1 + below(12); n > 0; --n) body.push_back(any());
  body.push_back(Line());  // tanh, so that the numbers stay small
  const std::uint64_t breaks = below(3) == 0 ? 0 : 10 + below(60);
  std::vector<Line> lines;
  for (std::int64_t round = 0; round < step.length; ++round) {
    for (const Line& line : body) {
      const std::uint64_t what = breaks == 0 ? 2 : below(breaks);
      if (what == 0) continue;
      lines.push_back(what == 1 ? any() : line);
    }
  }
  lines.push_back(Line());
  return lines;
}

std::string text_of(const Step& s) {
  static const char* const kNames[] = {
      "new",     "unary",     "add",      "mul",      "matmul",  "sum",      "select",
      "slice",   "transpose", "unbind",   "view",     "reshape", "expand",   "index",
      "detach",  "data",      "unary_",   "add_",     "mul_",    "copy_",    "fill_",
      "setitem", "setdata",   "flag",     "retain",   "hook",    "backward", "grad",
      "getgrad", "setgrad",   "gradnone", "gradzero", "drop",    "loop"};
  std::string text = kNames[static_cast<int>(s.what)];
  text += " " + s.op + " a=" + std::to_string(s.a) + " b=" + std::to_string(s.b) +
          " out=" + std::to_string(s.out) + " x=" + std::to_string(s.number) +
          " dim=" + std::to_string(s.dim) + "," + std::to_string(s.other_dim) +
          " at=" + std::to_string(s.at) + "+" + std::to_string(s.length) + " shape=[";
  for (const std::int64_t n : s.shape) text += std::to_string(n) + " ";
  text += "] index=[";
  for (const Index& i : s.index) {
    text += i.number ? std::to_string(i.start) + " "
                     : std::to_string(i.start) + ":" + std::to_string(i.stop) + ":" +
                           std::to_string(i.step) + " ";
  }
  text += "] inputs=[";
  for (const int n : s.inputs) text += std::to_string(n) + " ";
  text += "]";
  if (s.no_grad) text += " no_grad";
  if (s.seeded) text += " seeded";
  if (s.flag) text += " flag";
  if (s.retain >= 0) text += " retain=" + std::to_string(s.retain);
  if (s.create) text += " create_graph";
  if (s.allow_unused) text += " allow_unused";
  return text;
}

Chooser::Chooser(std::uint64_t seed, bool data_only)
    : random_(seed), data_only_(data_only), weights_(std::begin(kWeights), std::end(kWeights)) {
  profile_ = static_cast<double>(random_() >> 11) * 0x1p-53;
  const auto set = [&](int kind, int weight) { weights_[static_cast<std::size_t>(kind)] = weight; };
  if (profile_ < 0.2) {
    set(kHook, 20), set(kBackward, 16), set(kGrad, 8), set(kInplace, 10), set(kDrop, 2);
  } else if (profile_ < 0.45) {
    set(kView, 30), set(kInplace, 36), set(kSetItem, 10), set(kBackward, 14), set(kDrop, 2);
  }
  if (data_only_) {
    for (const int kind : {kFlag, kRetain, kHook, kBackward, kGrad, kGetGrad, kSetGrad, kNoGrad,
                           kZeroGrad, kSetData}) {
      set(kind, 0);
    }
  }
}

template <class Test>
int Chooser::pick(const Env& env, Test test) {
  std::vector<int> found;
  for (const auto& [name, h] : env) {
    if (test(*h)) found.push_back(name);
  }
  return found.empty() ? -1 : found[below(found.size())];
}

int Chooser::fitting(const Env& env, const Sizes& shape) {
  return pick(env, [&](const Handle& h) { return broadcasts(h.shape(), shape); });
}

std::vector<Index> Chooser::index(const Sizes& shape) {
  std::vector<Index> out;
  const std::size_t items = 1 + below(shape.size());
  for (std::size_t d = 0; d < items; ++d) {
    const std::int64_t size = shape[d];
    const auto some = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(size)));
    switch (below(5)) {
      case 0:
        out.push_back({false, 0, size, 1});
        break;
      case 1:
        out.push_back({false, some, size, 1});
        break;
      case 2:
        out.push_back({false, 0, some + 1, 1});
        break;
      case 3:
        out.push_back({false, 0, size, 2});
        break;
      default:
        out.push_back({true, some, 0, 0});
    }
  }
  return out;
}

// Two branches from one name, with a hook on each in either order, and a backward through their
// sum.
void Chooser::diamond(int a, int i) {
  const int base = 8 * i;
  int first = base, second = chance(0.5) ? base + 1 : a;
  if (chance(0.5)) std::swap(first, second);
  Step s;
  s.what = What::kMul, s.a = a, s.number = 0.5, s.out = base;
  queue_.push_back(s);
  s = {};
  s.what = What::kUnary, s.op = kUnary[below(5)], s.a = a, s.out = base + 1;
  queue_.push_back(s);
  s = {};
  s.what = What::kHook, s.a = first, s.dim = base + 2;
  queue_.push_back(s);
  s.a = second, s.dim = base + 3, s.flag = true;
  queue_.push_back(s);
  s = {};
  s.what = What::kAdd, s.a = first, s.b = second, s.out = base + 4;
  queue_.push_back(s);
  s = {};
  s.what = What::kBackward, s.a = base + 4, s.seeded = true, s.data = random_() % 1000000;
  s.retain = 1, s.create = chance(0.3);
  queue_.push_back(s);
}

Step Chooser::next(const Env& env, int i) {
  if (!queue_.empty()) {
    Step s = queue_.front();
    queue_.pop_front();
    return s;
  }
  Step step;
  step.no_grad = chance(0.12);
  if (env.size() < 2 || chance(0.08)) {
    step.what = What::kNew;
    step.shape = kShapes[below(std::size(kShapes))];
    step.data = random_() % 1000000;
    step.flag = chance(0.5);
    step.out = 8 * i;
    step.no_grad = false;
    return step;
  }
  const auto any = [](const Handle&) { return true; };
  step.a = pick(env, any);
  if (env.size() > kMaxNames) return step;  // drops a name
  const bool about_order = profile_ < 0.2, about_views = !about_order && profile_ < 0.45;
  if (!data_only_ && about_order && chance(0.1) && env.at(step.a)->requires_grad()) {
    diamond(step.a, i);
    return next(env, i);
  }
  if (!data_only_ && about_order && chance(0.3)) {
    for (auto it = env.rbegin(); it != env.rend(); ++it) {
      if (!it->second->requires_grad()) continue;
      step.a = it->first;
      break;
    }
    step.what = What::kHook;
    step.dim = 8 * i;
    step.no_grad = false;
    return step;
  }
  if (about_views && chance(0.5)) {
    int better = pick(env, [](const Handle& h) { return h.is_view() && h.base->node != nullptr; });
    if (better < 0) better = pick(env, [](const Handle& h) { return !h.requires_grad(); });
    if (better >= 0) step.a = better;
  }
  int total = 0;
  for (const int w : weights_) total += w;
  int draw = static_cast<int>(below(static_cast<std::uint64_t>(total))), kind = 0;
  while (draw >= weights_[static_cast<std::size_t>(kind)]) {
    draw -= weights_[static_cast<std::size_t>(kind++)];
  }
  if (!data_only_ && chance(0.08)) {
    const Sizes& shape = shape_at(env, step.a);
    step.what = What::kLoop;
    step.b = pick(env, [&](const Handle& h) { return h.shape() == shape; });
    step.length = 2 + static_cast<std::int64_t>(below(20));
    step.data = random_() % 1000000;
    step.out = 8 * i;
    return step;
  }
  const Step plain = step;
  step.out = 8 * i;
  const bool good = kind <= kShare     ? compute(step, env, kind)
                    : kind <= kSetData ? write(step, env, kind)
                                       : tape(step, env, kind, i);
  if (good) return step;
  Step drop = plain;
  drop.what = What::kDrop;
  return drop;
}

bool Chooser::compute(Step& step, const Env& env, int kind) {
  const Sizes& shape = shape_at(env, step.a);
  switch (kind) {
    case kUnaryStep:
      step.what = What::kUnary;
      step.op = kUnary[below(5)];
      return true;
    case kBinary: {
      const int fits = fitting(env, shape);
      step.what = chance(0.5) ? What::kAdd : What::kMul;
      if (fits >= 0 && chance(0.8)) {
        step.b = fits;
      } else {
        step.number = scalar();
      }
      return true;
    }
    case kMatmul: {
      const int y = pick(env, [&](const Handle& h) {
        return shape.size() == 2 && h.shape().size() == 2 && h.shape()[0] == shape[1];
      });
      step.what = y >= 0 ? What::kMatmul : What::kSum;
      step.b = y;
      return true;
    }
    case kSum:
      step.what = What::kSum;
      step.dim = static_cast<int>(below(shape.size() + 1)) - 1;
      return true;
    case kShare:
      step.what = chance(0.4) ? What::kData : What::kDetach;
      return true;
    default:
      return view(step, env);
  }
}

bool Chooser::view(Step& step, const Env& env) {
  const Sizes& shape = shape_at(env, step.a);
  const std::int64_t n = model::count(shape);
  const std::uint64_t kind = below(9);
  if (kind >= 5 || shape.empty()) {
    if (kind < 7 || shape.empty()) {
      std::vector<Sizes> choices = {{n}, {1, n}, {n, 1}};
      for (const Sizes& s : kShapes) {
        if (model::count(s) == n) choices.push_back(s);
      }
      step.what = kind == 5 ? What::kReshape : What::kView;
      step.shape = choices[below(choices.size())];
      return true;
    }
    if (kind == 7) {
      step.what = What::kExpand;
      for (const std::int64_t s : shape) {
        step.shape.push_back(s == 1 ? 2 + static_cast<std::int64_t>(below(2)) : s);
      }
      if (chance(0.4) && shape.size() < 3) step.shape.insert(step.shape.begin(), 2);
      return true;
    }
    step.what = What::kUnbind;
    step.dim = static_cast<int>(below(shape.size()));
    return true;
  }
  if (kind < 2) {
    step.what = What::kIndex;
    step.index = index(shape);
    return true;
  }
  step.dim = static_cast<int>(below(shape.size()));
  const auto size = static_cast<std::uint64_t>(shape[static_cast<std::size_t>(step.dim)]);
  step.at = static_cast<std::int64_t>(below(size));
  if (kind == 2) {
    step.what = What::kSelect;
  } else if (kind == 3) {
    step.what = What::kSlice;
    step.length = 1 + static_cast<std::int64_t>(below(size - static_cast<std::uint64_t>(step.at)));
  } else {
    step.what = What::kTranspose;
    step.other_dim = static_cast<int>(below(shape.size()));
  }
  return true;
}

bool Chooser::write(Step& step, const Env& env, int kind) {
  const Handle& x = *env.at(step.a);
  step.out = -1;
  if (kind == kSetData) {
    // D9 is refused while views exist, and only the client knows which of them do.
    if (x.base->had_views || x.is_view()) return false;
    step.what = What::kSetData;
    step.b = pick(env, [&](const Handle& h) { return h.shape() == x.shape() && &h != &x; });
    return step.b >= 0;
  }
  if (kind == kSetItem) {
    if (x.shape().empty()) return false;
    step.what = What::kSetItem;
    step.index = index(x.shape());
    Sizes region;
    for (std::size_t d = 0; d < x.shape().size(); ++d) {
      if (d >= step.index.size()) {
        region.push_back(x.shape()[d]);
      } else if (const Index& i = step.index[d]; !i.number) {
        region.push_back((i.stop - i.start + i.step - 1) / i.step);
      }
    }
    step.number = scalar();
    const int v = fitting(env, region);
    if (v >= 0 && chance(0.8)) step.b = v;
    return true;
  }
  const int fits = fitting(env, x.shape());
  const double draw = static_cast<double>(below(1000)) / 1000;
  const int zero_d = pick(env, [](const Handle& h) { return h.shape().empty(); });
  if (draw < 0.25) {
    step.what = What::kUnaryInplace;
    step.op = kUnary[below(4)];
  } else if (draw < 0.6 && fits >= 0) {
    const What ops[] = {What::kAddInplace, What::kMulInplace, What::kCopyInplace};
    step.what = ops[below(3)];
    step.b = below(3) == 0 ? step.a : fits;
  } else if (draw < 0.7 && zero_d >= 0) {
    step.what = What::kFillInplace;
    step.b = zero_d;
  } else {
    const What ops[] = {What::kAddInplace, What::kMulInplace, What::kFillInplace};
    step.what = ops[below(3)];
    step.number = scalar();
  }
  return true;
}

bool Chooser::tape(Step& step, const Env& env, int kind, int i) {
  const Handle& x = *env.at(step.a);
  step.data = random_() % 1000000;
  const auto graded = [](const Handle& h) { return h.requires_grad(); };
  const int out = step.out;
  step.out = -1;
  switch (kind) {
    case kFlag:
      step.what = What::kFlag;
      step.flag = chance(0.75);
      return true;
    case kRetain:
      step.what = What::kRetain;
      return true;
    case kHook:
      step.what = What::kHook;
      step.dim = 8 * i;
      step.flag = chance(0.5);
      return true;
    case kBackward: {
      if (const int a = pick(env, graded); a >= 0) step.a = a;
      step.what = What::kBackward;
      step.no_grad = false;
      const bool scalar_loss = env.at(step.a)->shape().empty() && chance(0.9);
      step.seeded = !scalar_loss && !chance(0.05);
      const int retain[] = {-1, 1, 1, 1, 0};
      step.retain = retain[below(5)];
      step.create = chance(0.2);
      return true;
    }
    case kGrad: {
      if (const int a = pick(env, graded); a >= 0) step.a = a;
      step.what = What::kGrad;
      step.no_grad = false;
      step.seeded = true;
      std::set<int> inputs;
      for (std::uint64_t n = 1 + below(3); n > 0; --n) {
        const bool wild = chance(0.01);
        const int in = pick(env, [&](const Handle& h) { return wild || h.requires_grad(); });
        inputs.insert(in >= 0 ? in : step.a);
      }
      step.inputs.assign(inputs.begin(), inputs.end());
      step.out = out;
      const int retain[] = {-1, 1, 1, 1};
      step.retain = retain[below(4)];
      step.create = chance(0.5);
      step.allow_unused = chance(0.95);
      return true;
    }
    case kGetGrad:
      step.a = pick(env, [](const Handle& h) { return h.grad != nullptr; });
      step.what = What::kGetGrad;
      step.out = out;
      return step.a >= 0;
    case kSetGrad: {
      const bool wild = chance(0.02);
      const int same = pick(env, [&](const Handle& h) { return wild || h.shape() == x.shape(); });
      step.what = What::kSetGrad;
      step.b = same >= 0 ? same : step.a;
      return true;
    }
    case kNoGrad:
      step.what = What::kNoGrad;
      return true;
    case kZeroGrad:
      step.what = What::kZeroGrad;
      step.no_grad = true;
      return true;
    default:
      step.what = What::kDrop;
      return true;
  }
}

}  // namespace teletensor::fuzz
