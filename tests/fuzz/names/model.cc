#include "model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <unordered_map>
#include <unordered_set>

namespace teletensor::fuzz::model {
namespace {

bool elementwise(Op op) { return op <= Op::kCopy; }

Sizes broadcast(const Sizes& a, const Sizes& b) {
  Sizes out(std::max(a.size(), b.size()));
  for (std::size_t i = 1; i <= out.size(); ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) throw Refused("shape");
    out[out.size() - i] = x == 1 ? y : x;
  }
  return out;
}

// For every element of `shape`, the element of a tensor of shape `from` that is broadcast to it.
Sizes spread(const Sizes& shape, const Sizes& from) {
  Geo geo(from);
  const std::size_t lead = shape.size() - from.size();
  Sizes strides(shape.size(), 0);
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1) strides[lead + d] = geo.strides[d];
  }
  return Geo(shape, strides, 0).positions();
}

Numbers spread_values(const Array& a, const Sizes& shape) {
  if (a.shape == shape) return a.data;
  Numbers out;
  for (const std::int64_t i : spread(shape, a.shape)) {
    out.push_back(a.data[static_cast<std::size_t>(i)]);
  }
  return out;
}

Sizes infer(Op op, const std::vector<Sizes>& shapes, const Attrs& attrs) {
  switch (op) {
    case Op::kAdd:
    case Op::kMul:
    case Op::kCopy:
      return broadcast(shapes[0], shapes[1]);
    case Op::kMatmul:
      if (shapes[0].size() != 2 || shapes[1].size() != 2 || shapes[0][1] != shapes[1][0]) {
        throw Refused("shape");
      }
      return {shapes[0][0], shapes[1][1]};
    case Op::kSum:
    case Op::kIndex:
    case Op::kScatter:
      return attrs.shape;
    default:
      return shapes[0];
  }
}

Array compute(Op op, const std::vector<Array>& in, const Sizes& shape, const Attrs& attrs) {
  Array out{shape, Numbers(static_cast<std::size_t>(count(shape)), 0.0)};
  Numbers& to = out.data;
  const auto each = [&](auto f) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = f(in[0].data[i]);
  };
  switch (op) {
    case Op::kAdd:
    case Op::kMul: {
      const Numbers x = spread_values(in[0], shape), y = spread_values(in[1], shape);
      for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = op == Op::kAdd ? x[i] + y[i] : x[i] * y[i];
      break;
    }
    case Op::kNeg:
      each([](double x) { return -x; });
      break;
    case Op::kSin:
      each([](double x) { return std::sin(x); });
      break;
    case Op::kCos:
      each([](double x) { return std::cos(x); });
      break;
    case Op::kExp:
      each([](double x) { return std::exp(x); });
      break;
    case Op::kTanh:
      each([](double x) { return std::tanh(x); });
      break;
    case Op::kClone:
      to = in[0].data;
      break;
    case Op::kCopy:
      to = spread_values(in[1], shape);
      break;
    case Op::kSum: {
      const Sizes where = spread(in[0].shape, attrs.keep);
      for (std::size_t i = 0; i < where.size(); ++i) {
        to[static_cast<std::size_t>(where[i])] += in[0].data[i];
      }
      break;
    }
    case Op::kMatmul: {
      const auto rows = static_cast<std::size_t>(shape[0]),
                 columns = static_cast<std::size_t>(shape[1]);
      const auto inner = static_cast<std::size_t>(in[0].shape[1]);
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < columns; ++j) {
          for (std::size_t k = 0; k < inner; ++k) {
            to[i * columns + j] += in[0].data[i * inner + k] * in[1].data[k * columns + j];
          }
        }
      }
      break;
    }
    case Op::kIndex:
      for (std::size_t i = 0; i < to.size(); ++i) {
        to[i] = in[0].data[static_cast<std::size_t>((*attrs.index)[i])];
      }
      break;
    case Op::kScatter:
      for (std::size_t i = 0; i < in[0].data.size(); ++i) {
        to[static_cast<std::size_t>((*attrs.index)[i])] += in[0].data[i];
      }
      break;
    case Op::kUpdate:
      to = in[0].data;
      for (std::size_t i = 0; i < in[1].data.size(); ++i) {
        to[static_cast<std::size_t>((*attrs.index)[i])] = in[1].data[i];
      }
      break;
  }
  return out;
}

