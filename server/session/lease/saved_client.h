// Writes the parameters of a client into the snapshot of its session, and reads them.
#pragma once

#include <cstdint>

#include "engine/ops/op.h"
#include "server/base/limits.h"
#include "server/session/lease/client_info.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

void save_client(const ClientInfo& client, v1::SavedHead& head, v1::SavedBody& body);
// Returns the client of a snapshot with the limits that this daemon has for its user.
// FAILED_PRECONDITION if the client speaks a protocol that this daemon does not.
core::Result<ClientInfo> saved_client(const v1::SavedHead& head, const v1::SavedBody& body,
                                      const Limits& limits, const ops::Catalog& catalog);

}  // namespace teletensor::server
