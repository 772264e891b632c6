#include "engine/autograd/snapshot/image.h"

#include <algorithm>
#include <unordered_map>

namespace teletensor::autograd {

using core::Status;
using program::Image;
using program::ValueRef;
using Index = Image::Index;

namespace {

// Bytes per element of the value. A snapshot measures a cell in elements of its value.
std::int64_t unit_of(const program::Value* value) {
  return value == nullptr ? 1 : static_cast<std::int64_t>(core::size_of(value->dtype));
}

__int128 bytes_of(std::int64_t elements, core::DType dtype) {
  return static_cast<__int128>(elements) * static_cast<__int128>(core::size_of(dtype));
}

}  // namespace

// ---------------------------------------------------------------- capture

Index ImageIndexer::storage(const core::Ref<core::Shared>& contents, core::Device device) {
  const auto [entry, is_new] =
      storages_.try_emplace(contents.get(), static_cast<Index>(image_.storages.size()));
  if (is_new) image_.storages.push_back({device, 0, 0, contents, 0, 0, {}});
  return entry->second;
}

Index ImageIndexer::value(const program::Value* value) {
  if (value == nullptr) return Image::kNone;
  // Iterative, because a client can make the chain of failed writes arbitrarily long.
  std::vector<const program::Value*> waiting{value};
  while (!waiting.empty()) {
    const program::Value& next = *waiting.back();
    if (values_.contains(&next)) {
      waiting.pop_back();
      continue;
    }
    if (next.good && !values_.contains(next.good.get())) {
      waiting.push_back(next.good.get());
      continue;
    }
    waiting.pop_back();
    Image::Value item{next.dtype,   next.device,  next.elements,
                      Image::kNone, Image::kNone, Image::kNone};
    if (next.contents) item.storage = storage(next.contents, next.device);
    if (next.failure) {
      const auto [entry, is_new] =
          failures_.try_emplace(next.failure.get(), static_cast<Index>(image_.failures.size()));
      if (is_new) image_.failures.push_back({next.failure->seq, next.failure->status});
      item.failure = entry->second;
    }
    if (next.good) item.good = values_.at(next.good.get());
    values_.emplace(&next, static_cast<Index>(image_.values.size()));
    image_.values.push_back(item);
  }
  return values_.at(value);
}

class ImageCapture {
 public:
  ImageCapture(Graph& graph, ImageIndexer& maker, Image& image)
      : graph_(graph), maker_(maker), image_(image) {}

  void take(const KeptNames& kept, const std::function<bool(const Handle&)>& named) {
    for (GraphObject* object = graph_.objects().newest(); object; object = object->older()) {
      if (auto* h = dynamic_cast<Handle*>(object)) {
        handles_.emplace(h, static_cast<Index>(all_handles_.size()));
        all_handles_.push_back(h);
      } else if (auto* node = dynamic_cast<Node*>(object)) {
        nodes_.emplace(node, static_cast<Index>(all_nodes_.size()));
        all_nodes_.push_back(node);
      }
    }
    for (const Handle* h : all_handles_) {
      Image::Handle& item = image_.handles.emplace_back();
      item.id = h->id != 0 && named(*h) ? h->id : 0;
      item.layout = h->layout;
      item.cell = cell(h->cell.get());
      item.clock = h->clock.get() == h->cell.get() ? item.cell : clock(h->clock.get());
      item.base = find(handles_, h->base.get());
      item.node = find(nodes_, h->node.get());
      item.leaf = find(handles_, h->leaf.get());
      item.grad = find(handles_, h->grad.get());
      item.made = static_cast<std::uint8_t>(h->made);
      item.flag = h->flag;
      item.retains = h->retains;
      item.output = h->output;
      item.seen = h->seen;
    }
    for (const Node* node : all_nodes_) take_node(*node);
    for (const UndoLog::Write& write : graph_.undo().writes()) {
      image_.undo.push_back({write.seq, cell(write.cell.get()), clock(write.clock.get()),
                             write.tick, find(handles_, write.base.get()),
                             find(nodes_, write.node.get()), find(nodes_, write.old_node.get()),
                             write.old_output});
    }
    for (const UndoLog::Rebuilt& rebuilt : graph_.undo().rebuilt()) {
      image_.remade.push_back({rebuilt.seq, clock(rebuilt.clock.get()),
                               find(nodes_, rebuilt.node.get()), edge(rebuilt.old),
                               rebuilt.old_seen, rebuilt.seen});
    }
    for (const auto& [seq, node] : graph_.objects().saved_nodes().all()) {
      if (node != nullptr) image_.recorded.emplace_back(seq, nodes_.at(node));
    }
    for (const auto& [name, h] : kept) image_.kept.emplace_back(name, handles_.at(h.get()));
    image_.tape_length = graph_.tape().length();
  }