// The values that the vjp reads. needs: which operands have an edge.
std::vector<int> saves(Op op, const std::vector<Edge>& edges) {
  switch (op) {
    case Op::kMul:
    case Op::kMatmul: {
      std::vector<int> out;
      if (edges[0]) out.push_back(1);
      if (edges[1]) out.push_back(0);
      return out;
    }
    case Op::kSin:
    case Op::kCos:
      return {0};
    case Op::kExp:
    case Op::kTanh:
      return {Node::kOut};
    default:
      return {};
  }
}

// RULE: strides of a new elementwise result follow the inputs' order of strides.
Geo elementwise_layout(const Sizes& shape, const std::vector<Handle*>& operands) {
  bool same = true, contiguous = true, alike = true;
  for (const Handle* h : operands) {
    same &= h->geo.shape == shape;
    contiguous &= h->geo.contiguous();
    alike &= h->geo.dense() && h->geo.strides == operands[0]->geo.strides;
  }
  if (same && contiguous) return Geo(shape);
  if (same && alike) return Geo(shape, operands[0]->geo.strides, 0);
  std::vector<Sizes> rows;
  for (const Handle* h : operands) {
    const std::size_t lead = shape.size() - h->geo.shape.size();
    Sizes row(shape.size(), 0);
    for (std::size_t d = 0; d < h->geo.shape.size(); ++d) {
      row[lead + d] = h->geo.shape[d] == 1 && shape[lead + d] != 1 ? 0 : h->geo.strides[d];
    }
    rows.push_back(std::move(row));
  }
  const auto inside = [&](std::size_t a, std::size_t b) {
    for (const Sizes& row : rows) {
      if (row[a] == 0 || row[b] == 0) continue;
      if (row[a] != row[b]) return row[a] < row[b] ? -1 : 1;
      if (shape[a] > shape[b]) return 1;
    }
    return 0;
  };
  std::vector<std::size_t> order, usual;
  for (std::size_t d = shape.size(); d-- > 0;) order.push_back(d);
  usual = order;
  for (std::size_t i = 1; i < order.size(); ++i) {  // the relation "either" is not transitive
    std::size_t at = i;
    for (std::size_t j = i; j-- > 0;) {
      const int swap = inside(order[j], order[at]);
      if (swap > 0) {
        std::swap(order[j], order[at]);
        at = j;
      } else if (swap < 0) {
        break;
      }
    }
  }
  if (order == usual) return Geo(shape);
  Sizes strides(shape.size());
  std::int64_t step = 1;
  for (const std::size_t d : order) {
    strides[d] = step;
    step *= shape[d];
  }
  return Geo(shape, strides, 0);
}

// For every element of `view`, the corresponding element of `base`.
std::shared_ptr<const Sizes> index_map(const Geo& base, const Geo& view) {
  std::unordered_map<std::int64_t, std::int64_t> back;
  const Sizes where = base.positions();
  for (std::size_t i = 0; i < where.size(); ++i) back[where[i]] = static_cast<std::int64_t>(i);
  auto out = std::make_shared<Sizes>(view.positions());
  for (std::int64_t& place : *out) place = back.at(place);
  return out;
}

class GradMode {
 public:
  GradMode(World& world, bool on) : world_(world), before_(world.grad_mode) {
    world.grad_mode = on;
  }
  ~GradMode() { world_.grad_mode = before_; }
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  World& world_;
  const bool before_;
};

}  // namespace

// ---------------------------------------------------------------- names

Handle* World::new_handle(Cell* cell, Geo geo, Clock* clock, Handle* base, Made made) {
  handles_.emplace_back(cell, std::move(geo), clock, base, made);
  Handle* h = &handles_.back();
  h->leaf = h;
  if (base == nullptr) h->base = h;
  return h;
}

