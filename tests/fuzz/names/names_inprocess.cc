// Runs random programs about names, views, in-place writes and the tape in one process: the real
// client (shape inference and frames), and the real front end and executor, compared with the
// specification (model.h). Every visible fact is compared: layout, requires_grad, is_leaf, views,
// groups, shared storage, .grad, values, the gradients that hooks saw and their order, and refusals
// with their kind.
//
//   names_inprocess [--programs N] [--from K] [--seconds S] [--seed S] [--failures N]
//
// --failures: one instruction fails; all results must be as if it, and everything that depends on
// it, had not been issued (design section 6).
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "program.h"
#include "subject.h"

namespace teletensor::fuzz {
namespace {

using core::Attribute;
using model::Handle;
using model::Numbers;
using model::Sizes;

// numbers beyond it end a program, because rounding would hide or cause mismatches
constexpr double kLarge = 1e4;

// Texts of errors, with the names of their kinds in the specification.
const char* kind_of(const std::string& text) {
  static constexpr std::pair<const char*, const char*> kKinds[] = {
      {"multiple views", "multi_view"},
      {"created in no_grad mode", "no_grad_view"},
      {"view of a view which was created in", "no_grad_view"},
      {"a view of a leaf Variable that requires grad is being", "leaf_view"},
      {"a leaf Variable that requires grad is being", "leaf"},
      {"more than one element of the written-to", "overlap"},
      {"view size is not compatible", "view"},
      {"can only change requires_grad flags of leaf", "nonleaf_flag"},
      {"as its own grad", "own_grad"},
      {"attempting to assign a gradient of size", "grad_shape"},
      {"can't retain_grad", "retain_grad"},
      {"cannot register a hook", "hook"},
      {"only for scalar outputs", "scalar"},
      {"Mismatch in shape", "seed_shape"},
      {"does not require grad and does not have", "no_graph"},
      {"differentiated Tensors does not", "no_graph_input"},
      {"appears to not have been used", "unused"},
      {"backward through the graph a second", "second_backward"},
      {"moved into the graph interior", "leaf_moved"},
      {"must match the size", "shape"},
      {"doesn't match the broadcast shape", "shape"},
      {"is invalid for input", "shape"},
      {"cannot be multiplied", "shape"},
      {"must match the existing size", "shape"},
      {"expanded size", "shape"}};
  for (const auto& [part, kind] : kKinds) {
    if (text.find(part) != std::string::npos) return kind;
  }
  return "other";
}

// The specification.
struct Model {
  model::World world;
  Env env;
  std::vector<std::pair<int, Numbers>> log;

  void name(int out, Handle* h) {
    if (h != nullptr) env[out] = h;
  }
  Handle* at(int name) { return env.at(name); }

  Handle* indexed(Handle* h, const std::vector<Index>& index) {
    int dim = 0;
    for (const Index& i : index) {
      h = i.number ? world.select(h, dim, i.start) : world.slice(h, dim, i.start, i.stop, i.step);
      dim += !i.number;
    }
    return h;
  }

  // Returns the kind of the refusal, or nullptr.
  const char* step(const Step& s) {
    world.grad_mode = !s.no_grad;
    try {
      act(s);
    } catch (const model::Refused& refused) {
      return refused.kind;
    }
    return nullptr;
  }

