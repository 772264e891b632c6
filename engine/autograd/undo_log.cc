#include "engine/autograd/undo_log.h"

#include <algorithm>
#include <utility>

namespace teletensor::autograd {

void UndoLog::note_history(Handle& base, core::Ref<Node> node, core::Ref<Node> old_node,
                           std::uint32_t old_output) {
  Write& write = writes_.back();
  write.base = HandleRef(&base);
  write.node = std::move(node);
  write.old_node = std::move(old_node);
  write.old_output = old_output;
}

void UndoLog::forget_history() {
  for (Write& write : writes_) {
    write.base = nullptr;
    write.node = write.old_node = nullptr;
  }
  rebuilt_.clear();
}

void UndoLog::completed(std::uint64_t seq) {
  while (!writes_.empty() && writes_.front().seq <= seq) writes_.pop_front();
  while (!rebuilt_.empty() && rebuilt_.front().seq <= seq) rebuilt_.pop_front();
}

// RULE: a failed write did not happen: the base gets its former history back, and so do its views.
// Nodes that were recorded on the lost history since then, mostly of views, are connected to the
// former one.
void UndoLog::take_back(const std::vector<std::uint64_t>& rebinds, std::uint64_t root) {
  if (rebinds.empty()) return;
  std::vector<Lost> lost;
  const auto failed = [&](const Write& write) {
    return std::binary_search(rebinds.begin(), rebinds.end(), write.seq);
  };
  for (auto write = writes_.rbegin(); write != writes_.rend(); ++write) {
    if (!failed(*write)) continue;
    const program::ValueRef& value = write->cell->value;
    if (value && value->failure && value->failure->seq == root && value->good) {
      write->cell->value = core::Ref<program::Value>(value->good);
    }
    write->clock->take_back(write->tick);
    if (!write->base) continue;
    Handle& base = *write->base;
    Edge old;
    if (write->old_node) {
      old.node = write->old_node;
      old.output = write->old_output;
    } else if (base.flag) {
      old.leaf = base.leaf ? base.leaf : HandleRef(&base);
    }
    if (base.node == write->node) base.set_history(old);
    lost.push_back({write->node, std::move(old), write->base});
  }
  std::erase_if(writes_, failed);
  std::vector<Rebuilt> kept;
  for (; !rebuilt_.empty(); rebuilt_.pop_back()) {
    Rebuilt& rebuilt = rebuilt_.back();
    if (rebuilt.clock->moved_between(rebuilt.old_seen, rebuilt.seen)) {
      kept.push_back(std::move(rebuilt));
      continue;
    }
    if (Handle* h = rebuilt.node->remade_for) undo_rebuild(*h, rebuilt);
    lost.push_back({std::move(rebuilt.node), std::move(rebuilt.old), nullptr});
  }
  for (; !kept.empty(); kept.pop_back()) rebuilt_.push_back(std::move(kept.back()));
  if (!lost.empty()) replace(lost);
}

void UndoLog::undo_rebuild(Handle& h, const Rebuilt& rebuilt) {
  h.set_history(rebuilt.old);
  h.seen = rebuilt.old_seen;
  if (h.node) h.node->remade_for = &h;
}

void UndoLog::replace(std::vector<Lost>& lost) {
  std::sort(lost.begin(), lost.end(),
            [](const Lost& a, const Lost& b) { return a.node->at < b.node->at; });
  const auto redirect = [&](Edge& edge) {
    if (!edge.node) return;
    const auto found =
        std::lower_bound(lost.begin(), lost.end(), edge.node->at,
                         [](const Lost& entry, std::uint64_t at) { return entry.node->at < at; });
    if (found != lost.end() && found->node == edge.node) edge = Edge(found->old);
  };
  for (Lost& entry : lost) redirect(entry.old);
  // Objects older than the first lost node cannot refer to a lost node.
  std::vector<Node*> nodes;
  std::vector<HandleRef> views;
  for (GraphObject* object = objects_.newest(); object != lost[0].node.get();
       object = object->older()) {
    if (auto* node = dynamic_cast<Node*>(object)) {
      nodes.push_back(node);
      for (Edge& edge : node->edges) redirect(edge);
      for (Node::SavedSlot& slot : node->saved) redirect(slot.edge);
    } else if (auto* h = dynamic_cast<Handle*>(object); h && h->is_view() && h->node) {
      views.emplace_back(h);
    }
  }
  // A view that was made in the meantime, of a base that no longer requires grad, loses its node:
  // without the failed write it would not have got one.
  const std::uint64_t nowhere = objects_.begin_search();
  for (const Lost& entry : lost) {
    if (entry.base) entry.base->visit.search = nowhere;
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const Edge* edge = (*node)->edges.size() == 1 ? &(*node)->edges[0] : nullptr;
    if (edge && (!*edge || (edge->node && edge->node->visit.search == nowhere)))
      (*node)->visit.search = nowhere;
  }
  const auto has_needless_node = [&](const Handle& h) {
    return h.node && h.node->visit.search == nowhere && h.base->visit.search == nowhere &&
           !h.base->requires_grad();
  };
  for (auto rebuilt = rebuilt_.rbegin(); rebuilt != rebuilt_.rend(); ++rebuilt) {
    Handle* h = rebuilt->node->remade_for;
    if (h == nullptr || !has_needless_node(*h)) continue;
    if (rebuilt->old.node && rebuilt->old.node->visit.search != nowhere) {
      h->node->visit.search = 0;  // the view already had a node before
    } else {
      undo_rebuild(*h, *rebuilt);
    }
  }
  for (const HandleRef& h : views) {
    if (has_needless_node(*h)) h->set_history({});
  }
}

}  // namespace teletensor::autograd