Handle* World::named(const Array& contents, Geo geo) {
  Cell* cell = &cells_.emplace_back();
  cell->value.resize(contents.data.size());
  const Sizes where = geo.positions();
  for (std::size_t i = 0; i < where.size(); ++i) {
    cell->value[static_cast<std::size_t>(where[i])] = contents.data[i];
  }
  return new_handle(cell, std::move(geo), &clocks_.emplace_back());
}

Handle* World::tensor(Sizes shape, Numbers row_major, bool requires_grad) {
  Handle* h = named({shape, std::move(row_major)}, Geo(shape));
  h->flag = requires_grad;
  return h;
}

Array World::contents(const Handle* h) const {
  Array out{h->geo.shape, {}};
  for (const std::int64_t at : h->geo.positions()) {
    out.data.push_back(h->cell->value[static_cast<std::size_t>(at)]);
  }
  return out;
}

Handle* World::detach(Handle* h) { return new_handle(h->cell, h->geo, h->clock); }
Handle* World::data(Handle* h) { return new_handle(h->cell, h->geo, &clocks_.emplace_back()); }

void World::set_data(Handle* h, Handle* other) {
  h->cell = other->cell;
  h->geo = other->geo;
}

// ---------------------------------------------------------------- views

Handle* World::view_of(Handle* h, const Move& move, Made made) {
  if (!grad_mode) made = Made::kNoGrad;
  Geo geo = move(h->geo);
  Node* node = nullptr;
  if (grad_mode && h->requires_grad()) {
    Geo over_itself = move(Geo(h->shape()));
    Attrs attrs;
    attrs.shape = over_itself.shape;
    attrs.index = std::make_shared<Sizes>(over_itself.positions());
    node = record(Op::kIndex, {h}, {edge(h)}, nullptr, std::move(attrs));
  }
  Handle* out = new_handle(h->cell, std::move(geo), h->clock, h->base,
                           made == Made::kDefault ? h->made : made);
  h->base->had_views = true;
  out->node = node;
  return out;
}

Handle* World::select(Handle* h, int dim, std::int64_t i) {
  return view_of(h, [=](const Geo& g) { return g.select(dim, i); });
}
Handle* World::slice(Handle* h, int dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  return view_of(h, [=](const Geo& g) { return g.slice(dim, start, stop, step); });
}
Handle* World::transpose(Handle* h, int a, int b) {
  return view_of(h, [=](const Geo& g) { return g.transpose(a, b); });
}
Handle* World::expand(Handle* h, const Sizes& to) {
  return view_of(h, [&](const Geo& g) { return g.expand(to); });
}
std::vector<Handle*> World::unbind(Handle* h, int dim) {
  std::vector<Handle*> out;
  for (std::int64_t i = 0; i < h->shape()[static_cast<std::size_t>(dim)]; ++i) {
    out.push_back(view_of(
        h, [=](const Geo& g) { return g.select(dim, i); }, Made::kMulti));
  }
  return out;
}

Handle* World::view(Handle* h, const Sizes& to) {
  // a refused view must raise its own error before the flag changes
  if (grad_mode && h->requires_grad()) (void)node_of(h);
  Geo geo(Sizes{});
  if (!h->geo.view(to, &geo)) throw Refused("view");
  return view_of(h, [&](const Geo& g) {
    Geo moved(Sizes{});
    (void)g.view(to, &moved);
    return moved;
  });
}

Handle* World::reshape(Handle* h, const Sizes& to) {
  Geo geo(Sizes{});
  if (h->geo.view(to, &geo)) return view(h, to);
  Attrs attrs;
  attrs.shape = to;
  attrs.index = std::make_shared<Sizes>(Geo(to).positions());
  return apply(Op::kIndex, {h}, std::move(attrs));
}

// ---------------------------------------------------------------- the tape