  void act(const Step& s) {
    static const std::map<std::string, model::Op> kUnary = {{"neg", model::Op::kNeg},
                                                            {"sin", model::Op::kSin},
                                                            {"exp", model::Op::kExp},
                                                            {"tanh", model::Op::kTanh},
                                                            {"clone", model::Op::kClone}};
    if (s.what == What::kNew) {
      return name(s.out, world.tensor(s.shape, numbers_of(s.data, model::count(s.shape)), s.flag));
    }
    Handle* a = at(s.a);
    Handle* b = s.b >= 0 ? at(s.b) : nullptr;
    const auto other = [&] { return b != nullptr ? b : world.number(s.number); };
    switch (s.what) {
      case What::kUnary:
        return name(s.out, world.apply(kUnary.at(s.op), {a}));
      case What::kAdd:
        return name(s.out, world.add(a, other()));
      case What::kMul:
        return name(s.out, world.mul(a, other()));
      case What::kLoop: {
        Handle* x = a;
        for (const Line& line : lines_of(s)) {
          Handle* const other = line.with_b ? b : nullptr;
          switch (line.op) {
            case Line::Op::kSin:
              x = world.apply(model::Op::kSin, {x});
              break;
            case Line::Op::kTanh:
              x = world.apply(model::Op::kTanh, {x});
              break;
            case Line::Op::kNeg:
              x = world.apply(model::Op::kNeg, {x});
              break;
            case Line::Op::kAdd:
              x = world.add(x, other != nullptr ? other : world.number(line.number));
              break;
            case Line::Op::kMul:
              x = world.mul(x, other != nullptr ? other : world.number(line.number));
              break;
          }
        }
        return name(s.out, x);
      }
      case What::kMatmul:
        return name(s.out, world.apply(model::Op::kMatmul, {a, b}));
      case What::kSum:
        return name(s.out, world.sum(a, s.dim));
      case What::kSelect:
        return name(s.out, world.select(a, s.dim, s.at));
      case What::kSlice:
        return name(s.out, world.slice(a, s.dim, s.at, s.at + s.length, 1));
      case What::kTranspose:
        return name(s.out, world.transpose(a, s.dim, s.other_dim));
      case What::kUnbind: {
        const std::vector<Handle*> made = world.unbind(a, s.dim);
        for (std::size_t i = 0; i < made.size(); ++i) name(s.out + static_cast<int>(i), made[i]);
        return;
      }
      case What::kView:
        return name(s.out, world.view(a, s.shape));
      case What::kReshape:
        return name(s.out, world.reshape(a, s.shape));
      case What::kExpand:
        return name(s.out, world.expand(a, s.shape));
      case What::kIndex:
        return name(s.out, indexed(a, s.index));
      case What::kDetach:
        return name(s.out, world.detach(a));
      case What::kData:
        return name(s.out, world.data(a));
      case What::kUnaryInplace:
        return world.inplace(a, kUnary.at(s.op), {});
      case What::kAddInplace:
        return world.inplace(a, model::Op::kAdd, {other()});
      case What::kMulInplace:
        return world.inplace(a, model::Op::kMul, {other()});
      case What::kCopyInplace:
        return world.inplace(a, model::Op::kCopy, {b}, b->cell == a->cell && b->geo == a->geo);
      case What::kFillInplace:
        return world.inplace(a, model::Op::kCopy, {other()}, b == nullptr);
      case What::kSetItem: {
        bool all = true;
        for (std::size_t d = 0; d < s.index.size(); ++d) {
          const Index& i = s.index[d];
          all &= !i.number && i.start == 0 && i.step == 1 && i.stop == a->shape()[d];
        }
        Handle* region = all ? a : indexed(a, s.index);
        if (b == nullptr || (b->shape().empty() && !region->shape().empty())) {
          return world.inplace(region, model::Op::kCopy, {other()}, b == nullptr);
        }
        if (b->shape() != region->shape()) b = world.expand(b, region->shape());
        return world.inplace(region, model::Op::kCopy, {b},
                             b->cell == region->cell && b->geo == region->geo);
      }
      case What::kSetData:
        return world.set_data(a, b);
      case What::kFlag:
        return world.requires_grad_(a, s.flag);
      case What::kRetain:
        return world.retain_grad(a);
      case What::kHook:
        return world.register_hook(a, [this, tag = s.dim, scale = s.flag](Handle* g) -> Handle* {
          log.emplace_back(tag, world.contents(g).data);
          return scale ? world.mul(g, world.number(2.0)) : nullptr;
        });
      case What::kBackward:
        (void)world.backward(a, seed(s, a), nullptr, s.retain, s.create, true);
        return;
      case What::kGrad: {
        std::vector<Handle*> inputs;
        for (const int n : s.inputs) inputs.push_back(at(n));
        const std::vector<Handle*> found =
            world.backward(a, seed(s, a), &inputs, s.retain, s.create, s.allow_unused);
        for (std::size_t i = 0; i < found.size(); ++i) name(s.out + static_cast<int>(i), found[i]);
        return;
      }
      case What::kGetGrad:
        return name(s.out, a->grad);
      case What::kSetGrad:
        return world.set_grad(a, b);
      case What::kNoGrad:
        a->grad = nullptr;
        return;
      case What::kZeroGrad:
        if (a->grad != nullptr) {
          world.inplace(a->grad, model::Op::kCopy, {world.number(0)}, true);
        }
        return;
      default:
        env.erase(s.a);
    }
  }

