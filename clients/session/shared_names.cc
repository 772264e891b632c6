#include "clients/session/shared_names.h"

#include "clients/session/limit.h"

namespace teletensor::client {

using autograd::Handle;
using autograd::HandleRef;

void SharedNames::restore(const program::Inventory& inventory) {
  for (const auto& [name, id] : inventory.names) kept_.insert(name);
}

Status SharedNames::keep(const std::string& name, Handle* h) {
  if (h) TT_RETURN_IF_ERROR(nameable(graph_, *h));
  TT_RETURN_IF_ERROR(commands_.ready());
  if (h == nullptr) {
    kept_.erase(name);
  } else if (!kept_.contains(name)) {
    TT_RETURN_IF_ERROR(check_limit("keep", &program::Amounts::kept, commands_.limits().most,
                                   kept_.size(), 1, "drop names: keep(name, None)"));
    kept_.insert(name);
  }
  commands_.issue(program::Command(program::Keep{name, h ? h->id : 0}), 0);
  return {};
}

Status SharedNames::publish(const std::string& name, Handle* h, bool writable,
                            const std::string& users) {
  if (h) TT_RETURN_IF_ERROR(nameable(graph_, *h));
  if (commands_.tracer() != nullptr) return core::invalid("a captured function cannot publish");
  if (h) TT_RETURN_IF_ERROR(h->may_publish());
  if (h && hooks_.watching) TT_RETURN_IF_ERROR(hooks_.before_write(*h));
  TT_RETURN_IF_ERROR(commands_.ready());
  commands_.mark_fragile();
  if (h) h->cell->shared = true;  // Another session may write it from now on.
  commands_.issue(program::Command(program::Publish{name, h ? h->id : 0, writable, users}), 0);
  return {};
}

Status SharedNames::join(const program::Join& join) {
  if (commands_.tracer() != nullptr)
    return core::invalid("a captured function cannot join a group");
  if (groups_.size() >= program::Join::kMaxGroups && !groups_.contains(join.group)) {
    return Status(core::Code::kFailedPrecondition,
                  "joining group \"" + join.name + "\": the session is in " +
                      std::to_string(groups_.size()) +
                      " groups, which is the maximum; destroy_process_group(group) leaves one");
  }
  TT_RETURN_IF_ERROR(commands_.ready());
  groups_.insert(join.group);
  commands_.mark_fragile();
  commands_.issue(program::Command(join), 0);
  return {};
}

Status SharedNames::leave(std::uint64_t group) {
  if (commands_.tracer() != nullptr)
    return core::invalid("a captured function cannot leave a group");
  TT_RETURN_IF_ERROR(commands_.ready());
  groups_.erase(group);
  commands_.issue(program::Command(program::Leave{group}), 0);
  return {};
}

core::Result<HandleRef> SharedNames::published(const program::Published& described) {
  if (commands_.tracer() != nullptr) {
    return core::invalid("a captured function takes a published tensor as an argument");
  }
  TT_RETURN_IF_ERROR(commands_.ready());
  const core::Layout layout{described.dtype, described.device, core::Geometry(described.shape)};
  HandleRef h = graph_.objects().adopt_published(layout, nullptr, described.writable);
  commands_.give_id(*h);
  commands_.mark_fragile();
  commands_.issue(program::Command(described), 1);
  return h;
}

}  // namespace teletensor::client