Node* World::record(Op op, const std::vector<Handle*>& operands, std::vector<Edge> edges,
                    const Array* out, Attrs attrs) {
  Node* node = &nodes_.emplace_back();
  node->at = ++tape_;
  node->op = op;
  node->attrs = std::move(attrs);
  for (const Handle* h : operands) node->shapes.push_back(h->shape());
  for (const int which : saves(op, edges)) {
    if (which == Node::kOut) {
      node->saved.push_back({which, std::make_shared<Array>(*out), {node, nullptr}, true});
    } else {
      const auto at = static_cast<std::size_t>(which);
      node->saved.push_back({which, std::make_shared<Array>(contents(operands[at])), edges[at],
                             operands[at]->requires_grad()});
    }
  }
  node->edges = std::move(edges);
  return node;
}

Node* World::index_node(Handle* base, const Geo& view) {
  Attrs attrs;
  attrs.shape = view.shape;
  attrs.index = index_map(base->geo, view);
  return record(Op::kIndex, {base}, {edge(base)}, nullptr, std::move(attrs));
}

Node* World::node_of(Handle* h) {
  Handle* base = h->base;
  if (base == h || (h->node == nullptr && !base->requires_grad())) return h->node;
  if (h->clock->now != h->seen) {
    if (h->made != Made::kDefault) {
      throw Refused(h->made == Made::kMulti ? "multi_view" : "no_grad_view");
    }
    set_node(h, index_node(base, h->geo));
  }
  return h->node;
}

// RULE: retain_grad moves to the new node; hooks stay with the old one.
void World::set_node(Handle* h, Node* node) {
  if (h->retains) {
    h->node->retained_by = nullptr;
    node->retained_by = h;
  }
  h->node = node;
  h->seen = h->clock->now;
}

Edge World::edge(Handle* h) {
  if (Node* node = node_of(h)) return {node, nullptr};
  return {nullptr, h->flag ? h->leaf : nullptr};
}

// ---------------------------------------------------------------- computing

Handle* World::apply(Op op, std::vector<Handle*> operands, Attrs attrs) {
  std::vector<Sizes> shapes;
  bool wants = false;
  for (const Handle* h : operands) {
    shapes.push_back(h->shape());
    wants |= h->requires_grad();
  }
  const Sizes shape = infer(op, shapes, attrs);
  const bool recorded = grad_mode && wants;
  std::vector<Edge> edges;
  if (recorded) {
    for (Handle* h : operands) edges.push_back(edge(h));
  }
  std::vector<Array> in;
  for (const Handle* h : operands) in.push_back(contents(h));
  const Array out = compute(op, in, shape, attrs);
  Geo geo(shape);
  if (op == Op::kClone && operands[0]->geo.dense()) {
    geo = Geo(shape, operands[0]->geo.strides, 0);
  } else if (elementwise(op)) {
    geo = elementwise_layout(shape, operands);
  }
  Handle* h = named(out, std::move(geo));
  if (recorded) h->node = record(op, operands, std::move(edges), &out, std::move(attrs));
  return h;
}

Handle* World::sum(Handle* a, int dim) {
  Attrs attrs;
  if (dim < 0) {
    attrs.keep = Sizes(a->shape().size(), 1);
  } else {
    attrs.keep = attrs.shape = a->shape();
    attrs.keep[static_cast<std::size_t>(dim)] = 1;
    attrs.shape.erase(attrs.shape.begin() + dim);
  }
  return apply(Op::kSum, {a}, std::move(attrs));
}

void World::write(Handle* h, const Array& contents) {
  ++h->clock->now;
  const Sizes where = h->geo.positions();
  for (std::size_t i = 0; i < where.size(); ++i) {
    h->cell->value[static_cast<std::size_t>(where[i])] = contents.data[i];
  }
}