  Handle* seed(const Step& s, const Handle* a) {
    if (!s.seeded) return nullptr;
    return world.tensor(a->shape(), numbers_of(s.data, model::count(a->shape())));
  }
};

// The real client and daemon.
struct Subject {
  Client client;
  std::map<int, client::HandleRef> env;

  ~Subject() { env.clear(); }

  void name(int out, client::HandleRef h) {
    if (h) env[out] = std::move(h);
  }
  ops::Var var(int name) { return client.var(env.at(name)); }

  client::HandleRef indexed(client::HandleRef h, const std::vector<Index>& index, bool* full) {
    int dim = 0;
    for (const Index& i : index) {
      if (!h) return h;
      if (i.number) {
        h = client.call_op("select", {client.var(h)}, {Attribute::of(dim), Attribute::of(i.start)});
        *full = false;
        continue;
      }
      if (i.start != 0 || i.step != 1 || i.stop != h->shape()[dim]) {
        const std::int64_t length = (i.stop - i.start + i.step - 1) / i.step;
        h = client.call_op("slice", {client.var(h)},
                           {Attribute::of(dim), Attribute::of(i.start), Attribute::of(length),
                            Attribute::of(i.step)});
        *full = false;
      }
      ++dim;
    }
    return h;
  }

  const char* step(const Step& s) {
    client.refused = {};
    client::set_grad_mode(!s.no_grad);
    act(s);
    client::set_grad_mode(true);
    return client.refused.ok() ? nullptr : kind_of(client.refused.message());
  }

  void keep(core::Status status) {
    if (!status.ok() && client.refused.ok()) client.refused = std::move(status);
  }

  client::HandleRef seed(const Step& s, const client::HandleRef& a) {
    if (!s.seeded) return {};
    return client.make(sizes(a->shape()), numbers_of(s.data, a->geometry().numel()));
  }
  static Sizes sizes(const core::Dims& dims) { return Sizes(dims.begin(), dims.end()); }
  static Attribute list(const Sizes& sizes) {
    return Attribute::of(std::span<const std::int64_t>(sizes));
  }

