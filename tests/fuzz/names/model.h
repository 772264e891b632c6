// The executable specification of names, views, in-place writes and the tape, in plain C++ over
// doubles: what the client of a session must observe. It is written from the rules alone, without
// code of the engine, so that the two can be compared (names_inprocess.cc). Every object lives as
// long as its world.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace teletensor::fuzz::model {

using Sizes = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

// An eager error, which is raised before anything has changed. Kinds of errors are compared, not
// their texts.
struct Refused : std::runtime_error {
  explicit Refused(const char* kind) : std::runtime_error(kind), kind(kind) {}
  const char* kind;
};

std::int64_t count(const Sizes& shape);
Sizes contiguous_strides(const Sizes& shape);

struct Geo {
  Sizes shape, strides;
  std::int64_t offset = 0;

  explicit Geo(Sizes shape);
  Geo(Sizes shape, Sizes strides, std::int64_t offset);
  bool contiguous() const;
  bool dense() const;
  bool overlaps_itself() const;
  Sizes positions() const;  // the positions of all elements, in row-major order
  Geo select(int dim, std::int64_t i) const;
  Geo slice(int dim, std::int64_t start, std::int64_t stop, std::int64_t step) const;
  Geo transpose(int a, int b) const;
  Geo expand(const Sizes& to) const;
  bool view(const Sizes& to, Geo* out) const;  // returns false if a copy is needed
  friend bool operator==(const Geo&, const Geo&) = default;
};

enum class Op {
  kAdd,
  kMul,
  kNeg,
  kSin,
  kCos,
  kExp,
  kTanh,
  kClone,
  kCopy,
  kSum,
  kMatmul,
  kIndex,
  kScatter,
  kUpdate
};

struct Attrs {
  Sizes keep, shape;                   // sum, scatter
  std::shared_ptr<const Sizes> index;  // index, scatter, update
};

struct Handle;
struct Node;

struct Array {
  Sizes shape;
  Numbers data;
};

struct Cell {
  Numbers value;
};

struct Clock {
  int now = 0;
};

struct Edge {
  Node* node = nullptr;
  Handle* leaf = nullptr;
  explicit operator bool() const { return node != nullptr || leaf != nullptr; }
  const void* key() const {
    return node != nullptr ? static_cast<const void*>(node) : static_cast<const void*>(leaf);
  }
  friend bool operator==(const Edge&, const Edge&) = default;
};

// Maps a gradient to another one; nullptr leaves it unchanged.
using Hook = std::function<Handle*(Handle*)>;

struct Node {
  static constexpr int kOut = -1;
  struct Saved {
    int which;
    std::shared_ptr<const Array> contents;
    Edge edge;
    bool requires_grad;
  };
  int at;
  Op op;
  std::vector<Edge> edges;
  std::vector<Sizes> shapes;
  std::vector<Saved> saved;
  Attrs attrs;
  std::vector<Hook> hooks;
  Handle* retained_by = nullptr;
  bool freed = false;
};

enum class Made { kDefault, kNoGrad, kMulti };

struct Handle {
  Handle(Cell* cell, Geo geo, Clock* clock, Handle* base, Made made)
      : cell(cell), geo(std::move(geo)), clock(clock), base(base), made(made), seen(clock->now) {}

  Cell* cell;
  Geo geo;
  Clock* clock;
  Handle* base;  // the object itself if it is not a view
  Made made;
  bool flag = false;
  Node* node = nullptr;
  int seen;
  Handle* grad = nullptr;
  std::vector<Hook> hooks;
  bool retains = false;
  Handle* leaf = this;
  bool had_views = false;

  const Sizes& shape() const { return geo.shape; }
  bool is_view() const { return base != this; }
  bool requires_grad() const {
    return flag || node != nullptr || (is_view() && base->requires_grad());
  }
};

// All names in one program.
class World {
 public:
  bool grad_mode = true;

  Handle* tensor(Sizes shape, Numbers row_major, bool requires_grad = false);
  Handle* number(double x) { return tensor({}, {x}); }
  Handle* apply(Op op, std::vector<Handle*> operands, Attrs attrs = {});
  Handle* add(Handle* a, Handle* b) { return apply(Op::kAdd, {a, b}); }
  Handle* mul(Handle* a, Handle* b) { return apply(Op::kMul, {a, b}); }
  Handle* neg(Handle* a) { return apply(Op::kNeg, {a}); }
  Handle* sum(Handle* a, int dim);  // -1: over all dims
  Handle* detach(Handle* h);
  Handle* data(Handle* h);

  Handle* select(Handle* h, int dim, std::int64_t i);
  Handle* slice(Handle* h, int dim, std::int64_t start, std::int64_t stop, std::int64_t step);
  Handle* transpose(Handle* h, int a, int b);
  Handle* expand(Handle* h, const Sizes& to);
  Handle* view(Handle* h, const Sizes& to);
  Handle* reshape(Handle* h, const Sizes& to);
  std::vector<Handle*> unbind(Handle* h, int dim);

  void inplace(Handle* h, Op op, std::vector<Handle*> others, bool fill = false);
  void set_data(Handle* h, Handle* other);
  void requires_grad_(Handle* h, bool on);
  void set_grad(Handle* h, Handle* g);
  void retain_grad(Handle* h);
  void register_hook(Handle* h, Hook hook);
  bool is_leaf(Handle* h) { return node_of(h) == nullptr; }
  Node* node_of(Handle* h);
  Array contents(const Handle* h) const;

  // `keep`: -1 means as create_graph. With `inputs` the gradients are returned (nullptr for an
  // unused input), and otherwise they are added to .grad.
  std::vector<Handle*> backward(Handle* root, Handle* seed, const std::vector<Handle*>* inputs,
                                int keep, bool create_graph, bool allow_unused);

 private:
  using Move = std::function<Geo(const Geo&)>;

  Handle* new_handle(Cell* cell, Geo geo, Clock* clock, Handle* base = nullptr,
                     Made made = Made::kDefault);
  Handle* named(const Array& contents, Geo geo);
  Handle* view_of(Handle* h, const Move& move, Made made = Made::kDefault);
  Node* record(Op op, const std::vector<Handle*>& operands, std::vector<Edge> edges,
               const Array* out, Attrs attrs);
  Node* index_node(Handle* base, const Geo& view);
  Edge edge(Handle* h);
  void set_node(Handle* h, Node* node);
  void write(Handle* h, const Array& contents);
  Handle* zeros(const Sizes& shape);
  Handle* sum_to(Handle* x, const Sizes& shape);
  Handle* turned(Handle* x);
  Handle* saved(Node& node, int which);
  std::vector<Handle*> vjp(Node& node, Handle* g);
  void accumulate(Handle* h, Handle* g);

  std::deque<Handle> handles_;
  std::deque<Cell> cells_;
  std::deque<Clock> clocks_;
  std::deque<Node> nodes_;
  int tape_ = 0;
};

}  // namespace teletensor::fuzz::model
