#include "clients/session/forgets.h"

namespace teletensor::client {

Status Forgets::flush() {
  std::vector<core::Ref<autograd::Node>> nodes;
  nodes.swap(nodes_);
  for (const core::Ref<autograd::Node>& node : nodes) {
    TT_RETURN_IF_ERROR(hooks_.before_forget(*node));
    node->forget_saved();
    commands_.begin();
    commands_.issue(program::Command(program::Forget{node->seq}), 0);
  }
  return {};
}

}  // namespace teletensor::client
