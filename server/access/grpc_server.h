// What all gRPC servers of the daemon have in common: the limits that protect them from their
// callers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>

namespace teletensor::server {

// Holds gRPC's library until the process ends: its own shutdown may wait 10 s for a poller of
// connections that are gone (seen with 1.51).
void hold_grpc();
// Limits of a server, against callers that send much, slowly or nothing.
void harden(grpc::ServerBuilder& builder, std::size_t message_bytes);
// For servers that do not describe themselves: reflection's library adds itself to every server.
std::unique_ptr<grpc::ServerBuilderOption> without_reflection();

}  // namespace teletensor::server
