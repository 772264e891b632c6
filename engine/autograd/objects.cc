#include "engine/autograd/objects.h"

#include <algorithm>
#include <utility>

namespace teletensor::autograd {

using core::Geometry;
using core::invalid;
using core::Layout;
using core::Status;
using program::ValueRef;

// ---------------------------------------------------------------- objects and their destruction

GraphObject::GraphObject(GraphObjects* objects) : objects_(objects), older_(objects->newest_) {
  if (older_) older_->newer_ = this;
  objects->newest_ = this;
}

GraphObject::~GraphObject() {
  (newer_ ? newer_->older_ : objects_->newest_) = older_;
  if (older_) older_->newer_ = newer_;
}

void GraphObject::last_reference_dropped() const { objects_->queue_destruction(this); }

GraphObjects::~GraphObjects() {
  on_death = nullptr;
  destroying_dead_ = true;  // delays all destruction until let_go() has broken the reference cycles
  for (GraphObject* object = newest_; object; object = object->older_) object->let_go();
  destroy_dead();
}

void GraphObjects::queue_destruction(const GraphObject* object) {
  object->next_dead_ = std::exchange(dead_, object);
  if (std::exchange(destroying_dead_, true)) return;
  destroy_dead();
}

void GraphObjects::destroy_dead() {
  while (dead_ != nullptr) {
    const GraphObject* const next = std::exchange(dead_, dead_->next_dead_);
    if (next->is_handle()) {
      auto* handle = static_cast<const Handle*>(next);
      handle->~Handle();
      handles_.give(const_cast<Handle*>(handle));
    } else {
      auto* node = static_cast<const Node*>(next);
      node->~Node();
      nodes_.give(const_cast<Node*>(node));
    }
  }
  destroying_dead_ = false;
}

void GraphObjects::count(Node& node) {
  bytes_ -= node.listed.bytes;
  bytes_ += node.listed.bytes = node.size();
}

void GraphObjects::add_saved(std::uint64_t seq, Node& node) {
  const std::size_t bytes = node.saved_size();
  node.listed.bytes += bytes;
  bytes_ += bytes;
  saved_nodes_.add(seq, node);
}

void SavedNodes::remove(const Node& node) {
  if (node.listed.place == 0) return;
  nodes_[node.listed.place - gone_ - 1].second = nullptr;
  while (!nodes_.empty() && nodes_.front().second == nullptr) {
    nodes_.pop_front();
    ++gone_;
  }
}

Node* SavedNodes::find(std::uint64_t seq) const {
  const auto at =
      std::lower_bound(nodes_.begin(), nodes_.end(), seq,
                       [](const auto& entry, std::uint64_t s) { return entry.first < s; });
  return at != nodes_.end() && at->first == seq ? at->second : nullptr;
}

// ---------------------------------------------------------------- clocks

void Clock::take_back(std::uint32_t tick) {
  failed_ticks_.insert(std::upper_bound(failed_ticks_.begin(), failed_ticks_.end(), tick), tick);
}

std::uint32_t Clock::taken_back(std::uint32_t from, std::uint32_t to) const {
  const auto first = std::upper_bound(failed_ticks_.begin(), failed_ticks_.end(), from);
  return static_cast<std::uint32_t>(std::upper_bound(first, failed_ticks_.end(), to) - first);
}

// ---------------------------------------------------------------- handles

namespace {

// Counts one cell and one value per handle, which is right for most handles.
constexpr std::size_t kHandleBytes = sizeof(Handle) + sizeof(Cell) + sizeof(program::Value);

}  // namespace

Handle::Handle(GraphObjects* objects, core::Ref<Cell> cell, const Layout& layout,
               core::Ref<Clock> clock)
    : GraphObject(objects),
      cell(std::move(cell)),
      clock(clock ? std::move(clock) : core::Ref<Clock>(this->cell)),
      seen(this->clock->now()) {
  this->layout = layout;
  objects->bytes_ += kHandleBytes;
}

Handle::~Handle() {
  objects_->bytes_ -= kHandleBytes;
  if (retains && node) {
    std::erase_if(node->retained, [this](const auto& entry) { return entry.second == this; });
  }
  if (node && node->remade_for == this) node->remade_for = nullptr;
  if (base) --base->views;
  if (id != 0 && objects_->on_death) objects_->on_death(id);
}

void Handle::let_go() {
  cell->value = nullptr;
  if (node && node->remade_for == this) node->remade_for = nullptr;
  base = leaf = grad = nullptr;
  node = nullptr;
  extra = nullptr;
  retains = false;
}

HandleRef GraphObjects::adopt(const Layout& layout, ValueRef value) {
  return adopt(layout, layout.geometry.storage_end(), std::move(value));
}

HandleRef GraphObjects::adopt(const Layout& layout, std::int64_t elements, ValueRef value) {
  const std::int64_t bytes = elements * static_cast<std::int64_t>(core::size_of(layout.dtype));
  return new_handle(core::make_ref<Cell>(bytes, std::move(value)), layout);
}

HandleRef GraphObjects::adopt_published(const Layout& layout, ValueRef value, bool writable) {
  if (value) value->through = true;
  HandleRef h = adopt(layout, std::move(value));
  h->cell->shared = true;
  h->cell->read_only = !writable;
  return h;
}

HandleRef GraphObjects::adopt_saved(const Node::SavedSlot& saved, Node& node) {
  const auto size = static_cast<std::int64_t>(core::size_of(saved.layout.dtype));
  HandleRef h = new_handle(core::make_ref<Cell>(saved.elements * size, saved.value), saved.layout);
  if (saved.slot >= ops::kResult) {
    h->node = core::Ref<Node>(&node);
    h->output = static_cast<std::uint32_t>(saved.slot - ops::kResult);
  } else if (saved.edge.node) {
    h->node = saved.edge.node;
    h->output = saved.edge.output;
  } else {
    h->flag = saved.requires_grad;
    h->leaf = saved.edge.leaf;
  }
  return h;
}

void Handle::set_node(core::Ref<Node> to, std::uint32_t to_output) {
  if (retains) {
    if (node) std::erase_if(node->retained, [&](const auto& e) { return e.second == this; });
    to->retained.emplace_back(to_output, this);
  }
  if (node && node->remade_for == this) node->remade_for = nullptr;
  node = std::move(to);
  output = to_output;
  seen = clock->now();
}

void Handle::set_history(const Edge& edge) {
  if (edge.node) return set_node(edge.node, edge.output);
  if (retains && node) {
    std::erase_if(node->retained, [&](const auto& entry) { return entry.second == this; });
  }
  if (node && node->remade_for == this) node->remade_for = nullptr;
  retains = false;
  node = nullptr;
  output = 0;
}

Status Handle::set_grad(Handle* gradient) {
  if (gradient == this)
    return invalid("grad: a tensor cannot be its own grad: can't assign Variable as its own grad");
  if (gradient != nullptr) {
    if (gradient->cell->read_only) {
      return invalid("grad: a tensor that another session has published read-only");
    }
    if (!(gradient->shape() == shape())) {
      return invalid("grad: attempting to assign a gradient of size " +
                     core::to_string(gradient->shape()) + " to a tensor of size " +
                     core::to_string(shape()));
    }
    if (gradient->layout.dtype != layout.dtype || !(gradient->layout.device == layout.device)) {
      return invalid("grad: the assigned gradient has another dtype or device than the tensor: " +
                     std::string(core::name_of(gradient->layout.dtype)) + " on " +
                     core::to_string(gradient->layout.device) + " to " +
                     std::string(core::name_of(layout.dtype)) + " on " +
                     core::to_string(layout.device));
    }
    if (gradient->geometry().overlaps_itself()) {
      return invalid(
          "grad: more than one element of the written-to tensor refers to a single "
          "memory location (gradients are accumulated in place)");
    }
  }
  grad = HandleRef(gradient);
  return {};
}

void Handle::remove_hook(HookId hook) {
  std::erase(hooks, hook);
  std::erase(post_hooks, hook);
  if (node) std::erase_if(node->hooks, [&](const Node::Hook& entry) { return entry.id == hook; });
}

// Refuses a write that would lose the end of the storage, because it is not a whole number of
// elements of the handle's dtype.
Status Handle::may_write(const std::string& what) const {
  if (cell->read_only) {
    return invalid(what + ": the tensor is published read-only by another session");
  }
  const auto size = static_cast<std::int64_t>(core::size_of(layout.dtype));
  if (cell->bytes % size == 0) return {};
  return invalid(
      what + ": the tensor's memory, " + std::to_string(cell->bytes) +
      " bytes, is not a whole number of elements of " + std::string(core::name_of(layout.dtype)) +
      ", so it cannot be written with this dtype; write to the tensor that it is a view of");
}

Status Handle::may_publish() const {
  TT_RETURN_IF_ERROR(may_write("publish"));
  const Geometry& g = geometry();
  if (g.contiguous() && g.offset == 0 && g.numel() == stored()) return {};
  return invalid(
      "publish: the tensor is a view of a part of another tensor, or not contiguous; publish " +
      std::string("t.clone(), or the tensor that it is a view of"));
}

// ---------------------------------------------------------------- nodes

Node::Node(GraphObjects* objects, std::uint64_t at, ops::OpId op)
    : GraphObject(objects), at(at), op(op), label(op) {
  ++objects->live_nodes_;
}

Node::~Node() {
  --objects_->live_nodes_;
  objects_->bytes_ -= listed.bytes;
  objects_->saved_nodes_.remove(*this);
}

void Node::let_go() {
  edges.clear();
  saved.clear();
  retained.clear();
  extra = nullptr;
}

namespace {

template <class T, std::size_t N>
std::size_t beyond(const core::InlineVector<T, N>& list) {
  return list.size() > N ? list.size() * sizeof(T) : 0;
}

}  // namespace

std::size_t Node::size() const {
  std::size_t bytes = sizeof(Node) + beyond(edges) + beyond(operands) + beyond(counts) +
                      saved_size() + results.size() * sizeof(core::Layout);
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    bytes += beyond(attributes.at(i).ints) + attributes.at(i).text.size() +
             (i < 3 ? 0 : sizeof(core::Attribute));
  }
  return bytes;
}

std::size_t Node::saved_size() const {
  return beyond(saved) + saved.size() * sizeof(program::Value);
}

}  // namespace teletensor::autograd
