// Forgets: nodes of the tape whose saved values this client recomputes instead of keeping them.
#pragma once

#include <vector>

#include "clients/session/client_hooks.h"
#include "clients/session/commands.h"
#include "engine/autograd/graph.h"

namespace teletensor::client {

// Owns the list of the nodes whose saved values are to be dropped, on both sides. It is filled
// while a command records its nodes, and is empty between two calls of the session, because a node
// can be named to the daemon only after its own command was issued.
class Forgets {
 public:
  // All references are to parts of the same session.
  Forgets(ClientHooks& hooks, Commands& commands) : hooks_(hooks), commands_(commands) {}

  void add(autograd::Node& node) { nodes_.emplace_back(&node); }
  bool any() const { return !nodes_.empty(); }
  // Drops the saved values. Precondition: the nodes' commands are issued.
  Status flush();

 private:
  ClientHooks& hooks_;
  Commands& commands_;
  std::vector<core::Ref<autograd::Node>> nodes_;
};

}  // namespace teletensor::client
