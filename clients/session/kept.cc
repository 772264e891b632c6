// What outlives this client: names that the daemon keeps, and the end of a download.
#include "clients/session/session.h"
#include "engine/autograd/inventory.h"

namespace teletensor::client {

using core::MutexLock;

Status Session::keep(const std::string& name, Handle* h) {
  if (h && h->id == 0) {
    return core::invalid("keep: a tensor inside vmap, or of a vmap that has ended");
  }
  TT_RETURN_IF_ERROR(ready_to_issue());
  issue(program::Command(program::Keep{name, h ? h->id : 0}), 0);
  return {};
}

core::Result<std::vector<HandleRef>> Session::resume(std::uint64_t next_seq,
                                                     program::HandleId next_id,
                                                     std::uint64_t completed_upto,
                                                     const program::Inventory& inventory) {
  if (seq_ != 0 || next_seq == 0 || next_id == 0) {
    return core::invalid("resume: the session has begun already");
  }
  auto handles = autograd::restore(graph_, inventory);
  if (!handles.ok()) return handles;
  seq_ = next_seq - 1;
  next_id_ = next_id;
  trimmed_ = completed_upto;
  MutexLock lock(mutex_);
  completed_ = completed_upto;
  writer_.begin(next_seq, next_id);
  return handles;
}

void Session::taken(std::uint64_t fetch) {
  if (!limits_.keeps) return;
  takens_.push_back(fetch);
  idle();
}

}  // namespace teletensor::client