  void act(const Step& s) {
    if (s.what == What::kNew) {
      name(s.out, client.make(s.shape, numbers_of(s.data, model::count(s.shape))));
      if (s.flag) keep(client.set_requires_grad(*env.at(s.out), true));
      return;
    }
    const client::HandleRef a = env.at(s.a);
    const ops::Var x = client.var(a);
    const ops::Var other = s.b >= 0 ? var(s.b) : ops::Var(s.number);
    switch (s.what) {
      case What::kUnary:
        return name(s.out, client.call_op(s.op, {x}));
      case What::kAdd:
        return name(s.out, client.call_op("add", {x, other}));
      case What::kMul:
        return name(s.out, client.call_op("mul", {x, other}));
      case What::kLoop: {
        client::HandleRef h = a;
        for (const Line& line : lines_of(s)) {
          static constexpr const char* kOps[] = {"sin", "tanh", "neg", "add", "mul"};
          std::vector<ops::Var> arguments{client.var(h)};
          if (line.op == Line::Op::kAdd || line.op == Line::Op::kMul) {
            arguments.push_back(line.with_b ? var(s.b) : ops::Var(line.number));
          }
          h = client.call_op(kOps[static_cast<int>(line.op)], arguments);
          if (!h) return;
        }
        return name(s.out, h);
      }
      case What::kMatmul:
        return name(s.out, client.call_op("matmul", {x, other}));
      case What::kSum:
        if (s.dim < 0) return name(s.out, client.call_op("sum", {x}));
        return name(s.out, client.call_op("sum", {x}, {list({s.dim})}));
      case What::kSelect:
        return name(s.out,
                    client.call_op("select", {x}, {Attribute::of(s.dim), Attribute::of(s.at)}));
      case What::kSlice:
        return name(s.out, client.call_op("slice", {x},
                                          {Attribute::of(s.dim), Attribute::of(s.at),
                                           Attribute::of(s.length)}));
      case What::kTranspose:
        return name(s.out, client.call_op("transpose", {x},
                                          {Attribute::of(s.dim), Attribute::of(s.other_dim)}));
      case What::kUnbind: {
        client::Handles made = client.call_list("unbind", {x}, {Attribute::of(s.dim)});
        for (std::size_t i = 0; i < made.size(); ++i) name(s.out + static_cast<int>(i), made[i]);
        return;
      }
      case What::kView:
        return name(s.out, client.call_op("view", {x}, {list(s.shape)}));
      case What::kReshape:
        return name(s.out, client.call_op("reshape", {x}, {list(s.shape)}));
      case What::kExpand:
        return name(s.out, client.call_op("expand", {x}, {list(s.shape)}));
      case What::kIndex: {
        bool full = true;
        client::HandleRef h = indexed(a, s.index, &full);
        if (h == a) h = client.call_op("alias", {x});
        return name(s.out, std::move(h));
      }
      case What::kDetach:
        return name(s.out, client.call_op("detach", {x}));
      case What::kData:
        return name(s.out, client.call_op("data", {x}));
      case What::kUnaryInplace:
        return client.call_inplace(s.op, {x});
      case What::kAddInplace:
        return client.call_inplace("add", {x, other});
      case What::kMulInplace:
        return client.call_inplace("mul", {x, other});
      case What::kCopyInplace:
        return client.call_inplace("copy", {x, other});
      case What::kFillInplace:
        return client.call_inplace("fill", {x, other});
      case What::kSetItem: {
        bool full = true;
        const client::HandleRef view = indexed(a, s.index, &full);
        if (!view) return;
        const client::HandleRef region = full ? a : view;
        if (s.b < 0 || (other.rank() == 0 && region->shape().size() != 0)) {
          return client.call_inplace("fill", {client.var(region), other});
        }
        if (other.shape() == region->shape()) {
          return client.call_inplace("copy", {client.var(region), other});
        }
        const client::HandleRef wide =
            client.call_op("expand", {other}, {list(sizes(region->shape()))});
        if (wide) client.call_inplace("copy", {client.var(region), client.var(wide)});
        return;
      }
      case What::kSetData:
        return keep(client.set_data(*a, *env.at(s.b)));
      case What::kFlag:
        return keep(client.set_requires_grad(*a, s.flag));
      case What::kRetain:
        return keep(client.retain_grad(*a));
      case What::kHook:
        return keep(client.register_hook(*a, client.add_hook(s.dim, s.flag)));
      case What::kBackward:
      case What::kGrad: {
        autograd::BackwardCall call;
        call.roots = {a};
        call.seeds = {seed(s, a)};
        call.retain_graph = s.retain < 0 ? s.create : s.retain != 0;
        call.has_inputs = s.what == What::kGrad;
        call.allow_unused = !call.has_inputs || s.allow_unused;
        for (const int n : s.inputs) call.inputs.push_back(env.at(n));
        std::vector<client::HandleRef> found;
        keep(client.backward(std::move(call), s.create, found));
        for (std::size_t i = 0; i < found.size(); ++i) name(s.out + static_cast<int>(i), found[i]);
        return;
      }
      case What::kGetGrad:
        return name(s.out, a->grad);
      case What::kSetGrad:
        return keep(client.assign_grad(*a, env.at(s.b).get()));
      case What::kNoGrad:
        if (a->grad) keep(client.assign_grad(*a, nullptr));
        return;
      case What::kZeroGrad:
        if (a->grad) client.call_inplace("fill", {client.var(a->grad), ops::Var(0.0)});
        return;
      default:
        env.erase(s.a);
    }
  }
};

// ---------------------------------------------------------------- comparing

bool close(const Numbers& x, const Numbers& y) {
  if (x.size() != y.size()) return false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!(std::abs(x[i] - y[i]) <= 1e-8 + 1e-7 * std::abs(y[i]))) return false;
  }
  return true;
}