// RULE: refuse, compute, record, rebind the cell, rewrite history.
void World::inplace(Handle* h, Op op, std::vector<Handle*> others, bool fill) {
  std::vector<Handle*> operands = {h};
  operands.insert(operands.end(), others.begin(), others.end());
  Handle* base = h->base;
  bool recorded = false;
  std::vector<Sizes> shapes;
  for (const Handle* o : operands) {
    recorded |= o->requires_grad();
    shapes.push_back(o->shape());
  }
  recorded &= grad_mode;
  if (recorded) {
    if (base != h) {
      if (h->made != Made::kDefault) {
        throw Refused(h->made == Made::kMulti ? "multi_view" : "no_grad_view");
      }
      if (h->requires_grad() && is_leaf(base)) throw Refused("leaf_view");
    }
    if (h->requires_grad() && is_leaf(h)) throw Refused("leaf");
  }
  if (infer(op, shapes, {}) != h->shape()) throw Refused("shape");
  if ((h->geo.overlaps_itself() && (recorded || !fill)) ||
      (recorded && base->geo.overlaps_itself())) {
    throw Refused("overlap");
  }
  std::vector<Edge> edges;
  if (recorded) {
    for (Handle* o : operands) edges.push_back(edge(o));
    if (base != h && edge(base)) edges[0] = {index_node(base, h->geo), nullptr};
  }
  std::vector<Array> in;
  for (const Handle* o : operands) in.push_back(contents(o));
  const Array out = compute(op, in, h->shape(), {});
  Node* node = recorded ? record(op, operands, std::move(edges), &out, {}) : nullptr;
  Node* update = node;
  if (recorded && base != h) {
    Attrs attrs;
    attrs.index = index_map(base->geo, h->geo);
    update =
        record(Op::kUpdate, {base, h}, {edge(base), {node, nullptr}}, nullptr, std::move(attrs));
  }
  write(h, out);
  if (recorded) {
    set_node(base, update);
    (void)node_of(h);
  }
}

// ---------------------------------------------------------------- flags

void World::requires_grad_(Handle* h, bool on) {
  if (!on && !is_leaf(h)) throw Refused("nonleaf_flag");
  h->flag = on;
}

void World::set_grad(Handle* h, Handle* g) {
  if (g == h) throw Refused("own_grad");
  if (g != nullptr) {
    (void)node_of(h);  // refuses, as does every other use of such a view
    if (g->shape() != h->shape()) throw Refused("grad_shape");
    if (g->geo.overlaps_itself()) throw Refused("overlap");
  }
  h->grad = g;
}

void World::retain_grad(Handle* h) {
  if (!h->requires_grad()) throw Refused("retain_grad");
  if (is_leaf(h) || h->retains) return;
  h->retains = true;
  h->node->retained_by = h;
}

void World::register_hook(Handle* h, Hook hook) {
  if (!h->requires_grad()) throw Refused("hook");
  (is_leaf(h) ? h->hooks : h->node->hooks).push_back(std::move(hook));
}

// ---------------------------------------------------------------- vjps

Handle* World::zeros(const Sizes& shape) {
  return tensor(shape, Numbers(static_cast<std::size_t>(count(shape)), 0.0));
}

Handle* World::sum_to(Handle* x, const Sizes& shape) {
  if (x->shape() == shape) return x;
  Attrs attrs;
  attrs.keep = attrs.shape = shape;
  return apply(Op::kSum, {x}, std::move(attrs));
}

Handle* World::turned(Handle* x) {
  const Geo geo = Geo(x->shape()).transpose(0, 1);
  Attrs attrs;
  attrs.shape = geo.shape;
  attrs.index = std::make_shared<Sizes>(geo.positions());
  return apply(Op::kIndex, {x}, std::move(attrs));
}

// A saved value as a name with the edge with which it was saved; nullptr if there is none.
Handle* World::saved(Node& node, int which) {
  for (const Node::Saved& s : node.saved) {
    if (s.which != which) continue;
    Handle* h = named(*s.contents, Geo(s.contents->shape));
    if (s.edge.node != nullptr) {
      h->node = s.edge.node;
    } else {
      h->flag = s.requires_grad;
      h->leaf = s.edge.leaf;
    }
    return h;
  }
  return nullptr;
}

