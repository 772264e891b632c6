#include "engine/autograd/trace/tracer.h"

#include <algorithm>

#include "engine/autograd/trace/replay.h"

namespace teletensor::autograd {

using core::invalid;
using core::Status;
using program::HandleId;

Tracer::Tracer(Graph& graph, std::uint64_t seed, std::uint64_t ordinal)
    : graph_(graph), thread_(std::this_thread::get_id()), seed_(seed), ordinal_(ordinal) {}
Tracer::~Tracer() = default;

bool Tracer::made_here(HandleId id) const {
  auto at = std::upper_bound(ranges_.begin(), ranges_.end(), id,
                             [](HandleId i, const auto& range) { return i < range.first; });
  return at != ranges_.begin() && id - (--at)->first < at->second;
}

void Tracer::know(Handle& h) {
  if (h.id == 0 || by_id_.contains(h.id) || made_here(h.id)) return;
  const bool requires_grad = h.requires_grad();
  bool has_history = false;
  if (requires_grad) {
    const auto leaf = graph_.tape().is_leaf(h);
    has_history = !leaf.ok() || !*leaf;
  }
  by_id_[h.id] = known_.size();
  known_.push_back(
      {HandleRef(&h), h.layout, h.cell.get(), h.clock.get(), requires_grad, has_history, h.grad});
  if (h.grad) {
    const HandleRef grad = h.grad;
    owner_of_grad_.try_emplace(grad->id, h.id);
    know(*grad);
  }
}

void Tracer::know(std::span<const ops::Var> arguments) {
  for (const ops::Var& argument : arguments) {
    if (argument.is_tensor()) know(handle_of(argument));
  }
}

void Tracer::on_grad_read(Handle& owner) {
  know(owner);
  grads_matter_ = true;
}

void Tracer::argument(Handle& h, int place) {
  know(h);
  const auto found = by_id_.find(h.id);
  if (found != by_id_.end() && known_[found->second].argument < 0) {
    known_[found->second].argument = place;
  }
}

void Tracer::refuse(Status why) {
  if (refused_.ok()) refused_ = std::move(why);
}

void Tracer::record(program::Command command, std::uint64_t seq, HandleId first,
                    std::uint32_t made) {
  if (made > 0) {
    if (!ranges_.empty() && ranges_.back().first + ranges_.back().second == first) {
      ranges_.back().second += made;
    } else {
      ranges_.emplace_back(first, made);
    }
  }
  if (std::holds_alternative<program::Define>(command) ||
      std::holds_alternative<program::Undefine>(command)) {
    return;  // belongs to the session and not to the trace
  }
  if (const auto* release = std::get_if<program::Release>(&command)) {
    program::Release own;
    for (const HandleId id : release->handles) {
      if (made_here(id)) own.handles.push_back(id);
    }
    if (own.handles.empty()) return;
    command = std::move(own);
  }
  if (const auto* set = std::get_if<program::SetData>(&command)) {
    if (!made_here(set->handle)) {
      refuse(invalid("a captured function cannot assign .data of a tensor from outside"));
    }
  }
  if (const auto* flag = std::get_if<program::SetFlag>(&command)) {
    if (flag->what == program::SetFlag::What::kNode) return;  // a query without effect
    const auto found = by_id_.find(flag->handle);
    if (found != by_id_.end()) {
      if (flag->what != program::SetFlag::What::kRequiresGrad ||
          flag->on != known_[found->second].requires_grad) {
        refuse(invalid(
            "a captured function cannot change requires_grad or retain_grad of a tensor from "
            "outside"));
      }
      return;
    }
  }
  const auto* backward = std::get_if<program::Backward>(&command);
  if (std::holds_alternative<program::SetGrad>(command) || (backward && !backward->has_inputs)) {
    grads_matter_ = true;
  }
  hooks_matter_ = hooks_matter_ || backward != nullptr;
  commands_.push_back({std::move(command), seq, first});
}

}  // namespace teletensor::autograd