std::string text_of(const Numbers& numbers) {
  std::string text = "[";
  for (const double x : numbers) text += std::to_string(x) + " ";
  return text + "]";
}

std::string layout_of(const model::Geo& g) {
  std::string text;
  for (const std::int64_t n : g.shape) text += std::to_string(n) + ",";
  text += "/";
  for (const std::int64_t n : g.strides) text += std::to_string(n) + ",";
  return text + "+" + std::to_string(g.offset);
}
std::string layout_of(const core::Geometry& g) {
  return layout_of(model::Geo(Subject::sizes(g.shape), Subject::sizes(g.strides), g.offset));
}
// For a .grad, the strides of dimensions of size 1 are not compared (D7).
bool same_layout(const model::Geo& x, const core::Geometry& y, bool grad) {
  if (x.offset != y.offset || x.shape != Subject::sizes(y.shape)) return false;
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    if (x.strides[d] != y.strides[static_cast<int>(d)] && !(grad && x.shape[d] == 1)) return false;
  }
  return true;
}

// For each entry, the index of the first entry that is equal.
std::vector<std::size_t> partition(const std::vector<const void*>& keys) {
  std::vector<std::size_t> out;
  for (const void* key : keys) {
    out.push_back(
        static_cast<std::size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin()));
  }
  return out;
}

// The first visible fact in which the two sides differ, or "".
std::string mismatch(Model& m, Subject& s, bool tape, bool values) {
  if (m.env.size() != s.env.size()) return "other names";
  std::vector<const void*> cells[2], groups[2];
  std::vector<std::pair<Handle*, client::HandleRef>> all;
  std::vector<std::string> labels;
  for (const auto& [name, x] : m.env) {
    const auto found = s.env.find(name);
    const std::string label = "t" + std::to_string(name);
    if (found == s.env.end()) return label + " is missing";
    const client::HandleRef& y = found->second;
    if (x->is_view() != y->is_view()) return label + ": is_view";
    if (tape) {
      const char *refused = nullptr, *ours = nullptr;
      bool leaf = false, our_leaf = false;
      try {
        leaf = m.world.is_leaf(x);
      } catch (const model::Refused& error) {
        refused = error.kind;
      }
      if (auto result = s.client.node_of(*y); result.ok()) {
        our_leaf = *result == nullptr;
      } else {
        ours = kind_of(result.status().message());
      }
      if (leaf != our_leaf || std::string(refused ? refused : "") != (ours ? ours : "")) {
        return label + ": is_leaf " + std::to_string(leaf) + " " + (refused ? refused : "") +
               ", ours " + std::to_string(our_leaf) + " " + (ours ? ours : "");
      }
    }
    if ((x->grad == nullptr) != (y->grad == nullptr)) return label + ".grad is there or not";
    all.emplace_back(x, y);
    labels.push_back(label);
  }
  for (std::size_t i = 0, n = all.size(); i < n; ++i) {
    if (all[i].first->grad == nullptr) continue;
    labels.push_back(labels[i] + ".grad");
    all.emplace_back(all[i].first->grad, all[i].second->grad);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    Handle* x = all[i].first;
    const client::HandleRef& y = all[i].second;
    if (!same_layout(x->geo, y->geometry(), i >= m.env.size())) {
      return labels[i] + ": layout " + layout_of(x->geo) + ", ours " + layout_of(y->geometry());
    }
    if (x->requires_grad() != y->requires_grad()) return labels[i] + ": requires_grad";
    cells[0].push_back(x->cell);
    cells[1].push_back(y->cell.get());
    groups[0].push_back(x->base);
    groups[1].push_back(&y->group());
    if (!values) continue;
    Numbers ours;
    if (!s.client.read(*y, ours)) return labels[i] + " is an error";
    const Numbers want = m.world.contents(x).data;
    if (!close(want, ours)) return labels[i] + ": " + text_of(want) + ", ours " + text_of(ours);
  }
  if (partition(cells[0]) != partition(cells[1])) return "storage sharing";
  if (partition(groups[0]) != partition(groups[1])) return "groups";
  if (m.log.size() != s.client.log.size()) return "number of hook calls";
  for (std::size_t i = 0; i < m.log.size(); ++i) {
    if (m.log[i].first != s.client.log[i].first) return "order of hooks";
    if (!close(m.log[i].second, s.client.log[i].second)) {
      return "hook t" + std::to_string(m.log[i].first) + " saw " + text_of(m.log[i].second) +
             ", ours " + text_of(s.client.log[i].second);
    }
  }
  return "";
}

