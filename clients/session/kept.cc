// State that outlives this client: named tensors, published tensors, and acknowledged downloads.
#include "clients/session/limit.h"
#include "clients/session/session.h"
#include "engine/autograd/snapshot/inventory.h"

namespace teletensor::client {

Status Session::keep(const std::string& name, Handle* h) {
  if (h) TT_RETURN_IF_ERROR(nameable(graph_, *h));
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (h == nullptr) {
    names_.kept.erase(name);
  } else if (!names_.kept.contains(name)) {
    TT_RETURN_IF_ERROR(check_limit("keep", &program::Amounts::kept, limits_.most,
                                   names_.kept.size(), 1, "drop names: keep(name, None)"));
    names_.kept.insert(name);
  }
  issue(program::Command(program::Keep{name, h ? h->id : 0}), 0);
  return {};
}

Status Session::publish(const std::string& name, Handle* h, bool writable,
                        const std::string& users) {
  if (h) TT_RETURN_IF_ERROR(nameable(graph_, *h));
  if (tracer() != nullptr) return core::invalid("a captured function cannot publish");
  if (h) TT_RETURN_IF_ERROR(h->may_publish());
  if (h && watching) TT_RETURN_IF_ERROR(before_write(*h));
  TT_RETURN_IF_ERROR(ready_to_issue());
  stream_.mark_fragile(seq_ + 1);
  if (h) h->cell->shared = true;  // Another session may write it from now on.
  issue(program::Command(program::Publish{name, h ? h->id : 0, writable, users}), 0);
  return {};
}

Status Session::join(const program::Join& join) {
  if (tracer() != nullptr) return core::invalid("a captured function cannot join a group");
  if (names_.groups.size() >= program::Join::kMaxGroups && !names_.groups.contains(join.group)) {
    return Status(core::Code::kFailedPrecondition,
                  "joining group \"" + join.name + "\": the session is in " +
                      std::to_string(names_.groups.size()) +
                      " groups, which is the maximum; destroy_process_group(group) leaves one");
  }
  TT_RETURN_IF_ERROR(ready_to_issue());
  names_.groups.insert(join.group);
  stream_.mark_fragile(seq_ + 1);
  issue(program::Command(join), 0);
  return {};
}

Status Session::leave(std::uint64_t group) {
  if (tracer() != nullptr) return core::invalid("a captured function cannot leave a group");
  TT_RETURN_IF_ERROR(ready_to_issue());
  names_.groups.erase(group);
  issue(program::Command(program::Leave{group}), 0);
  return {};
}

core::Result<HandleRef> Session::published(const program::Published& described) {
  if (tracer() != nullptr) {
    return core::invalid("a captured function takes a published tensor as an argument");
  }
  TT_RETURN_IF_ERROR(ready_to_issue());
  const core::Layout layout{described.dtype, described.device, core::Geometry(described.shape)};
  HandleRef h = graph_.objects().adopt_published(layout, nullptr, described.writable);
  give_id(*h);
  stream_.mark_fragile(seq_ + 1);
  issue(program::Command(described), 1);
  return h;
}

core::Result<std::vector<HandleRef>> Session::resume(std::uint64_t next_seq,
                                                     program::HandleId next_id,
                                                     std::uint64_t completed_upto,
                                                     const program::Inventory& inventory) {
  if (seq_ != 0 || next_seq == 0 || next_id == 0) {
    return core::invalid("resume: the session has already issued commands");
  }
  auto handles = autograd::restore(graph_, inventory);
  if (!handles.ok()) return handles;
  // The inventory does not tell which of the tensors are published. Other sessions may write those.
  for (const HandleRef& h : *handles) h->cell->shared = true;
  handles_ = inventory.items.size();
  for (const auto& [name, id] : inventory.names) names_.kept.insert(name);
  seq_ = next_seq - 1;
  next_id_ = next_id;
  trimmed_ = completed_upto;
  stream_.start_at(next_seq, next_id, completed_upto);
  return handles;
}

void Session::taken(std::uint64_t fetch) {
  takens_.push_back(fetch);
  idle();
}

}  // namespace teletensor::client
