// Settings that all gRPC servers of the daemon share: limits that protect them from their callers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>

namespace teletensor::server {

// Keeps gRPC's library initialized until the process ends, because its shutdown may wait 10 s for a
// poller of closed connections (observed with version 1.51).
void hold_grpc();
// Sets limits on a server against callers that send too much, too slowly or nothing. A request that
// cannot be decoded is refused with INVALID_ARGUMENT.
void harden(grpc::ServerBuilder& builder, std::size_t message_bytes);

}  // namespace teletensor::server