// ---------------------------------------------------------------- running

struct Counts {
  std::uint64_t programs = 0, steps = 0, refusals = 0, ended = 0, inplace = 0, hooks = 0;
  std::uint64_t failed = 0, lost = 0, compared = 0, gradients = 0, repeated = 0;
};

// D11: the effect of these steps on a view whose stale history refuses them is not specified.
bool left_open(const Step& s, Model& m) {
  if (s.what != What::kFlag && s.what != What::kRetain) return false;
  try {
    (void)m.world.is_leaf(m.at(s.a));
  } catch (const model::Refused&) {
    return true;
  }
  return false;
}

bool runnable(const Step& s, Model& m) {
  const Env& env = m.env;
  if (s.what == What::kNew) return true;
  const auto it = env.find(s.a);
  if (it == env.end() || (s.b >= 0 && !env.contains(s.b))) return false;
  for (const int n : s.inputs) {
    if (!env.contains(n)) return false;
  }
  if (s.what == What::kSetData) {
    const Handle *a = it->second, *b = env.at(s.b);
    return a != b && a->shape() == b->shape();
  }
  if (left_open(s, m)) return false;
  return s.what != What::kGetGrad || it->second->grad != nullptr;
}

bool too_large(const Model& m) {
  for (const auto& [name, h] : m.env) {
    for (const double x : m.world.contents(h).data) {
      if (!(std::abs(x) <= kLarge)) return true;
    }
  }
  return false;
}

void show(const std::vector<Step>& program) {
  for (const Step& s : program) std::fprintf(stderr, "  %s\n", text_of(s).c_str());
}