 private:
  template <class Map, class T>
  static Index find(const Map& map, const T* object) {
    return object == nullptr ? Image::kNone : map.at(const_cast<T*>(object));
  }

  Index clock(const Clock* clock) {
    const auto [entry, is_new] =
        clock_index_.try_emplace(clock, static_cast<Index>(image_.clocks.size()));
    if (is_new) {
      Image::Clock& item = image_.clocks.emplace_back();
      item.now = clock->now();
      item.taken_back = clock->failed_ticks();
      // A clock may be a cell that is no longer in use as a cell and is kept only as a clock.
      if (const auto* cell = dynamic_cast<const Cell*>(clock)) {
        item.elements = cell->bytes / unit_of(cell->value.get());
        item.shared = cell->shared;
        item.read_only = cell->read_only;
        const Index value = maker_.value(cell->value.get());
        image_.clocks[entry->second].value = value;
      }
    }
    return entry->second;
  }
  Index cell(const Cell* cell) { return clock(cell); }
  Image::Edge edge(const Edge& edge) const {
    return {find(nodes_, edge.node.get()), find(handles_, edge.leaf.get()), edge.output};
  }

  void take_node(const Node& node) {
    Image::Node& item = image_.nodes.emplace_back();
    item.at = node.at;
    item.seq = node.seq;
    item.op = node.op;
    item.label = node.label;
    for (const Edge& each : node.edges) item.edges.push_back(edge(each));
    for (const Node::Operand& operand : node.operands) {
      item.operands.push_back({operand.layout, operand.number, operand.is_number});
    }
    item.counts.assign(node.counts.begin(), node.counts.end());
    item.attributes = node.attributes;
    for (const Node::SavedSlot& slot : node.saved) {
      item.saved.push_back({slot.slot, maker_.value(slot.value.get()), slot.elements, slot.layout,
                            edge(slot.edge), slot.requires_grad});
    }
    item.results = node.results;
    for (const auto& [output, handle] : node.retained) {
      item.retained.emplace_back(output, handles_.at(handle));
    }
    item.remade_for = find(handles_, node.remade_for);
    item.forgotten = node.forgotten;
    item.keeps_number = node.keeps_number;
    item.freed = node.freed;
  }

  Graph& graph_;
  ImageIndexer& maker_;
  Image& image_;
  std::unordered_map<Handle*, Index> handles_;
  std::unordered_map<Node*, Index> nodes_;
  std::unordered_map<const Clock*, Index> clock_index_;
  std::vector<Handle*> all_handles_;
  std::vector<Node*> all_nodes_;
};

void take_image(Graph& graph, const KeptNames& kept,
                const std::function<bool(const Handle&)>& named, ImageIndexer& maker,
                Image& image) {
  ImageCapture(graph, maker, image).take(kept, named);
}

// ---------------------------------------------------------------- restore

core::Result<std::vector<ValueRef>> values_of(const Image& image) {
  const auto broken = [] {
    return core::invalid("the session's snapshot is inconsistent: a value");
  };
  std::vector<std::shared_ptr<const program::Failure>> failures;
  for (const Image::Failure& item : image.failures) {
    if (item.status.ok()) return broken();
    failures.push_back(
        std::make_shared<const program::Failure>(program::Failure{item.seq, item.status}));
  }
  std::vector<ValueRef> values;
  for (const Image::Value& item : image.values) {
    if (item.elements < 0 || (item.failure != Image::kNone && item.failure >= failures.size()) ||
        (item.storage != Image::kNone && item.storage >= image.storages.size()) ||
        (item.good != Image::kNone && item.good >= values.size())) {
      return broken();
    }
    auto value = core::make_ref<program::Value>(item.dtype, item.device, item.elements);
    if (item.storage != Image::kNone) {
      const Image::Storage& storage = image.storages[item.storage];
      std::uint64_t bytes = 0;
      if (!(storage.device == item.device) ||
          __builtin_mul_overflow(static_cast<std::uint64_t>(item.elements),
                                 core::size_of(item.dtype), &bytes) ||
          storage.bytes < bytes) {
        return broken();
      }
      value->contents = storage.contents;
    }
    if (item.failure != Image::kNone) value->failure = failures[item.failure];
    // Only an entry that has not run can still give a value its contents.
    if (!value->contents && !value->failure && image.entries.empty()) return broken();
    if (item.good != Image::kNone) value->good = values[item.good];
    values.push_back(std::move(value));
  }
  return values;
}

class ImageBuilder {
 public:
  ImageBuilder(Graph& graph, const Image& image) : graph_(graph), image_(image) {}