std::vector<Handle*> World::vjp(Node& node, Handle* g) {
  const std::vector<Sizes>& shapes = node.shapes;
  const auto indexed = [&](const Sizes& shape) {
    Attrs attrs;
    attrs.shape = shape;
    attrs.index = node.attrs.index;
    return attrs;
  };
  switch (node.op) {
    case Op::kAdd:
      return {sum_to(g, shapes[0]), sum_to(g, shapes[1])};
    case Op::kMul: {
      Handle *x = saved(node, 0), *y = saved(node, 1);
      return {y ? sum_to(mul(g, y), shapes[0]) : nullptr,
              x ? sum_to(mul(g, x), shapes[1]) : nullptr};
    }
    case Op::kNeg:
      return {neg(g)};
    case Op::kSin:
      return {mul(g, apply(Op::kCos, {saved(node, 0)}))};
    case Op::kCos:
      return {neg(mul(g, apply(Op::kSin, {saved(node, 0)})))};
    case Op::kExp:
      return {mul(g, saved(node, Node::kOut))};
    case Op::kTanh: {
      Handle* y = saved(node, Node::kOut);
      return {mul(g, add(neg(mul(y, y)), number(1.0)))};
    }
    case Op::kClone:
      return {g};
    case Op::kCopy:
      return {zeros(shapes[0]), sum_to(g, shapes[1])};
    case Op::kSum: {
      Attrs attrs;
      attrs.shape = shapes[0];
      attrs.index = std::make_shared<Sizes>(spread(shapes[0], node.attrs.keep));
      return {apply(Op::kIndex, {g}, std::move(attrs))};
    }
    case Op::kMatmul: {
      Handle *x = saved(node, 0), *y = saved(node, 1);
      return {y ? apply(Op::kMatmul, {g, turned(y)}) : nullptr,
              x ? apply(Op::kMatmul, {turned(x), g}) : nullptr};
    }
    case Op::kIndex:
      return {apply(Op::kScatter, {g}, indexed(shapes[0]))};
    case Op::kScatter:
      return {apply(Op::kIndex, {g}, indexed(shapes[0]))};
    case Op::kUpdate:
      return {apply(Op::kUpdate, {g, zeros(shapes[1])}, indexed({})),
              apply(Op::kIndex, {g}, indexed(shapes[1]))};
  }
  return {};
}

// ---------------------------------------------------------------- backward

// RULE: without a graph .grad is written in place (every reference to it sees the change), and with
// a graph it is replaced.
void World::accumulate(Handle* h, Handle* g) {
  if (!h->requires_grad()) return;
  if (h->grad == nullptr) {
    Handle* copy = apply(Op::kClone, {g});
    Geo geo = h->geo.dense() ? Geo(h->shape(), h->geo.strides, 0) : Geo(h->shape());
    h->grad = named(contents(copy), std::move(geo));
    h->grad->node = copy->node;
  } else if (grad_mode) {
    h->grad = add(h->grad, g);
  } else {
    inplace(h->grad, Op::kAdd, {g});
  }
}