// Runs it; a disagreement between client and daemon is a mismatch like any other.
template <class Run>
std::string caught(Run run) {
  try {
    return run();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

std::string run_steps(std::vector<Step>& program, Chooser* chooser, std::size_t length, bool look,
                      Counts& counts) {
  Model m;
  Subject s;
  for (std::size_t i = 0; chooser != nullptr ? i < length : i < program.size(); ++i) {
    if (chooser != nullptr) program.push_back(chooser->next(m.env, static_cast<int>(i) + 1));
    const Step& step = program[i];
    const bool last = i + 1 == (chooser != nullptr ? length : program.size());
    if (runnable(step, m)) {
      const char *want = m.step(step), *got = s.step(step);
      ++counts.steps;
      counts.refusals += want != nullptr;
      counts.inplace += step.what >= What::kUnaryInplace && step.what <= What::kSetItem;
      if (std::string(want ? want : "") != (got ? got : "")) {
        return text_of(step) + ": refused for " + (want ? want : "nothing") + ", ours " +
               (got ? got : "nothing") + " (" + s.client.refused.message() + ")";
      }
    } else if (!last) {
      continue;
    }
    // Values are compared after every third step, because a wrong value stays in its name.
    const std::string bad = mismatch(m, s, look || last, last || i % 3 == 0);
    if (!bad.empty()) return "after " + text_of(step) + ": " + bad;
    if (too_large(m)) {
      ++counts.ended;
      break;
    }
  }
  counts.hooks += m.log.size();
  counts.repeated += s.client.daemon.repeated;
  return mismatch(m, s, true, true);
}

// Runs `program`, or lets `chooser` generate it. Returns the mismatch, or "".
std::string run(std::vector<Step>& program, Chooser* chooser, std::size_t length, bool look,
                Counts& counts) {
  return caught([&] { return run_steps(program, chooser, length, look, counts); });
}

// Runs `program` with the instruction `at` failing, compared with the specification without the
// instructions that did not run. `look`: the nodes of the names are requested between the failure
// and its raise, which recreates those of views.
std::string run_failing(const std::vector<Step>& program, std::int64_t at, bool look,
                        Counts& counts) {
  Subject a;
  Model twin;
  std::vector<const Step*> happened;
  a.client.daemon.fail_at = at;
  for (const Step& step : program) {
    if (step.what != What::kNew &&
        (!a.env.contains(step.a) || (step.b >= 0 && !a.env.contains(step.b)))) {
      continue;
    }
    const std::uint64_t before = a.client.commands().last_seq();
    const char* refused = a.step(step);
    // The daemon's progress is known at once here, but the failure has not been raised yet.
    a.client.pump();
    for (const auto& [name, h] : a.env) {
      if (look) (void)a.client.node_of(*h);
    }
    bool lost = false;
    for (std::uint64_t seq = before + 1; seq <= a.client.commands().last_seq(); ++seq) {
      lost |= a.client.daemon.failed.contains(seq);
    }
    counts.lost += lost;
    if (refused == nullptr && !lost) happened.push_back(&step);
  }
  a.client.daemon.fail_at = -1;
  for (const Step* step : happened) {
    if (step->what != What::kNew && !twin.env.contains(step->a)) continue;
    if (step->b >= 0 && !twin.env.contains(step->b)) continue;
    if (const char* refused = twin.step(*step)) {
      return text_of(*step) + ": refused (" + refused + ") where nothing failed";
    }
  }
  if (a.client.raise_all() > 0) ++counts.failed;
  // Names whose creation failed stay errors; all other names must be equal to the twin's.
  for (auto it = a.env.begin(); it != a.env.end();) {
    Numbers ours;
    const bool good = a.client.read(*it->second, ours);
    if (good != twin.env.contains(it->first)) {
      return "t" + std::to_string(it->first) + (good ? " has a value" : " is an error");
    }
    it = good ? std::next(it) : a.env.erase(it);
  }
  std::string bad = mismatch(twin, a, true, true);
  if (!bad.empty()) return bad;
  counts.compared += a.env.size();
  Step backward;
  backward.what = What::kBackward;
  backward.seeded = true;
  backward.retain = 1;
  const Env names = twin.env;
  for (const auto& [name, h] : names) {
    backward.a = name;
    backward.data = static_cast<std::uint64_t>(name);
    const char *want = twin.step(backward), *got = a.step(backward);
    if (std::string(want ? want : "") != (got ? got : "")) {
      return "t" + std::to_string(name) + ".backward(): " + (want ? want : "nothing") + ", ours " +
             (got ? got : "nothing");
    }
    counts.gradients += want == nullptr;
  }
  return mismatch(twin, a, true, true);
}

bool programs(std::uint64_t seed, std::uint64_t from, std::uint64_t most, double seconds,
              Counts& counts) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (std::uint64_t k = from; k < from + most; ++k) {
    if (seconds > 0 && std::chrono::steady_clock::now() >= end) break;
    Chooser chooser(seed * 1000003 + k, false);
    // if false, nodes that are created on demand are not created
    const bool look = chooser.chance(0.75);
    std::vector<Step> program;
    const std::size_t length = 5 + chooser.below(36);
    std::string bad = run(program, &chooser, length, look, counts);
    ++counts.programs;
    if (bad.empty()) continue;
    std::fprintf(stderr, "program %llu of seed %llu: %s\n", static_cast<unsigned long long>(k),
                 static_cast<unsigned long long>(seed), bad.c_str());
    // Drops steps as long as a mismatch remains.
    Counts unused;
    for (std::size_t size = program.size() / 2 + 1; size > 0; size /= 2) {
      for (std::size_t i = 0; i + size <= program.size();) {
        std::vector<Step> shorter = program;
        shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(i),
                      shorter.begin() + static_cast<std::ptrdiff_t>(i + size));
        std::string still = run(shorter, nullptr, 0, look, unused);
        if (still.empty()) {
          ++i;
        } else {
          program = std::move(shorter);
          bad = std::move(still);
        }
      }
    }
    std::fprintf(stderr, "shrunk, look=%d:\n", look);
    show(program);
    std::fprintf(stderr, "-> %s\n", bad.c_str());
    return false;
  }
  return true;
}