  Status restore_contents(const std::vector<ValueRef>& values, std::vector<HandleRef>& handles) {
    TT_RETURN_IF_ERROR(restore_clocks(values));
    // Creates all objects first, and then sets the references between them.
    for (const Image::Handle& item : image_.handles) {
      if (item.cell >= clocks_.size() || image_.clocks[item.cell].elements < 0 ||
          item.clock >= clocks_.size() || item.made > 2 || !fits(item)) {
        return broken("a tensor");
      }
      handles.push_back(
          graph_.objects().new_handle(cell(item.cell), item.layout, clocks_[item.clock]));
    }
    std::vector<core::Ref<Node>> nodes;
    for (const Image::Node& item : image_.nodes) {
      if (item.op >= graph_.catalog().size() || item.label >= graph_.catalog().size() ||
          item.at > image_.tape_length) {
        return broken("a recorded operation");
      }
      nodes.push_back(graph_.objects().new_node(item.at, item.op));
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      TT_RETURN_IF_ERROR(restore_handle(image_.handles[i], *handles[i], handles, nodes));
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      TT_RETURN_IF_ERROR(restore_node(image_.nodes[i], *nodes[i], values, handles, nodes));
    }
    for (const Image::Undo& item : image_.undo) {
      if (item.cell >= clocks_.size() || image_.clocks[item.cell].elements < 0 ||
          item.clock >= clocks_.size() || bad(item.base, handles) || bad(item.node, nodes) ||
          bad(item.old_node, nodes) || (item.base != Image::kNone && item.node == Image::kNone)) {
        return broken("a write");
      }
      graph_.undo().add(UndoLog::Write{item.seq, cell(item.cell), clocks_[item.clock], item.tick,
                                       at(handles, item.base), at(nodes, item.node),
                                       at(nodes, item.old_node), item.old_output});
    }
    for (const Image::Remade& item : image_.remade) {
      if (item.clock >= clocks_.size() || item.node >= nodes.size()) return broken("a view");
      Edge old;
      TT_RETURN_IF_ERROR(restore_edge(item.old, handles, nodes, old));
      graph_.undo().add(UndoLog::Rebuilt{item.seq, clocks_[item.clock], nodes[item.node],
                                         std::move(old), item.old_seen, item.seen});
    }
    std::uint64_t last = 0;
    for (const auto& [seq, node] : image_.recorded) {
      if (node >= nodes.size() || seq < last || image_.nodes[node].seq != seq ||
          nodes[node]->listed.place != 0) {
        return broken("a recorded operation");
      }
      graph_.objects().saved_nodes().add(last = seq, *nodes[node]);
    }
    graph_.tape().restore(image_.tape_length);
    return acyclic(nodes) ? Status() : broken("a cycle of recorded operations");
  }

 private:
  template <class T>
  static bool bad(Index i, const std::vector<T>& list) {
    return i != Image::kNone && i >= list.size();
  }
  template <class T>
  static T at(const std::vector<T>& list, Index i) {
    return i == Image::kNone ? T() : list[i];
  }
  static Status broken(const std::string& what) {
    return core::invalid("the session's snapshot is inconsistent: " + what);
  }

  Status restore_clocks(const std::vector<ValueRef>& values) {
    for (const Image::Clock& item : image_.clocks) {
      core::Ref<Clock> clock;
      if (item.elements >= 0) {
        if (bad(item.value, values)) return broken("a cell");
        const ValueRef value = at(values, item.value);
        const std::int64_t unit = unit_of(value.get());
        if (item.elements > INT64_MAX / unit || (value && value->elements < item.elements)) {
          return broken("a cell");
        }
        auto* cell = new Cell(item.elements * unit, value);
        clock = core::Ref<Clock>(cell);
        cell->shared = item.shared;
        cell->read_only = item.read_only;
      } else {
        clock = core::make_ref<Clock>();
      }
      if (!std::is_sorted(item.taken_back.begin(), item.taken_back.end())) return broken("a clock");
      clock->restore(item.now, item.taken_back);
      clocks_.push_back(std::move(clock));
    }
    return {};
  }