// Nodes run in descending order of tape position; a leaf's gradient is final as soon as its last
// consumer has run, and the leaves of one node in operand order. Eager errors precede any effect.
std::vector<Handle*> World::backward(Handle* root, Handle* seed, const std::vector<Handle*>* inputs,
                                     int keep, bool create_graph, bool allow_unused) {
  if (seed == nullptr && root->requires_grad()) {
    if (count(root->shape()) != 1) throw Refused("scalar");
    seed = tensor(root->shape(), {1.0});
  } else if (seed != nullptr && seed->shape() != root->shape()) {
    throw Refused("seed_shape");
  }
  const Edge start = edge(root);
  if (!start) throw Refused("no_graph");
  std::vector<Edge> wanted;
  if (inputs != nullptr) {
    for (const Handle* h : *inputs) {
      if (!h->requires_grad()) throw Refused("no_graph_input");
    }
    for (Handle* h : *inputs) wanted.push_back(edge(h));
  }

  std::unordered_map<const void*, int> uses;
  std::unordered_set<const void*> marked = {start.key()};
  std::vector<Edge> seen, stack = {start};
  while (!stack.empty()) {
    const Edge target = stack.back();
    stack.pop_back();
    seen.push_back(target);
    if (target.node == nullptr) continue;
    for (const Edge& e : target.node->edges) {
      if (!e) continue;
      ++uses[e.key()];
      if (marked.insert(e.key()).second) stack.push_back(e);
    }
  }
  std::vector<Node*> nodes;
  for (const Edge& e : seen) {
    if (e.node != nullptr) nodes.push_back(e.node);
  }
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->at < b->at; });
  std::unordered_set<const void*> runs = marked, hooked = marked;
  if (inputs != nullptr) {
    std::unordered_set<const void*> keys;
    for (const Edge& w : wanted) {
      if (w) keys.insert(w.key());
    }
    runs.clear();
    for (Node* n : nodes) {
      for (const Edge& e : n->edges) {
        if (e && (keys.contains(e.key()) || runs.contains(e.key()))) runs.insert(n);
      }
    }
    hooked = runs;
    hooked.insert(keys.begin(), keys.end());
    hooked.insert(start.key());
  }
  for (const Node* n : nodes) {
    if (n->freed && runs.contains(n)) throw Refused("second_backward");
  }
  if (!allow_unused) {
    for (const Edge& w : wanted) {
      if (!w || !marked.contains(w.key())) throw Refused("unused");
    }
  }
  if (inputs == nullptr) {
    for (const Edge& e : seen) {
      if (e.leaf != nullptr && !is_leaf(e.leaf)) throw Refused("leaf_moved");
    }
  }
  const bool keeps = keep < 0 ? create_graph : keep != 0;

  std::unordered_map<const void*, Handle*> sums, captured;
  struct Ready {
    double turn;
    int arrival;
    Edge target;
    bool operator>(const Ready& other) const {
      return std::pair(turn, arrival) > std::pair(other.turn, other.arrival);
    }
  };
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  int arrivals = 0;
  const auto push = [&](const Edge& e) {
    const double turn = e.node != nullptr ? -e.node->at : -std::numeric_limits<double>::infinity();
    ready.push({turn, arrivals++, e});
  };
  const auto give = [&](const Edge& e, Handle* g) {
    if (g == nullptr) return;
    Handle*& sum = sums[e.key()];
    sum = sum == nullptr ? g : add(sum, g);
  };

  const GradMode mode(*this, create_graph);
  give(start, seed);
  push(start);
  while (!ready.empty()) {
    const Edge target = ready.top().target;
    ready.pop();
    Handle* g = nullptr;
    if (const auto found = sums.find(target.key()); found != sums.end()) {
      g = found->second;
      sums.erase(found);
    }
    Handle* const before = g;
    if (g != nullptr && hooked.contains(target.key())) {
      const auto& hooks = target.node != nullptr ? target.node->hooks : target.leaf->hooks;
      for (const Hook& hook : hooks) {
        if (Handle* changed = hook(g)) g = changed;
      }
      if (target.node != nullptr && target.node->retained_by != nullptr) {
        Handle* h = target.node->retained_by;
        h->grad = h->grad == nullptr ? apply(Op::kClone, {g}) : add(h->grad, g);
      }
    }
    // RULE: a hook changes an input only if no node after it runs.
    if (inputs != nullptr) captured[target.key()] = runs.contains(target.key()) ? before : g;
    if (target.node == nullptr) {
      if (inputs == nullptr && g != nullptr) accumulate(target.leaf, g);
      continue;
    }
    Node& node = *target.node;
    std::vector<Handle*> grads(node.edges.size(), nullptr);
    if (runs.contains(&node)) {
      if (g != nullptr) grads = vjp(node, g);
      if (!keeps && (!node.saved.empty() || node.op == Op::kUpdate)) {
        node.saved.clear();
        node.freed = true;
      }
    }
    for (std::size_t i = 0; i < node.edges.size(); ++i) {
      const Edge& e = node.edges[i];
      if (!e) continue;
      give(e, grads[i]);
      if (--uses[e.key()] == 0) push(e);
    }
  }
  std::vector<Handle*> out;
  for (const Edge& w : wanted) {
    const auto found = w ? captured.find(w.key()) : captured.end();
    Handle* g = found == captured.end() ? nullptr : found->second;
    out.push_back(g == nullptr ? nullptr : apply(Op::kClone, {g}));
  }
  return out;
}

}  // namespace teletensor::fuzz::model