bool failures(std::uint64_t seed, std::uint64_t most, Counts& counts) {
  for (std::uint64_t k = 0; k < most; ++k) {
    Chooser chooser(seed * 7000003 + k, true);
    std::vector<Step> program;
    Counts unused;
    const std::size_t length = 5 + chooser.below(25);
    std::string bad = run(program, &chooser, length, false, unused);
    std::int64_t at = -1;
    if (bad.empty()) {
      at = static_cast<std::int64_t>(chooser.below(length));
      const bool look = chooser.chance(0.3);
      bad = caught([&] { return run_failing(program, at, look, counts); });
    }
    ++counts.programs;
    if (bad.empty()) continue;
    std::fprintf(stderr, "failure program %llu of seed %llu, instruction %lld fails: %s\n",
                 static_cast<unsigned long long>(k), static_cast<unsigned long long>(seed),
                 static_cast<long long>(at), bad.c_str());
    show(program);
    return false;
  }
  return true;
}

}  // namespace
}  // namespace teletensor::fuzz

int main(int argc, char** argv) {
  std::uint64_t most = 1000000, from = 0, seed = 1, failing = 0;
  double seconds = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto number = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--programs") == 0) most = number;
    if (std::strcmp(argv[i], "--from") == 0) from = number;
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = number;
    if (std::strcmp(argv[i], "--failures") == 0) failing = number;
  }
  teletensor::fuzz::Counts counts, failed;
  const bool good = teletensor::fuzz::programs(seed, from, most, seconds, counts) &&
                    teletensor::fuzz::failures(seed, failing, failed);
  const auto n = [](std::uint64_t count) { return static_cast<unsigned long long>(count); };
  std::printf(
      "names_inprocess: %llu programs, %llu steps, %llu refused alike, %llu in-place writes, "
      "%llu hook calls, %llu ended on large numbers, %llu commands repeated\n",
      n(counts.programs), n(counts.steps), n(counts.refusals), n(counts.inplace), n(counts.hooks),
      n(counts.ended), n(counts.repeated));
  std::printf(
      "names_inprocess: %llu programs with a failure (%llu met it): %llu steps did not happen, "
      "%llu names and %llu gradients as in the twin\n",
      n(failed.programs), n(failed.failed), n(failed.lost), n(failed.compared),
      n(failed.gradients));
  return good ? 0 : 1;
}