  // Returns true if all elements that this view can read lie inside its cell.
  bool fits(const Image::Handle& item) const {
    const core::Geometry& geometry = item.layout.geometry;
    if (geometry.shape.size() != geometry.strides.size() || geometry.offset < 0) return false;
    const auto count = core::checked_numel(geometry.shape.span());
    if (!count.ok()) return false;
    __int128 end = geometry.offset;
    for (int d = 0; d < geometry.rank(); ++d) {
      if (geometry.strides[d] < 0) return false;
      if (*count > 0) {
        end += static_cast<__int128>(geometry.shape[d] - 1) * geometry.strides[d];
      }
    }
    end = (end + 1) * bytes_of(1, item.layout.dtype);
    return *count == 0 || end <= static_cast<const Cell&>(*clocks_[item.cell]).bytes;
  }

  core::Ref<Cell> cell(Index i) const {
    return core::Ref<Cell>(static_cast<Cell*>(clocks_[i].get()));
  }

  Status restore_edge(const Image::Edge& item, const std::vector<HandleRef>& handles,
                      const std::vector<core::Ref<Node>>& nodes, Edge& edge) const {
    if (bad(item.node, nodes) || bad(item.leaf, handles)) return broken("an edge");
    edge.node = at(nodes, item.node);
    edge.leaf = at(handles, item.leaf);
    edge.output = item.output;
    return {};
  }

  Status restore_handle(const Image::Handle& item, Handle& h, const std::vector<HandleRef>& handles,
                        const std::vector<core::Ref<Node>>& nodes) const {
    if (bad(item.base, handles) || bad(item.node, nodes) || bad(item.leaf, handles) ||
        bad(item.grad, handles)) {
      return broken("a tensor");
    }
    if (item.base != Image::kNone) {
      if (image_.handles[item.base].base != Image::kNone || handles[item.base].get() == &h) {
        return broken("a view");
      }
      h.base = handles[item.base];
      ++h.base->views;
    }
    h.node = at(nodes, item.node);
    h.leaf = at(handles, item.leaf);
    h.grad = at(handles, item.grad);
    h.made = static_cast<Handle::Made>(item.made);
    h.flag = item.flag;
    h.retains = item.retains;
    h.output = item.output;
    h.seen = item.seen;
    return {};
  }

  Status restore_node(const Image::Node& item, Node& node, const std::vector<ValueRef>& values,
                      const std::vector<HandleRef>& handles,
                      const std::vector<core::Ref<Node>>& nodes) const {
    node.seq = item.seq;
    node.label = item.label;
    for (const Image::Edge& each : item.edges) {
      TT_RETURN_IF_ERROR(restore_edge(each, handles, nodes, node.edges.emplace_back()));
    }
    for (const Image::Operand& each : item.operands) {
      node.operands.push_back({each.layout, each.number, each.is_number});
    }
    for (const std::uint32_t count : item.counts) node.counts.push_back(count);
    node.attributes = item.attributes;
    for (const Image::Saved& each : item.saved) {
      if (bad(each.value, values)) return broken("a saved value");
      Node::SavedSlot slot{each.slot, at(values, each.value), each.elements, each.layout,
                           {},        each.requires_grad};
      if (slot.value && bytes_of(slot.value->elements, slot.value->dtype) <
                            bytes_of(slot.elements, slot.layout.dtype)) {
        return broken("a saved value");
      }
      TT_RETURN_IF_ERROR(restore_edge(each.edge, handles, nodes, slot.edge));
      node.saved.push_back(std::move(slot));
    }
    node.results = item.results;
    for (const auto& [output, handle] : item.retained) {
      if (handle >= handles.size() || !image_.handles[handle].retains) return broken("a gradient");
      node.retained.emplace_back(output, handles[handle].get());
    }
    if (item.remade_for != Image::kNone) {
      if (bad(item.remade_for, handles) || handles[item.remade_for]->node.get() != &node) {
        return broken("a view");
      }
      node.remade_for = handles[item.remade_for].get();
    }
    node.forgotten = item.forgotten;
    node.keeps_number = item.keeps_number;
    node.freed = item.freed;
    graph_.objects().count(node);
    return {};
  }

  // Checks that every node refers only to nodes that are earlier on the tape.
  bool acyclic(const std::vector<core::Ref<Node>>& nodes) const {
    for (const auto& node : nodes) {
      for (const Edge& edge : node->edges) {
        if (edge.node && edge.node->at >= node->at) return false;
      }
    }
    return true;
  }

  Graph& graph_;
  const Image& image_;
  std::vector<core::Ref<Clock>> clocks_;
};

Status restore_image(Graph& graph, const Image& image, const std::vector<ValueRef>& values,
                     std::vector<HandleRef>& handles) {
  return ImageBuilder(graph, image).restore_contents(values, handles);
}

}  // namespace teletensor::autograd
