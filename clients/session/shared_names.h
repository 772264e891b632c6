// SharedNames: kept tensors, published tensors and groups, which exist beyond this client.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "clients/session/client_hooks.h"
#include "clients/session/commands.h"
#include "engine/autograd/graph.h"
#include "engine/program/command.h"
#include "engine/program/inventory.h"

namespace teletensor::client {

// Owns the names under which the daemon keeps tensors of the session, and the groups that the
// session is a member of. Both are as after the last command that was issued, and within the limits
// of the daemon.
class SharedNames {
 public:
  // All references are to parts of the same session.
  SharedNames(ClientHooks& hooks, autograd::Graph& graph, Commands& commands)
      : hooks_(hooks), graph_(graph), commands_(commands) {}

  // Makes the daemon keep h under this name beyond the life of this client. Null removes the name.
  Status keep(const std::string& name, autograd::Handle* h);
  // Adds the names that the session's previous client has kept.
  void restore(const program::Inventory& inventory);
  // Makes the session a member of a group (see program::Join), or ends its membership.
  Status join(const program::Join& join);
  Status leave(std::uint64_t group);
  // Publishes h for other sessions under this name (see program::Publish). Null withdraws the
  // publication.
  Status publish(const std::string& name, autograd::Handle* h, bool writable,
                 const std::string& users);
  // Creates a handle for a publication that the daemon has described.
  core::Result<autograd::HandleRef> published(const program::Published& described);

 private:
  ClientHooks& hooks_;
  autograd::Graph& graph_;
  Commands& commands_;
  std::set<std::string> kept_;
  std::set<std::uint64_t> groups_;  // by the session's own numbers
};

}  // namespace teletensor::client
